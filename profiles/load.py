"""The only place that opens documents: files, standard input and demos, in our own form or a foreign one."""

import difflib
import os
import sys
from functools import cache
from importlib import resources
from pathlib import Path

from profiles.cluster import Cluster
from profiles.documents.refusal import refusal, render_value
from profiles.documents.strict_json import MAX_DOCUMENT_BYTES, decode_text, parse_json
from profiles.documents.validation import validate
from profiles.importers.neutral import import_neutral
from profiles.importers.pipedream import import_pipedream, is_pipedream
from profiles.importers.piper import import_piper, is_piper
from profiles.model_profile import ModelProfile
from profiles.workload import CLUSTER_FORMAT, PROFILE_FORMAT, WORKLOAD_FORMAT, Workload, dump_workload

__all__ = [
    "Workload",
    "demo_names",
    "dump_workload",
    "load_cluster",
    "load_workload",
    "parse_workload",
    "workload_of",
]

Source = str | os.PathLike[str]
"""A path, `demo:NAME`, or `-` for standard input."""

_KINDS: dict[str, type[Workload | ModelProfile | Cluster]] = {
    WORKLOAD_FORMAT: Workload,
    PROFILE_FORMAT: ModelProfile,
    CLUSTER_FORMAT: Cluster,
}

_OLD_KINDS: dict[str, type[Workload | ModelProfile]] = {
    "pipeline-workload/1": Workload,
    "pipeline-profile/1": ModelProfile,
}
"""Version 1 may leave out the size of a microbatch: then it is unknown."""


_HEAD = ("format", "$schema")
"""What a document says about itself."""


def load_workload(source: Source) -> Workload:
    """The workload of a document; of a bare profile, a workload without a cluster.

    Raises ValueError that names the file, the path inside it, the value and the remedy; so do all functions here.
    """
    name, data = _read(source)
    return parse_workload(data, source=name)


def load_cluster(source: Source) -> Cluster:
    """The cluster of a document."""
    name, data = _read(source)
    document = _parse(data, source=name)
    cluster = document.cluster if isinstance(document, Workload) else document
    if cluster is None:
        raise refusal(name, "states no cluster; give a pipeline-cluster/1 document, or a workload with a cluster")
    return cluster


def parse_workload(text: bytes, *, source: str) -> Workload:
    """The workload of the bytes of a document that is called `source` in messages."""
    return _require_workload(_parse(text, source=source), source=source)


def workload_of(tree: object, *, source: str) -> Workload:
    """The workload of a document that `strict_json.parse_json` has read, perhaps as part of a larger one."""
    return _require_workload(_document_of(tree, source=source), source=source)


def _require_workload(document: Workload | Cluster, *, source: str) -> Workload:
    if isinstance(document, Cluster):
        raise refusal(source, "states only a cluster; give a profile or a workload, and this file as --cluster")
    return document


@cache
def demo_names() -> tuple[str, ...]:
    """The names that `demo:NAME` accepts, in alphabetical order."""
    names = (Path(entry.name) for entry in resources.files("profiles.samples").iterdir())
    return tuple(sorted(name.stem for name in names if name.suffix == ".json"))


def _read(source: Source) -> tuple[str, bytes]:
    """What messages call the source, and its bytes: at most one more than a document may have."""
    name = os.fspath(source)
    if name == "-":
        return "<stdin>", sys.stdin.buffer.read(MAX_DOCUMENT_BYTES + 1)
    if name.startswith("demo:"):
        return name, _read_demo(name.removeprefix("demo:"))
    try:
        with open(name, "rb") as file:
            return name, file.read(MAX_DOCUMENT_BYTES + 1)
    except OSError as error:
        raise refusal(
            name, f"cannot be read ({error.strerror}); give a file, demo:NAME, or - for standard input"
        ) from None
    except ValueError:
        raise refusal(render_value(name), "is not a path; give a file, demo:NAME, or - for standard input") from None


def _read_demo(name: str) -> bytes:
    if name not in demo_names():
        meant = difflib.get_close_matches(name[:100], demo_names(), n=1)
        remedy = f"did you mean demo:{meant[0]}?" if meant else f"choose one of {', '.join(demo_names())}"
        raise refusal(f"demo:{name}"[:100], f"no such demo; {remedy}")
    return resources.files("profiles.samples").joinpath(f"{name}.json").read_bytes()


def _parse(data: bytes, *, source: str) -> Workload | Cluster:
    """The document in whichever form it is written; a bare profile becomes a workload."""
    text = decode_text(data, source=source)
    if is_pipedream(text):
        return import_pipedream(text, source=source)
    return _document_of(parse_json(text, source=source), source=source)


def _document_of(tree: object, *, source: str) -> Workload | Cluster:
    if not isinstance(tree, dict):
        raise refusal(source, f"the document = {render_value(tree)} is not an object; give {{...}}")
    if "format" not in tree and _is_neutral(tree):
        return import_neutral(tree, source=source)
    if "format" not in tree and is_piper(tree):
        return import_piper(tree, source=source)
    kind = _kind(tree, source=source)
    plain = {key: value for key, value in tree.items() if key not in _HEAD}
    _settle_size(plain, kind=kind, is_old=tree["format"] in _OLD_KINDS, source=source)
    document = validate(kind, plain, source=source)
    return Workload(profile=document) if isinstance(document, ModelProfile) else document


def _kind(tree: dict[str, object], *, source: str) -> type[Workload | ModelProfile | Cluster]:
    form, forms = tree.get("format"), ", ".join(_KINDS)
    if form is None:
        raise refusal(source, f"format is missing; give one of {forms}, or the neutral form (layers with forward_ms)")
    if not isinstance(form, str) or form not in _KINDS | _OLD_KINDS:
        raise refusal(source, f"format = {render_value(form)} is not supported here; give one of {forms}")
    return (_KINDS | _OLD_KINDS)[form]


def _settle_size(plain: dict[str, object], *, kind: type, is_old: bool, source: str) -> None:
    """A profile states the size of a microbatch, or null; one of version 1 that does not has an unknown one.

    Where it has costs at several sizes, it meant 1.
    """
    place, profile = ("", plain) if kind is ModelProfile else ("profile.", plain.get("profile"))
    if kind is Cluster or not isinstance(profile, dict) or "microbatch_size" in profile or "layers" not in profile:
        return
    if not is_old:
        raise refusal(
            source,
            f"{place}microbatch_size is missing; state the samples of a microbatch, or null if unknown (then no "
            "program can run replicas)",
        )
    if _has_sizes(profile["layers"]):
        profile = {**profile, "microbatch_size": 1}
        plain.update(profile if kind is ModelProfile else {"profile": profile})


def _has_sizes(layers: object) -> bool:
    """Whether some cost states the size it was measured at."""
    costs = [layer.get("costs") for layer in layers if isinstance(layer, dict)] if isinstance(layers, list) else []
    return any(
        isinstance(cost, dict) and cost.get("microbatch_size") is not None
        for each in costs
        if isinstance(each, list)
        for cost in each
    )


def _is_neutral(tree: dict[str, object]) -> bool:
    layers = tree.get("layers")
    return isinstance(layers, list) and any(isinstance(layer, dict) and "forward_ms" in layer for layer in layers)
