"""Quantities of Kubernetes: decimal numbers with a suffix of powers of ten or of 1024, or an exponent."""

import re
from fractions import Fraction

_DECIMAL = {suffix: Fraction(1000) ** power for power, suffix in enumerate([*"num", "", *"kMGTPE"], -3)}
_BINARY = {f"{suffix}i": Fraction(1024) ** power for power, suffix in enumerate("KMGTPE", 1)}
_QUANTITY = re.compile(r"([+-]?)([0-9]+\.?[0-9]*|\.[0-9]+)(?:([numkMGTPE]|[KMGTPE]i)|[eE]([+-]?[0-9]{1,3}))?")


def parse_quantity(text: str | float) -> Fraction:
    """`128849018880m`, `1.5Ti`, `12e6`, `.5`, 8; raises ValueError with the text for what is none, or below 0."""
    match = _QUANTITY.fullmatch(str(text).strip())
    if match is None or isinstance(text, bool) or match[1] == "-":
        raise ValueError(f"{str(text)[:60]!r} is not a quantity of Kubernetes; write one, e.g. 8 or 64Gi")
    number = Fraction(match[2])
    return number * Fraction(10) ** int(match[4]) if match[4] else number * (_DECIMAL | _BINARY)[match[3] or ""]


def whole_quantity(text: str | float) -> int:
    """A quantity of things that cannot be halved; raises ValueError for a fraction."""
    quantity = parse_quantity(text)
    if quantity.denominator != 1:
        raise ValueError(f"{text!r} is not a whole number; give one")
    return int(quantity)
