"""Frozen data to canonical JSON and its content hash: the same data has the same text on every machine."""

import dataclasses
import hashlib
import json
from typing import Any


def to_plain(value: Any) -> Any:
    """Dataclasses, tuples and mappings as JSON-ready dictionaries and lists; fields at their defaults are left out."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {
            field.name: to_plain(getattr(value, field.name))
            for field in dataclasses.fields(value)
            if field.default is dataclasses.MISSING or getattr(value, field.name) != field.default
        }
    if isinstance(value, tuple | list):
        return [to_plain(item) for item in value]
    if isinstance(value, dict):
        return {str(key): to_plain(item) for key, item in value.items()}
    return value


def canonical_json(value: Any) -> str:
    """JSON with sorted keys and no spaces."""
    return json.dumps(to_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def content_sha256(value: Any) -> str:
    """SHA-256 of `canonical_json(value)`, in hexadecimal."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()
