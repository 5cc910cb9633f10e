"""How a document is refused: one ValueError with a line per problem, each naming source, path, value and remedy."""

import json
from collections.abc import Iterator
from contextlib import contextmanager

_MAX_SHOWN = 5
"""Problems listed in one message; the others are counted."""

_MAX_VALUE_LENGTH = 60
"""Characters of a value that a message shows."""

TOO_DEEP = "is nested too deeply; no document needs more than ten levels"
"""The problem of a document that would overrun a parser's stack."""

DocumentPath = tuple[str | int, ...]
"""Keys and positions from the top of a document down to a value."""


def refusal(source: str, *problems: str) -> ValueError:
    """The error that lists the first problems of `source`."""
    lines = [f"{source}: {problem}" for problem in problems[:_MAX_SHOWN]]
    if len(problems) > _MAX_SHOWN:
        lines.append(f"{source}: ... and {len(problems) - _MAX_SHOWN} more")
    return ValueError("\n".join(lines))


@contextmanager
def blaming(source: str) -> Iterator[None]:
    """Put `source` in front of a ValueError that is raised inside."""
    try:
        yield
    except ValueError as error:
        raise refusal(source, str(error)) from None


def render_path(path: DocumentPath) -> str:
    """The path as a program would write it: `layers[3].costs[0].forward_ns`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else _render_key(part) for part in path)
    return text.removeprefix(".") or "the document"


def _render_key(key: str) -> str:
    is_plain = key.isidentifier() and key.isascii() and len(key) <= _MAX_VALUE_LENGTH
    return f".{key}" if is_plain else f"[{render_value(key)}]"


def render_value(value: object) -> str:
    """The value as JSON in printable ASCII, cut to `_MAX_VALUE_LENGTH`; of a container only its size."""
    if isinstance(value, dict):
        return f"{{{len(value)} fields}}"
    if isinstance(value, list | tuple):
        return f"[{len(value)} entries]"
    text = json.dumps(value)
    return text if len(text) <= _MAX_VALUE_LENGTH else text[: _MAX_VALUE_LENGTH - 3] + "..."
