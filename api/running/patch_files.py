"""Files with patches of manifests: YAML or JSON, one document or several."""

from collections.abc import Sequence

from planner.launch.manifest_patch import ManifestPatch
from profiles.documents.strict_json import read_text
from profiles.documents.unique_names import read_yaml


def read_patches(files: Sequence[str]) -> tuple[ManifestPatch, ...]:
    """The documents of all files, in order; a list counts as its items. Raises ValueError or OSError with the file."""
    return tuple(patch for file in files for patch in _read(file))


def _read(file: str) -> list[ManifestPatch]:
    text = read_text(file)
    try:
        found = read_yaml(text)
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
