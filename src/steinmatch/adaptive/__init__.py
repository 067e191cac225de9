"""The automatic fit: frame, walk, weigh."""

from steinmatch.adaptive.chains import Round, Walked
from steinmatch.adaptive.frames import BATCH, batch_of
from steinmatch.adaptive.verdict import Error
from steinmatch.adaptive.walking import Walk

__all__ = ["BATCH", "Error", "Round", "Walk", "Walked", "batch_of"]
