"""A workload: a profile together with the cluster, the number of microbatches and the options it was meant for."""

import json
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from profiles.cluster import Cluster
from profiles.documents.canonical_json import to_plain
from profiles.documents.strict_record import StrictRecord
from profiles.field_rules import MAX_SAMPLES, NotEmpty, Samples, Whole, require_fields, require_integer
from profiles.model_profile import ModelProfile

WORKLOAD_FORMAT = "pipeline-workload/2"
"""The `format` of the documents that `dump_workload` writes."""

PROFILE_FORMAT = "pipeline-profile/2"
"""The `format` of a document that states a profile alone."""

CLUSTER_FORMAT = "pipeline-cluster/1"
"""The `format` of the documents that `dump_cluster` writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload(StrictRecord):
    """What one document states; whatever is absent must be given elsewhere."""

    profile: ModelProfile
    """Layers with costs and bytes, and edges."""
    cluster: Cluster | None = None
    """Devices with memory, and links."""
    num_microbatches: Annotated[int, Whole("microbatches", least=1, most=2**30)] | None = None
    """Microbatches per synchronous iteration."""
    global_batch_size: Annotated[int, Whole("samples", least=1, most=2**30)] | None = None
    """Samples per iteration, instead of `num_microbatches`: the planner decides on size and number of microbatches."""
    microbatch_sizes: tuple[Samples, ...] | None = None
    """The sizes among which it decides; None: every measured one that divides the global batch."""
    microbatches: Annotated[tuple[Samples, ...], NotEmpty("list one size per microbatch, or leave it out")] | None = (
        None
    )
    """The size of every microbatch, where they differ, in the unit of the profile's `microbatch_size` (samples or
    tokens), in place of `num_microbatches` and `global_batch_size`."""
    options: dict[str, object] = field(default_factory=dict)
    """Options of the planner that the figures imply, by their names."""

    def __post_init__(self) -> None:
        require_fields("workload", self)
        if self.microbatches is not None:
            self._require_listed()
        if self.global_batch_size is not None:
            if self.num_microbatches is not None:
                raise ValueError(
                    f"workload: num_microbatches = {self.num_microbatches} and global_batch_size = "
                    f"{self.global_batch_size} are both given; keep one of them"
                )
        elif self.microbatch_sizes is not None:
            raise ValueError(
                f"workload: microbatch_sizes = {list(self.microbatch_sizes)[:8]} without global_batch_size; add it, or "
                "leave them out"
            )

    def _require_listed(self) -> None:
        """A list of microbatches says how many there are, and how large."""
        for size in self.microbatches or ():
            require_integer("workload: microbatches", size, least=1, most=MAX_SAMPLES)
        stated = {"num_microbatches": self.num_microbatches, "global_batch_size": self.global_batch_size}
        for name, value in stated.items():
            if value is not None:
                raise ValueError(
                    f"workload: microbatches lists {len(self.microbatches or ())} sizes, and {name} = {value} is given "
                    "too; keep one: the list states the number and sizes of microbatches"
                )

    def with_batch(self, size: int, microbatch_sizes: tuple[int, ...] | None) -> "Workload":
        """The workload with a global batch to cut, whatever it said before."""
        return replace(
            self,
            num_microbatches=None,
            global_batch_size=size,
            microbatch_sizes=microbatch_sizes,
            microbatches=None,
        )

    def with_microbatches(self, count: int) -> "Workload":
        """The workload with so many microbatches of the profile's own size, whatever it said before."""
        return replace(self, num_microbatches=count, global_batch_size=None, microbatch_sizes=None, microbatches=None)

    def cut_into(self, count: int) -> "Workload":
        """The workload with so many microbatches: of its global batch if it states one, else of the profile's own size.

        Raises ValueError where the global batch cannot be cut so, or is to stay whole.
        """
        whole = self.global_batch_size
        if count > 1 and whole is not None and self.microbatch_sizes == (whole,):
            raise ValueError(
                f"num_microbatches = {count}, but microbatch_sizes = [{whole}] keeps the workload's batch whole: "
                "cut otherwise it may train otherwise (the profile's provenance says why); leave the number out, or "
                "state the sizes that may be (--microbatch-sizes) instead"
            )
        if whole is None or whole == count * (self.profile.microbatch_size or 0):
            return self.with_microbatches(count)
        if count < 1 or whole % count:
            raise ValueError(
                f"num_microbatches = {count}, but the workload's global batch of {whole} samples cannot be cut into so "
                "many equal microbatches; give a number that divides it, or leave it out: the planner decides"
            )
        return self.with_batch(whole, (whole // count,))

    def with_list(self, sizes: tuple[int, ...]) -> "Workload":
        """The workload with microbatches of these sizes, whatever it said before."""
        return replace(self, num_microbatches=None, global_batch_size=None, microbatch_sizes=None, microbatches=sizes)


def dump_workload(workload: Workload) -> str:
    """The document of a workload: stable order, defaults left out, one line per layer, edge, device and link."""
    return _render(workload_to_plain(workload), levels=3) + "\n"


def workload_to_plain(workload: Workload) -> dict[str, Any]:
    """The document as plain dictionaries and lists; the size of a microbatch is stated even where it is unknown."""
    plain = {key: value for key, value in to_plain(workload).items() if value != {}}
    return {"format": WORKLOAD_FORMAT, **plain, "profile": _profile_to_plain(workload.profile)}


def _profile_to_plain(profile: ModelProfile) -> dict[str, Any]:
    """A profile as documents of version 2 state it: with the size of a microbatch, or null."""
    plain = to_plain(profile)
    return {**plain, "microbatch_size": profile.microbatch_size}


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
