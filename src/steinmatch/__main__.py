"""`python -m steinmatch` is the command `steinmatch`."""

from steinmatch.cli import app

app(prog_name="steinmatch")
