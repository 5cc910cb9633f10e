"""Hashes of what is stored: of texts, and of the columns of a row that are not to change unnoticed."""

import hashlib
import json
import re
from collections.abc import Iterable

_SHA256 = re.compile(r"[0-9a-f]{64}", re.ASCII)


def sha256_of(text: str) -> str:
    """The hash of a text's bytes."""
    return hashlib.sha256(text.encode()).hexdigest()


def is_sha256(text: object) -> bool:
    """Whether it is written as such a hash is."""
    return isinstance(text, str) and _SHA256.fullmatch(text) is not None


def hash_of_row(values: Iterable[object]) -> str:
    """The hash of what stands in some columns of a row."""
    return sha256_of(json.dumps(list(values), default=repr))


def is_row_of(stated: object, values: Iterable[object]) -> bool:
    """Whether the row states the hash of its values, or none, as one that an earlier release wrote."""
    return stated is None or stated == hash_of_row(values)
