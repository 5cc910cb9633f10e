"""Files with patches of manifests: YAML or JSON, one document or several."""

from collections.abc import Hashable, Sequence
from typing import Any

import yaml

from planner.launch.manifest_patch import ManifestPatch
from profiles.documents.strict_json import read_text


class _Loader(yaml.SafeLoader):  # type: ignore[misc]
    """Refuses a field that is written twice, of which the other would be lost."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for name, _ in node.value:
            if name.value in seen and name.tag != "tag:yaml.org,2002:merge":
                raise ValueError(f"line {name.start_mark.line + 1}: {name.value} is written twice; write it once")
            seen.add(name.value)
        return super().construct_mapping(node, deep)  # type: ignore[no-any-return]


def read_patches(files: Sequence[str]) -> tuple[ManifestPatch, ...]:
    """The documents of all files, in order; a list counts as its items. Raises ValueError or OSError with the file."""
    return tuple(patch for file in files for patch in _read(file))


def _read(file: str) -> list[ManifestPatch]:
    text = read_text(file)
    try:
        found = [document for document in yaml.load_all(text, Loader=_Loader) if document is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f", line {mark.line + 1}" if mark else ""
        raise ValueError(f"{file}{where}: not YAML ({getattr(error, 'problem', error)}); correct it") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}, {error}") from None
    if not found:
        raise ValueError(f"{file}: is empty; write the fields to patch, or leave --patch out")
    documents = [item for document in found for item in (document if isinstance(document, list) else [document])]
    several = len(documents) > 1
    return [
        ManifestPatch(source=f"{file} ({number})" if several else file, document=document)
        for number, document in enumerate(documents, start=1)
    ]
