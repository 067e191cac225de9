"""The automatic fit: frame, walk, weigh."""

from steinmatch.adaptive.chains import Round, Walked, error_in_words, log_evidence, modes_of, told
from steinmatch.adaptive.evidence import Evidence
from steinmatch.adaptive.frames import BATCH, batch_of
from steinmatch.adaptive.modes import Mode
from steinmatch.adaptive.rounds import MOST_DRAWS
from steinmatch.adaptive.stacks import Together, stacked, usual_parent, walk_together
from steinmatch.adaptive.together import LARGEST
from steinmatch.adaptive.verdict import Error
from steinmatch.adaptive.walking import Walk

__all__ = [
    "BATCH",
    "LARGEST",
    "MOST_DRAWS",
    "Error",
    "Evidence",
    "Mode",
    "Round",
    "Together",
    "Walk",
    "Walked",
    "batch_of",
    "error_in_words",
    "log_evidence",
    "modes_of",
    "stacked",
    "told",
    "usual_parent",
    "walk_together",
]
