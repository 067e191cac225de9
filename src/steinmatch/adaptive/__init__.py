"""The automatic fit: frame, walk, weigh."""

from steinmatch.adaptive.chains import Round, Walked, log_evidence, modes_of, told
from steinmatch.adaptive.evidence import Evidence
from steinmatch.adaptive.frames import BATCH, batch_of
from steinmatch.adaptive.modes import Mode
from steinmatch.adaptive.rounds import MOST_DRAWS
from steinmatch.adaptive.verdict import Error
from steinmatch.adaptive.walking import Walk

__all__ = [
    "BATCH",
    "MOST_DRAWS",
    "Error",
    "Evidence",
    "Mode",
    "Round",
    "Walk",
    "Walked",
    "batch_of",
    "log_evidence",
    "modes_of",
    "told",
]
