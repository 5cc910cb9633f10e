"""JSON and YAML of other programs: a name with two values in one place is refused, or one of them would be lost."""

import json
from collections.abc import Hashable
from typing import Any

import yaml


def read_json(text: str) -> Any:
    """As `json.loads`, NaN and infinities included; raises ValueError with what is wrong, or RecursionError."""
    return json.loads(text, object_pairs_hook=_object)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs) and (twice := [name for name, value in pairs if found[name] != value]):
        raise ValueError(f"{twice[0][:60]} stands there twice; keep one")
    return found


def read_yaml(text: str) -> list[Any]:
    """The documents of a text that are not empty; raises ValueError with the line, or RecursionError."""
    try:
        return [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}: " if mark else ""
        raise ValueError(f"{where}not YAML ({getattr(error, 'problem', None) or error}); correct it") from None


class _Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # the fast one where there is one
    def construct_document(self, node: yaml.Node) -> Any:
        """Nothing may hold itself."""
        self.deep_construct = True
        return super().construct_document(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = True) -> dict[Hashable, Any]:
        """What is stated again must be the same scalar, unless it was merged (`<<`)."""
        seen: dict[str, Any] = {}
        for name, value in node.value:
            if not isinstance(name, yaml.ScalarNode) or name.tag == "tag:yaml.org,2002:merge":
                continue
            told = value.value if isinstance(value, yaml.ScalarNode) else value
            if seen.setdefault(name.value, told) != told:
                raise ValueError(f"line {name.start_mark.line + 1}: {name.value} is written twice; write it once")
        return super().construct_mapping(node, deep)  # type: ignore[no-any-return]
