"""Bytes to text to a plain JSON tree, refusing what parsers let pass: repeated keys, NaN, endless numbers."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from math import isfinite

from profiles.refusal import TOO_DEEP, DocumentPath, refusal, render_path, render_value

MAX_DOCUMENT_BYTES = 64 * 2**20
"""Largest document that is read (64 MiB)."""

MAX_VALUES = 1_000_000
"""Most values that a document may hold."""

MAX_FIELDS = 1_000
"""Most fields that an object may hold."""

MAX_DIGITS = 40
"""Longest integer that is read as a number; the fields themselves allow far less."""


class UnreadableError(ValueError):
    """Not a JSON text in UTF-8 at all; what a text says wrongly is a plain ValueError."""


def decode_text(data: bytes, *, source: str) -> str:
    """The text of a document; raises UnreadableError unless it is plain UTF-8 of a reasonable size."""
    problem = _encoding_problem(data)
    if problem:
        raise _unreadable(source, problem)
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        byte = f"byte {data[error.start]:#04x} at offset {error.start}"
        raise _unreadable(source, f"{byte} is not UTF-8; save the text as UTF-8") from None


def _unreadable(source: str, problem: str) -> UnreadableError:
    return UnreadableError(str(refusal(source, problem)))


def _encoding_problem(data: bytes) -> str | None:
    if len(data) > MAX_DOCUMENT_BYTES:
        return f"holds more than {MAX_DOCUMENT_BYTES:,} bytes; merge layers, or leave out costs that are not needed"
    if not data.strip():
        return "is empty; give a workload, profile or cluster document"
    if data.startswith(b"\x1f\x8b"):
        return "is compressed with gzip; unpack it first"
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "is UTF-16; save the text as UTF-8"
    if data.startswith(b"\xef\xbb\xbf"):
        return "begins with a byte order mark; save the text as UTF-8 without one"
    if b"\0" in data:
        return f"holds a NUL byte at offset {data.index(0)}; save the text as UTF-8"
    return None


def parse_json(text: str, *, source: str) -> object:
    """The tree of a JSON text; raises ValueError that names the source, the path inside it and the remedy.

    The ValueError is an UnreadableError if the text is not JSON.
    """
    if text.count(",") >= MAX_VALUES:
        raise refusal(
            source, f"holds more than {MAX_VALUES:,} values; merge layers, or leave out costs that are not needed"
        )
    try:
        tree = _DECODER.decode(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise _unreadable(source, f"{where}: not JSON ({error.msg}); mend the text there") from None
    except RecursionError:
        raise refusal(source, TOO_DEEP) from None
    problems = [f"{render_path(path)} {problem}" for path, problem in _faults(tree)]
    if problems:
        raise refusal(source, *problems)
    return tree


@dataclass(frozen=True, slots=True)
class _Fault:
    """Stands in the tree where something was read that no document may hold."""

    problem: str


def _read_object(pairs: list[tuple[str, object]]) -> object:
    if len(pairs) > MAX_FIELDS:
        return _Fault(f"has {len(pairs)} fields, more than {MAX_FIELDS:,}; remove those that mean nothing")
    tree: dict[str, object] = {}
    for key, value in pairs:
        if key in tree:
            return _Fault(f"has the key {render_value(key)} twice; keep one of them")
        tree[key] = value
    return tree


def _read_constant(text: str) -> object:
    return _Fault(f"= {text} is not a number in JSON; give a finite number, or leave the field out")


def _read_float(text: str) -> object:
    value = float(text)
    return value if isfinite(value) else _Fault(f"= {text[:20]} is too large; give a finite number")


def _read_int(text: str) -> object:
    if len(text) <= MAX_DIGITS:
        return int(text)
    return _Fault(f"= {text[:20]}... has {len(text.lstrip('-'))} digits; give a number of a sensible size")


_DECODER = json.JSONDecoder(
    object_pairs_hook=_read_object, parse_constant=_read_constant, parse_float=_read_float, parse_int=_read_int
)


def _faults(tree: object) -> Iterator[tuple[DocumentPath, str]]:
    """Every fault with its path, in the order of the document; walks without recursion."""
    waiting: list[tuple[DocumentPath, object]] = [((), tree)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, _Fault):
            yield path, value.problem
        elif isinstance(value, str) and not _is_text(value):
            yield path, f"= {render_value(value)} holds half a character (a lone surrogate) or a NUL; replace it"
        elif isinstance(value, list):
            waiting.extend(((*path, index), value[index]) for index in reversed(range(len(value))))
        elif isinstance(value, dict):
            yield from (
                (path, f"has the unreadable key {render_value(key)}; rename it") for key in value if not _is_text(key)
            )
            waiting.extend(((*path, key), item) for key, item in reversed(value.items()))


def _is_text(value: str) -> bool:
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value
