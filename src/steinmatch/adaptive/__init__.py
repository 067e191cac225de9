"""The automatic fit: frame, walk, weigh."""

from steinmatch.adaptive.verdict import Error
from steinmatch.adaptive.walking import Round, Walk, Walked

__all__ = ["Error", "Round", "Walk", "Walked"]
