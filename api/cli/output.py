"""Where the commands write: documents, reports for people, reports in JSON."""

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from api.failures import InputError
from profiles.documents.whole_file import write_whole

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

_WIDTH_OF_FILES = 120
"""Columns of what is not shown on a terminal."""

_LONGEST = 1000
"""Columns of a table whose words are whole, at most."""


def make_console(*, is_report: bool) -> "Console":
    """Where people read: standard output for reports that were asked for, standard error for everything else."""
    from rich.console import Console

    stream = sys.stdout if is_report else sys.stderr
    width = None if stream.isatty() or os.environ.get("COLUMNS") else _WIDTH_OF_FILES
    return Console(file=stream, width=width, markup=False, emoji=False, highlight=False)


def report(table: "RenderableType") -> None:
    """A report for people, on standard output."""
    make_console(is_report=True).print(table)


def report_json(summary: Any) -> None:
    """A report for programs, on standard output."""
    print(json.dumps(summary, ensure_ascii=False, indent=1))


def report_event(event: Any) -> None:
    """A line of JSON on standard error."""
    print(json.dumps(event, ensure_ascii=False), file=sys.stderr, flush=True)


def report_rows(rows: list[dict[str, Any]], *, is_json: bool) -> None:
    """Plain data, as it is or as a table none of whose words is broken, however narrow the screen is."""
    if is_json:
        report_json(rows)
    else:
        from api.reporting.screen_table import render_rows

        console, table = make_console(is_report=True), render_rows(rows)
        unbounded = console.options.update_width(_LONGEST)
        console.width = max(console.width, console.measure(table, options=unbounded).minimum)
        console.print(table)


def write_document(text: str, target: str | None) -> None:
    """The artefact: to its file, or to standard output."""
    try:
        if target is None or target == "-":
            sys.stdout.write(text)
            sys.stdout.flush()
        else:
            write_whole(Path(target), text)
    except BrokenPipeError:
        raise
    except OSError as error:
        kept = _keep(text)
        remedy = f"copy it from {kept}" if kept else "choose another place"
        raise InputError(f"{target or '-'}: cannot be written ({error.strerror}); {remedy}") from None


def write_folder(files: Mapping[str, str], folder: Path) -> None:
    """The artefacts by file name, into a folder that is made where there is none."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"{folder}: no folder can be made there ({error.strerror}); choose another place") from None
    for name, text in files.items():
        write_document(text, str(folder / name))


def _keep(text: str) -> str:
    """The file where the artefact is meanwhile, for hours may stand in it; empty if no other place takes it."""
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="pipeplan-", delete=False) as file:
            file.write(text)
    except OSError:
        return ""
    return file.name
