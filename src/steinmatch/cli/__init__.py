"""The `steinmatch` command."""

from steinmatch.cli.commands import app

__all__ = ["app"]
