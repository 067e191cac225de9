"""The automatic fit: frame, walk, weigh."""

from steinmatch.adaptive.chains import Round, Walked
from steinmatch.adaptive.verdict import Error
from steinmatch.adaptive.walking import Walk

__all__ = ["Error", "Round", "Walk", "Walked"]
