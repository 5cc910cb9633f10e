"""A workload: a profile together with the cluster, the number of microbatches and the options it was meant for."""

import json
from dataclasses import dataclass, field
from typing import Any

from profiles.cluster import Cluster
from profiles.document import to_plain
from profiles.model_profile import ModelProfile, require_integer

WORKLOAD_FORMAT = "pipeline-workload/1"
"""The `format` of the documents that `dump_workload` writes."""

CLUSTER_FORMAT = "pipeline-cluster/1"
"""The `format` of the documents that `dump_cluster` writes."""

_STRICT = {"extra": "forbid", "use_attribute_docstrings": True}


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What one document states; whatever is absent must be given elsewhere."""

    __pydantic_config__ = _STRICT

    profile: ModelProfile
    """What the layers cost."""
    cluster: Cluster | None = None
    """What the machine offers."""
    num_microbatches: int | None = None
    """Microbatches per synchronous iteration."""
    options: dict[str, object] = field(default_factory=dict)
    """Options of the planner that the figures imply, by their names."""

    def __post_init__(self) -> None:
        if self.num_microbatches is not None:
            require_integer("workload: num_microbatches", self.num_microbatches, least=1, most=2**30)


def dump_workload(workload: Workload) -> str:
    """The document of a workload: stable order, defaults left out, one line per layer, edge, device and link."""
    plain = {key: value for key, value in to_plain(workload).items() if value != {}}
    return _render({"format": WORKLOAD_FORMAT, **plain}, levels=3) + "\n"


def dump_cluster(cluster: Cluster) -> str:
    """The document of a cluster alone: one line per device and link."""
    return _render({"format": CLUSTER_FORMAT, **to_plain(cluster)}, levels=2) + "\n"


def _render(value: Any, *, levels: int) -> str:
    """JSON that breaks the lines of the outer `levels` of objects and lists."""
    if levels == 0 or not value or not isinstance(value, dict | list):
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    if isinstance(value, list):
        return "[\n" + ",\n".join(_render(item, levels=levels - 1) for item in value) + "\n]"
    items = (f"{_render(key, levels=0)}: {_render(item, levels=levels - 1)}" for key, item in value.items())
    return "{\n" + ",\n".join(items) + "\n}"
