"""Records that show themselves as a table: at a prompt, printed, and in notebooks."""

import io

from rich.console import Console
from rich.table import Table

_PAGE = '<pre style="overflow-x:auto">{code}</pre>'


class Shown:
    """What `__rich__` makes, as text and as HTML."""

    def __rich__(self) -> Table:
        raise NotImplementedError

    def __str__(self) -> str:
        console = Console(file=io.StringIO(), width=110)
        console.print(self.__rich__())
        return console.file.getvalue()  # type: ignore[attr-defined]

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        """For notebooks."""
        console = Console(file=io.StringIO(), width=140, record=True)
        console.print(self.__rich__())
        return console.export_html(inline_styles=True, code_format=_PAGE)
