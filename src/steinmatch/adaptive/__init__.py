"""The automatic fit: levels of features, error estimates, a verdict."""

from steinmatch.adaptive.automatic import Adapted, Error, Level, adapt

__all__ = ["Adapted", "Error", "Level", "adapt"]
