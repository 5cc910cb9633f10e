"""The fields that a manifest may have, so that a misspelt one is found before a job is submitted without it.

Kubernetes 1.37's pods, JobSet 0.10, Kubeflow Trainer 2.3, Volcano 1.13, tasks of SkyPilot 0.14 and runtime environments
of Ray 2.60 stand in `manifest_fields.json`. `any` is left to the server.
"""

import difflib
import json
import re
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

_FILE = json.loads(Path(__file__).with_name("manifest_fields.json").read_text(encoding="utf-8"))
FIELDS: Mapping[str, Mapping[str, str]] = _FILE["fields"]
"""Type of every field of every kind: a scalar, a kind, `A|B` one of these strings, `[...]` a list, `{...}` a mapping,
`any` anything.
"""
MERGE_KEYS: Mapping[str, str] = _FILE["merge_keys"]
"""The field of the items by which a list is merged; lists that are not named here (tolerations, say) are replaced."""
DIRECTIVE = "$patch"
"""`replace`, `delete` or `merge`: what Kubernetes reads in a patch instead of a field."""
_SCALARS: Mapping[str, tuple[type, ...]] = {
    "string": (str,),
    "integer": (int,),
    "boolean": (bool,),
    "quantity": (str, int, float),
    "devices": (str, int, float),
    "count": (int,),
    "port": (int,),
    "label": (str,),
    "dns": (str,),
}
_CALLED = {"devices": "quantity", "count": "integer", "port": "integer", "label": "string", "dns": "string"}
"""Scalars that are others with fewer values."""
_QUANTITY = re.compile(r"\+?(\d+\.?\d*|\.\d+)([KMGTPE]i|[numkMGTPE]|[eE][+-]?\d+)?")
_LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
_DNS = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def require_known_fields(value: Any, kind: str, *, where: str) -> None:
    """Raise ValueError for the first field of a patch that `kind` does not have, or whose value is of another type.

    None is right everywhere: it removes what is there.
    """
    if value is None or kind == "any":
        return
    if kind in FIELDS:
        require_object(value, kind, where=where)
    elif kind.startswith("["):
        _require_list(value, kind[1:-1], where=where)
    elif kind.startswith("{"):
        for name, item in _mapping(value, where=where).items():
            is_device = kind == "{quantity}" and "/" in str(name)  # what a plugin gives, e.g. nvidia.com/gpu
            require_known_fields(item, "devices" if is_device else kind[1:-1], where=f"{where}.{name}")
    elif "|" in kind:
        _require_choice(value, kind.split("|"), where=where)
    else:
        _require_scalar(value, kind, where=where)


def _require_choice(value: Any, choices: Sequence[str], *, where: str) -> None:
    if value not in choices:
        near = difflib.get_close_matches(str(value), choices, n=1, cutoff=0.5)
        entries = ", ".join(choice or '""' for choice in choices)
        remedy = f"did you mean {near[0]}?" if near else f"write one of {entries}"
        raise ValueError(f"{where}: {_shown(value)} is none of {entries}; {remedy}")


def _require_scalar(value: Any, kind: str, *, where: str) -> None:
    name = _CALLED.get(kind, kind)
    is_one = isinstance(value, _SCALARS[kind]) and (kind == "boolean" or not isinstance(value, bool))
    if not is_one:
        remedy = f"; write {where.rpartition('.')[2]}: {_quoted(value)}" if name == "string" else ""
        article = "an" if name == "integer" else "a"
        raise ValueError(f"{where}: {_shown(value)} is not {article} {name}{remedy or f'; give {article} {name}'}")
    if kind in ("quantity", "devices"):
        _require_quantity(value, is_whole=kind == "devices", where=where)
    elif kind == "count" and value < 0:
        raise ValueError(f"{where}: {value} is negative; give 0 or more")
    elif kind == "port" and not 1 <= value <= 65535:
        raise ValueError(f"{where}: {value} is not a port; give 1 to 65535")
    elif kind == "label" and not _LABEL.fullmatch(value):
        raise ValueError(
            f"{where}: {_shown(value)} is not a label's value; give at most 63 letters, digits and inner - _ or ."
        )
    elif kind == "dns" and not _DNS.fullmatch(value):
        raise ValueError(
            f"{where}: {_shown(value)} is not a name; give at most 63 lower-case letters, digits and inner hyphens"
        )


def _require_quantity(value: str | float, *, is_whole: bool, where: str) -> None:
    match = _QUANTITY.fullmatch(str(value))
    if match is None:
        raise ValueError(f'{where}: {_shown(value)} is not a quantity; give a number, e.g. "2", "500m" or "64Gi"')
    if is_whole and (Fraction(match[1]) * _multiplier(match[2] or "")).denominator != 1:
        raise ValueError(f'{where}: {_shown(value)} is not a whole number of devices; give one, e.g. "2"')


def _multiplier(suffix: str) -> Fraction:
    if suffix[:1] in ("e", "E") and len(suffix) > 1 and suffix != "Ei":
        return Fraction(10) ** int(suffix[1:])
    if suffix.endswith("i"):
        return Fraction(1024) ** ("KMGTPE".index(suffix[0]) + 1)
    return Fraction(10) ** (3 * ("num kMGTPE".index(suffix or " ") - 3))


def require_object(value: Any, kind: str, *, where: str) -> None:
    """Raise ValueError unless this is a mapping with fields of `kind` alone, of their types."""
    _require_names(_mapping(value, where=where), FIELDS[kind], subject=_subject(kind), where=where)
    for name, item in value.items():
        require_known_fields(item, FIELDS[kind].get(name, "any"), where=f"{where}.{name}")


def _require_names(value: Mapping[Any, Any], known: Mapping[str, str], *, subject: str, where: str) -> None:
    for name, item in value.items():
        if name == DIRECTIVE:
            if item not in ("replace", "delete", "merge"):
                raise ValueError(f"{where}.{DIRECTIVE}: {_shown(item)} is unknown; write replace, delete or merge")
        elif str(name).startswith("$"):
            raise ValueError(f"{where}: {name} is not supported; write the fields, and null for those to remove")
        elif name not in known:
            near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.5)
            remedy = f"did you mean {near[0]}?" if near else f"use one of {', '.join(sorted(known))}"
            raise ValueError(f"{where}: {subject} has no field {name!r} (its value is {_shown(item)}); {remedy}")


def _require_list(value: Any, kind: str, *, where: str) -> None:
    if not isinstance(value, list):
        raise ValueError(f"{where}: {_shown(value)} is not a list; begin each item with a hyphen")
    for number, item in enumerate(value):
        name = item.get("name", number) if isinstance(item, dict) else number
        require_known_fields(item, kind, where=f"{where}[{name}]")


def _mapping(value: Any, *, where: str) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{where}: {_shown(value)} is not a mapping; write its fields as NAME: VALUE")
    return value


def _subject(kind: str) -> str:
    return {
        "PodSpec": "a pod",
        "TrainJobPodSpec": "a pod of a TrainJob",
        "ObjectMeta": "metadata",
        "SkyPilotTask": "a SkyPilot task",
        "RuntimeEnvironment": "a runtime environment",
    }.get(kind, f"a {kind}")


def _quoted(value: Any) -> str:
    return f'"{str(value).lower() if isinstance(value, bool) else value}"'


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
