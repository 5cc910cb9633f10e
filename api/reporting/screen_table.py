"""Tables that fit every screen: columns where there is room for them, else a few lines for each row; nothing is cut."""

from collections.abc import Iterator, Mapping, Sequence
from textwrap import wrap
from typing import Any

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.table import Column, Table
from rich.text import Text

_LEAST_COLUMNS = 20
"""A column of words gets at least so many, or all that it needs."""

_INDENT = 4


class ScreenTable(Table):
    """A table without lines that becomes a list of `header value` where its columns would be cut."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """Columns, or lines of at most the screen's width."""
        if self._least_width() <= options.max_width:
            yield from super().__rich_console__(console, options)
        else:
            yield from self._records(options.max_width)

    def _least_width(self) -> int:
        """Columns of a screen on which no figure is cut and no column of words is too narrow to be read."""
        gaps = 2 * (len(self.columns) - 1)
        return gaps + sum(map(_least_width, self.columns))

    def _records(self, width: int) -> Iterator[RenderableType]:
        """Each row as lines: what it is about, then its other cells with their headers."""
        lead = 0 if _header(self.columns[0]) else 1
        is_numbered = all(_plain(cell).isdigit() for cell in self.columns[lead].cells)
        if not is_numbered:
            yield Text(_header(self.columns[lead]), style="dim")
        for row, cells in zip(self.rows, zip(*(column.cells for column in self.columns), strict=True), strict=True):
            texts = [_plain(cell) for cell in cells]
            title = " ".join(text for text in texts[: lead + 1] if text)
            title = f"{_header(self.columns[lead])} {title}" if is_numbered else title
            items = [
                f"{_header(column)} {text}".strip()
                for column, text in zip(self.columns[lead + 1 :], texts[lead + 1 :], strict=True)
                if text
            ]
            lines = [*wrap(title, width), *pack(items, width - _INDENT, indent=_INDENT)]
            yield Text("\n".join(lines), style=row.style or "")


def figures(*headers: str, is_whole: bool = True) -> list[Column]:
    """Columns of numbers; `is_whole`: none of them is broken."""
    return [Column(header, justify="right", no_wrap=is_whole) for header in headers]


def make_table(*headers: str | Column) -> ScreenTable:
    """The look of every table: no lines, faint headers."""
    return ScreenTable(*headers, box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="dim")


def pack(items: Sequence[str], width: int, *, indent: int = 0) -> Iterator[str]:
    """Lines of at most `width` and an indent, with as many items as fit between dots; only long items are broken."""
    line = ""
    for item in items:
        longer = f"{line} · {item}" if line else item
        if cell_len(longer) <= width:
            line = longer
            continue
        if line:
            yield " " * indent + line
        *full, line = wrap(item, max(1, width))
        yield from (" " * indent + part for part in full)
    if line:
        yield " " * indent + line


def _least_width(column: Column) -> int:
    texts = [_header(column, is_one_line=False), *map(_plain, column.cells)]
    longest = max(cell_len(line) for text in texts for line in text.split("\n"))
    if column.no_wrap:
        return longest
    unbroken = max((cell_len(part) for text in texts for part in text.split()), default=0)
    return min(longest, max(_LEAST_COLUMNS, unbroken))


def _header(column: Column, *, is_one_line: bool = True) -> str:
    text = _plain(column.header)
    return " ".join(text.split()) if is_one_line else text


def _plain(cell: RenderableType) -> str:
    return cell.plain if isinstance(cell, Text) else str(cell)


_LONGEST_PART = 40
"""Letters between two blanks that no table breaks."""


def render_rows(rows: Sequence[Mapping[str, Any]]) -> RenderableType:
    """Plain data as a table."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    table = make_table(*names)
    texts = [[_cell(row.get(name)) for name in names] for row in rows]
    for name, column, cells in zip(names, table.columns, zip(*texts, strict=True), strict=False):
        column.overflow = "fold"
        parts = " ".join((name, *cells)).split()
        column.min_width = min(_LONGEST_PART, max(map(len, parts), default=0))  # half a time or an id is of no use
    for row_texts in texts:
        table.add_row(*row_texts)
    return table


def _cell(value: Any) -> str:
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "–"}[value]
    return f"{value:,}" if isinstance(value, int) else f"{value:.4g}" if isinstance(value, float) else str(value)[:200]
