"""What Sphinx is told beside the pages: mathematics as MathML, and pages that are made from the product itself."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import latex2mathml.converter
import typer
from docutils import nodes
from schedule_gallery import write_gallery
from sphinx.application import Sphinx

from api.cli import app as command_line
from api.jobs.request import Ceilings
from api.settings import ClientLimits, Settings
from planner.documents.schema import document_schema
from profiles.documents.class_schema import field_docstrings

DOCS = Path(__file__).resolve().parent
GENERATED = DOCS / "generated"
"""Written by every build, and by git ignored."""
_NEEDS = re.compile(r"^```console needs: (.+)\n", re.MULTILINE)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register what this module adds."""
    app.add_html_math_renderer("mathml", (_inline_math, None), (_display_math, None))
    app.connect("source-read", show_needs)
    app.connect("builder-inited", lambda _: write_generated_pages())
    app.connect("builder-inited", lambda _: write_gallery(GENERATED))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def show_needs(_app: Sphinx, _page: str, source: list[str]) -> None:
    """Say above a block what it needs; the site does not show fences such as `console needs: a GPU`."""
    source[0] = _NEEDS.sub(r"{.needs}\nNeeds \1:\n\n```console\n", source[0])


def _inline_math(translator: Any, node: nodes.Node) -> None:
    translator.body.append(latex2mathml.converter.convert(node.astext()))
    raise nodes.SkipNode


def _display_math(translator: Any, node: nodes.Node) -> None:
    translator.body.append(latex2mathml.converter.convert(node.astext(), display="block"))
    raise nodes.SkipNode


def write_generated_pages() -> None:
    """Write the pages that code makes; one that has not changed is left alone, so that it is not built anew."""
    GENERATED.mkdir(exist_ok=True)
    document = json.loads((DOCS / "openapi.json").read_text(encoding="utf-8"))
    pages = {"cli.md": command_line_page(), "rest.md": rest_page(document), "fields.md": fields_page()}
    pages["limits.md"] = limits_page()
    pages |= {f"{path.stem}.md": table_page(path) for path in sorted((DOCS / "tables").glob("*.json"))}
    for name, text in pages.items():
        path = GENERATED / name
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")


def command_line_page() -> str:
    """Every command with its options, from the command line's own help."""
    lines = ["# Command line", ""]
    for names, command in _commands(typer.main.get_command(command_line), ("pipeplan",)):
        lines += [f"## `{' '.join(names)}`", "", (command.help or "").strip(), ""]
        rows = [_option_row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
        lines += ["| option | meaning |", "|---|---|", *rows, ""] if rows else []
    return "\n".join(lines)


def _commands(command: Any, names: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every command that does something, with the words that call it."""
    inner = getattr(command, "commands", {})
    if not inner:
        yield names, command
    for name, each in inner.items():
        if not each.hidden:
            yield from _commands(each, (*names, name))


def _option_row(parameter: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*parameter.opts, *parameter.secondary_opts])
    meaning = " ".join((getattr(parameter, "help", None) or "").split()).replace("|", "\\|")
    return f"| {names} | {meaning} |"


def rest_page(document: dict[str, Any]) -> str:
    """Every operation of the OpenAPI document: what it is for and what it answers."""
    lines = ["# REST interface", "", "`docs/openapi.json` describes it for tools. Problems are `problem+json`.", ""]
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            if "responses" in operation:
                said = {code: _described(answer) for code, answer in operation["responses"].items()}
                problems = ", ".join(sorted(code for code, text in said.items() if text == "Problem"))
                lines += [f"## `{method.upper()} {path}`", "", operation.get("summary", ""), ""]
                lines += [f"* `{code}`: {text}" for code, text in said.items() if text != "Problem"]
                lines += [f"* problems: {problems}"] if problems else []
                lines.append("")
    return "\n".join(lines)


def _described(answer: dict[str, Any]) -> str:
    """What an answer says of itself, or the name of the shared one that it is."""
    return str(answer.get("description") or answer.get("$ref", "").rpartition("/")[2])


def limits_page() -> str:
    """Every limit of the service with its default, from the classes that hold them."""
    rows = [
        [f"`{name}`", f"{getattr(kind(), name):,}", " ".join(text.split())]
        for kind in (ClientLimits, Ceilings)
        for name, text in field_docstrings(kind)
    ]
    inspection_s = dict(field_docstrings(Settings))["inspection_s"]
    rows.append(["`inspection_s`", f"{Settings(data=DOCS).inspection_s}", inspection_s])
    about = "`pipeplan serve --limit NAME=VALUE` or `PIPEPLAN_LIMIT_NAME` sets a limit."
    return _page_of_table("Limits of the service", about, [["limit", "default", "of"], *rows])


def table_page(path: Path) -> str:
    """A page with one table, from a file of `docs/tables`: `title`, `about`, `columns` and `rows`."""
    table = json.loads(path.read_text(encoding="utf-8"))
    return _page_of_table(table["title"], table["about"], [table["columns"], *table["rows"]])


def _page_of_table(title: str, about: str, rows: list[list[str]]) -> str:
    lines = ["---", "orphan: true", "---", f"# {title}", "", about, ""]
    ruled = [rows[0], ["---"] * len(rows[0]), *rows[1:]]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in ruled), ""])


def fields_page() -> str:
    """Every field of every document, with its type and meaning, from the schemas."""
    lines, done = ["# Fields of documents", ""], set[str]()
    for kind in ("workload", "plan"):
        schema = document_schema(kind)
        parts = {kind: schema, **schema["$defs"]}
        for name, part in parts.items():
            if name not in done and "properties" in part:
                done.add(name)
                rows = [_field_row(field, value) for field, value in part["properties"].items()]
                lines += [
                    f"## {name}",
                    "",
                    _in_a_row(part),
                    "",
                    "| field | type | meaning |",
                    "|---|---|---|",
                    *rows,
                    "",
                ]
    return "\n".join(lines)


def _field_row(name: str, value: dict[str, Any]) -> str:
    return f"| `{name}` | {_type_of(value)} | {_in_a_row(value)} |"


def _in_a_row(value: dict[str, Any]) -> str:
    return " ".join(value.get("description", "").split()).replace("|", "\\|")


def _type_of(value: dict[str, Any]) -> str:
    """The type in words: `list of Layer`, `integer or null`."""
    if "$ref" in value:
        return str(value["$ref"].rpartition("/")[2])
    if "anyOf" in value:
        return " or ".join(map(_type_of, value["anyOf"]))
    if "const" in value or "enum" in value:
        return ", ".join(f"`{each}`" for each in value.get("enum", [value.get("const")]))
    return f"list of {_type_of(value['items'])}" if "items" in value else str(value.get("type", "any"))
