"""Kubernetes' strategic merge: mappings merge by field, named lists by their key, other lists are replaced."""

from typing import Any

from planner.launch.manifest_fields import DIRECTIVE, MERGE_KEYS

MERGED_SETS = ("finalizers",)
"""Lists of strings to which new ones are added."""


def merge(base: Any, patch: Any, *, where: str) -> Any:
    """`patch` over `base`; neither is changed.

    None removes a field; `$patch: delete` removes a mapping or the item of its key, `$patch: replace` takes the patch
    alone. Raises ValueError that begins with `where` and the field for an item without its key, and for a mapping or a
    list where the other is.
    """
    if not isinstance(patch, dict):
        if isinstance(base, dict) or (isinstance(base, list) and not isinstance(patch, list)):
            there = "a mapping" if isinstance(base, dict) else "a list"
            raise ValueError(f"{where}: {patch!r} where {there} is; write it as one, or null to remove it")
        return patch
    if isinstance(base, list):
        raise ValueError(f"{where}: a mapping in place of a list; begin each item with a hyphen")
    if patch.get(DIRECTIVE) == "replace" or not isinstance(base, dict):
        base = {}
    result = dict(base)
    for name, value in patch.items():
        if name == DIRECTIVE:
            continue
        if value is None or _is_deletion(value):
            result.pop(name, None)
        elif name in MERGE_KEYS and _are_mappings(value):
            result[name] = _merge_list(result.get(name, []), value, key=MERGE_KEYS[name], where=f"{where}.{name}")
        elif name in MERGED_SETS and isinstance(value, list):
            result[name] = list(dict.fromkeys([*result.get(name, []), *value]))
        else:
            result[name] = merge(result.get(name), value, where=f"{where}.{name}")
    return result


def _merge_list(base: Any, patch: list[dict[str, Any]], *, key: str, where: str) -> list[Any]:
    """Items of one key become one in the place of the first; new ones follow."""
    if not _are_mappings(base):
        raise ValueError(
            f"{where}: its present items are no mappings and cannot be merged by {key}; replace the field above"
        )
    if any(item == {DIRECTIVE: "replace"} for item in patch):
        base, patch = [], [item for item in patch if item != {DIRECTIVE: "replace"}]
    items = {item.get(key): item for item in base}
    for number, item in enumerate(patch):
        if item.get(key) is None:
            raise ValueError(f"{where}[{number}]: has no {key}, by which {where.rpartition('.')[2]} are merged; add it")
        if _is_deletion(item):
            items.pop(item[key], None)
        else:
            items[item[key]] = merge(items.get(item[key]), item, where=f"{where}[{item[key]}]")
    return list(items.values())


def _are_mappings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, dict) for item in value)


def _is_deletion(value: Any) -> bool:
    return isinstance(value, dict) and value.get(DIRECTIVE) == "delete"
