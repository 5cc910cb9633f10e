"""Bytes to text to a plain JSON tree, refusing what parsers let pass: repeated keys, NaN, endless numbers."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from math import isfinite
from pathlib import Path

from profiles.documents.refusal import TOO_DEEP, DocumentPath, refusal, render_path, render_value

MAX_DOCUMENT_BYTES = 64 * 2**20
"""Largest document that is read (64 MiB)."""

_MAX_FIELDS = 1_000
"""Most fields that an object may hold."""

_MAX_DIGITS = 40
"""Longest integer that is read as a number; the fields themselves allow far less."""

_MAX_WHOLE = 1e18
"""A number with a point or an exponent is no integer above this."""

_SHAPES = bytes.maketrans(b"123456789E", b"000000000e")
"""Numbers of one length look alike: what is long is then found without a look at each byte."""

_LARGE_EXPONENT = re.compile(r"[eE]\+?0*(?:2[6-9]|[3-9]\d|[1-9]\d{2,})\d")
"""Only where this is found may a number be too large: an exponent of 260."""

_ODD_ESCAPE = re.compile(r"\\u(?:0000|[dD][89a-fA-F])")
_ODD_CHARACTER = re.compile(r"[\0\ud800-\udfff]")
"""Only where one of these is found may a text hold a NUL or half a character."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """How much a document may hold: what is refused early costs little."""

    values: int = 1_000_000
    """Values of all kinds, counted by their commas."""
    containers: int = 1_000_000
    """Objects and lists, counted by their brackets."""


_FILES = Ceiling()
"""For documents that somebody reads from his own disk."""


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


def read_text(file: str) -> str:
    """The text of another program's file, without a byte order mark; raises OSError, or ValueError with the file."""
    data = Path(file).read_bytes().removeprefix(b"\xef\xbb\xbf")
    return decode_text(data, source=file) if data.strip() else ""


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


def parse_json(text: str, *, source: str, ceiling: Ceiling = _FILES, has_whole_fractions: bool = False) -> object:
    """The tree of a JSON text; raises ValueError that names the source, the path inside it and the remedy.

    The ValueError is an UnreadableError if the text is not JSON. With `has_whole_fractions`, 6.0 and 6e0 are read as
    the integer 6, as JSON Schema has it.
    """
    _require_size(text, ceiling, source=source)
    try:
        tree, has_faults = _decode(text, has_whole_fractions=has_whole_fractions)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        remedy = "correct the text there" if error.pos else "give a document in JSON"
        raise _unreadable(source, f"{where}: not JSON ({error.msg}); {remedy}") from None
    except RecursionError:
        raise refusal(source, TOO_DEEP) from None
    if has_faults or _may_hold_odd_text(text):
        problems = [f"{render_path(path)} {problem}" for path, problem in _faults(tree)]
        if problems:
            raise refusal(source, *problems)
    return tree


def _require_size(text: str, ceiling: Ceiling, *, source: str) -> None:
    sizes = {
        "values": (text.count(","), ceiling.values),
        "objects and lists": (text.count("{") + text.count("["), ceiling.containers),
    }
    for what, (size, most) in sizes.items():
        if size >= most:
            problem = f"holds more than {most:,} {what}; merge layers, or leave out costs that are not needed"
            raise refusal(source, problem)


def _may_hold_odd_text(text: str) -> bool:
    has_odd_character = "\0" in text if text.isascii() else _ODD_CHARACTER.search(text) is not None
    return has_odd_character or _ODD_ESCAPE.search(text) is not None


def _may_hold_long_numbers(text: str) -> bool:
    """Whether 40 digits stand in a row somewhere, or an exponent of 260: a number may be too long or too large."""
    shapes = text.encode(errors="replace").translate(_SHAPES)
    if b"0" * _MAX_DIGITS in shapes:
        return True
    return (b"e000" in shapes or b"e+000" in shapes) and _LARGE_EXPONENT.search(text) is not None


def _decode(text: str, *, has_whole_fractions: bool) -> tuple[object, bool]:
    """The tree, and whether something stands in it that no document may hold."""
    reader = _JsonReader()
    is_suspicious = _may_hold_long_numbers(text)
    decoder = json.JSONDecoder(
        object_pairs_hook=reader.read_object,
        parse_constant=reader.read_constant,
        parse_float=reader.read_number if has_whole_fractions else reader.read_float if is_suspicious else None,
        parse_int=reader.read_int if is_suspicious else None,
    )
    return decoder.decode(text), reader.has_faults


@dataclass(frozen=True, slots=True)
class _Fault:
    """Stands in the tree where something was read that no document may hold."""

    problem: str


class _JsonReader:
    """Reads what Python's parser passes on, and remembers whether any of it was a fault."""

    def __init__(self) -> None:
        self.has_faults = False

    def _fault(self, problem: str) -> _Fault:
        self.has_faults = True
        return _Fault(problem)

    def read_object(self, pairs: list[tuple[str, object]]) -> object:
        """An object, unless it is too long or names a field twice."""
        if len(pairs) > _MAX_FIELDS:
            return self._fault(f"has {len(pairs)} fields, more than {_MAX_FIELDS:,}; remove those that mean nothing")
        tree = dict(pairs)
        if len(tree) == len(pairs):
            return tree
        names = [key for key, _ in pairs]
        twice = next(key for number, key in enumerate(names) if key in names[:number])
        return self._fault(f"has the key {render_value(twice)} twice; keep one of them")

    def read_constant(self, text: str) -> object:
        """NaN and the infinities."""
        return self._fault(f"= {text} is not a number in JSON; give a finite number, or leave the field out")

    def read_float(self, text: str) -> object:
        """A number with a point or an exponent."""
        value = float(text)
        if isfinite(value):
            return value
        return self._fault(f"= {text[:20]} is too large; give a finite number")

    def read_number(self, text: str) -> object:
        """The same, but a whole one is an integer, however it is written."""
        value = self.read_float(text)
        if not (isinstance(value, float) and value.is_integer() and abs(value) < _MAX_WHOLE):
            return value
        exact = Decimal(text)
        return int(exact) if exact == exact.to_integral_value() else value

    def read_int(self, text: str) -> object:
        """A whole number."""
        if len(text) <= _MAX_DIGITS:
            return int(text)
        digits = len(text.lstrip("-"))
        return self._fault(f"= {text[:20]}... has {digits} digits; give a number of a sensible size")


def _faults(tree: object) -> Iterator[tuple[DocumentPath, str]]:
    """Every fault with its path, in the order of the document; walks without recursion."""
    waiting: list[tuple[DocumentPath, object]] = [((), tree)]
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, _Fault):
            yield path, value.problem
        elif isinstance(value, str):
            yield path, f"= {render_value(value)} holds half a character (a lone surrogate) or a NUL; replace it"
        elif isinstance(value, list):
            odd = [place for place, item in enumerate(value) if type(item) not in _PLAIN and _is_odd(item)]
            waiting.extend(((*path, place), value[place]) for place in reversed(odd))
        elif isinstance(value, dict):
            yield from (
                (path, f"has the unreadable key {render_value(key)}; rename it") for key in value if not _is_text(key)
            )
            waiting.extend(((*path, key), item) for key, item in reversed(value.items()) if _is_odd(item))


_PLAIN = {int, float, bool, type(None)}
"""What no fault can be in; most of a large document."""


def _is_odd(value: object) -> bool:
    """Whether a fault may be in it."""
    kind = type(value)
    if kind is str:
        return not _is_text(value)  # type: ignore[arg-type]
    return bool(value) if kind is dict or kind is list else kind is _Fault


def _is_text(value: str) -> bool:
    if value.isascii():
        return "\0" not in value
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return "\0" not in value
