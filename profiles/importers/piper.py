"""Piper's input files: seconds per sample and bytes per layer and tensor-parallel degree, also with recomputation."""

from collections.abc import Iterable
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from typing import Annotated, Any

from pydantic import Field

from profiles.cluster import Cluster, Device, Link
from profiles.documents.refusal import blaming, refusal, render_value
from profiles.documents.strict_record import StrictRecord
from profiles.documents.validation import validate
from profiles.field_rules import MAX_BYTES
from profiles.importers.neutral import REFERENCE
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile, WidthBytes
from profiles.workload import Workload

Seconds = Annotated[float, Field(ge=0, le=10**4)]
Size = Annotated[float, Field(ge=0, le=MAX_BYTES)]

PLAIN, RECOMPUTING = "vanilla", "activation recomp"
"""The two variants of a layer that Piper's files know."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PiperVariant(StrictRecord):
    """One way to run a layer on one number of devices ("TMPC"), per sample."""

    id: str
    """`vanilla` or `activation recomp`."""
    timePerSample: Seconds
    """Forward and backward together."""
    parameterSize: Size
    """Bytes of the weights on each device."""
    memoryUsageA: Size
    """Bytes per sample in flight on each device."""
    memoryUsageB: Size
    """Bytes held in any case on each device."""
    syncTimeFw: dict[str, Size]
    """Bytes that the group exchanges for the edge from each producer, by its id."""
    syncTimeBw: dict[str, Size]
    """The same for the edge to each consumer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _PiperNode(StrictRecord):
    """One layer."""

    id: int
    name: str = ""
    TMPCs: dict[str, tuple[_PiperVariant, ...]]
    """Its variants by the tensor-parallel degree."""

    def variant(self, width: int, name: str) -> _PiperVariant | None:
        """The variant called `name` on `width` devices, if it was measured."""
        return next((variant for variant in self.TMPCs.get(str(width), ()) if variant.id == name), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class _PiperEdge(StrictRecord):
    """A tensor between two layers."""

    sourceId: int
    destId: int
    communicationCost: Size


@dataclass(frozen=True, slots=True, kw_only=True)
class PiperDocument(StrictRecord):
    """A whole file."""

    maxDevices: Annotated[int, Field(ge=1, le=10_000)]
    maxMemoryPerDevice: Size
    bandwidth: Annotated[float, Field(ge=1, le=MAX_BYTES)]
    mbsInBatch: Annotated[int, Field(ge=1, le=2**30)]
    nodes: tuple[_PiperNode, ...]
    edges: tuple[_PiperEdge, ...]

    @property
    def widths(self) -> tuple[int, ...]:
        """Tensor-parallel degrees, ascending."""
        return tuple(sorted({int(width) for node in self.nodes for width in node.TMPCs}))


def is_piper(tree: dict[str, object]) -> bool:
    """Whether a parsed document has the fields of Piper's files."""
    return "nodes" in tree and "maxMemoryPerDevice" in tree


def import_piper(tree: object, *, source: str, device_type: str = REFERENCE) -> Workload:
    """The workload of a parsed file; raises ValueError that names the source, the field, the value and the remedy."""
    document = read_piper(tree, source=source)
    with blaming(source):
        return convert(document, name=PurePath(source).stem or "piper", device_type=device_type)


def read_piper(tree: object, *, source: str) -> PiperDocument:
    """The file as it is, its references checked; raises ValueError like `import_piper`."""
    document = validate(PiperDocument, tree, source=source)
    problems = list(_problems(document))
    if problems:
        raise refusal(source, *problems)
    return document


def _problems(document: PiperDocument) -> Iterable[str]:
    """What is wrong with the file beyond the shape of its fields."""
    known = {node.id for node in document.nodes}
    for position, edge in enumerate(document.edges):
        for field in ("sourceId", "destId"):
            if getattr(edge, field) not in known:
                yield f"edges[{position}].{field} = {getattr(edge, field)} is no node; add it or correct the id"
    for position, node in enumerate(document.nodes):
        if not any(key == "1" for key in node.TMPCs):
            yield f"nodes[{position}].TMPCs has no degree 1; measure the layer on one device"
        for key, variants in node.TMPCs.items():
            where = f"nodes[{position}].TMPCs[{render_value(key)}]"
            if not (key.isascii() and key.isdecimal() and 1 <= int(key[:5]) <= 4096):
                yield f"{where} is not a degree; give a whole number of devices from 1 to 4096"
            yield from _variant_problems(where, variants)


def _variant_problems(where: str, variants: tuple[_PiperVariant, ...]) -> Iterable[str]:
    names = [variant.id for variant in variants]
    for index, name in enumerate(names):
        if name not in (PLAIN, RECOMPUTING):
            yield f'{where}[{index}].id = {render_value(name)} is not known; give "{PLAIN}" or "{RECOMPUTING}"'
    if len(set(names)) < len(names):
        yield f"{where} lists a variant twice; keep one of them"
    if PLAIN not in names:
        yield f'{where} has no variant "{PLAIN}"; measure the layer without recomputation as well'


def convert(document: PiperDocument, *, name: str, device_type: str = REFERENCE) -> Workload:
    """The same workload in integer nanoseconds and bytes, with the assumptions in the profile's provenance."""
    names = {node.id: f"{node.id}:{node.name}" for node in document.nodes}
    devices = tuple(
        Device(name=f"gpu{number}", type=device_type, memory_bytes=int(document.maxMemoryPerDevice))
        for number in range(document.maxDevices)
    )
    bandwidth = int(document.bandwidth)
    return Workload(
        profile=ModelProfile(
            name=name,
            layers=tuple(_convert_node(node, names[node.id], device_type=device_type) for node in document.nodes),
            edges=tuple(
                Edge(producer=names[edge.sourceId], consumer=names[edge.destId], bytes=_bytes(edge.communicationCost))
                for edge in document.edges
            ),
            microbatch_size=1,
            scaling="linear",
            provenance=" ".join(_PROVENANCE),
        ),
        cluster=Cluster(
            name=f"{document.maxDevices} devices, each with {bandwidth / 1e9:g} GB/s to the others",
            devices=devices,
            links=tuple(Link(a=device.name, b="switch", bandwidth_bytes_per_s=bandwidth) for device in devices),
            switches=("switch",),
        ),
        num_microbatches=document.mbsInBatch,
        options={"recompute": True, "max_width": max(document.widths)},
    )


_PROVENANCE = (
    "Source: a Piper input file (msr-fiddle/piper, MIT).",
    "One microbatch is one sample; times are read as seconds per sample and rounded to whole nanoseconds.",
    "Only forward and backward together were measured: assumed one third forward and two thirds backward, the latter "
    "half input gradient and half weight gradient for layers with weights, all input gradient for the others; no gain "
    "from fusing the two.",
    "Widths are the tensor-parallel degrees; their times hold the communication inside a group.",
    "The stash is memoryUsageA and the state memoryUsageB without recomputation; layers with weights are assumed to "
    "hold their whole stash until the end of W.",
    "Recomputation: the time is the difference of the two variants, the checkpoint is memoryUsageA of the second; its "
    "memoryUsageB is left out, because it is the state and the rest of the stash, up to 0.3 MB per layer.",
    "What a group exchanges where an edge leaves or enters its stage (syncTimeFw, syncTimeBw) is left out.",
)


def _convert_node(node: _PiperNode, name: str, *, device_type: str) -> Layer:
    has_weights = _require(node.variant(1, PLAIN)).parameterSize > 0
    widths = sorted(int(width) for width in node.TMPCs)
    held = {width: _convert_bytes(node, width, has_weights=has_weights) for width in widths}
    return Layer(
        name=name,
        costs=tuple(_convert_cost(node, width, device_type=device_type) for width in widths),
        **held[1],
        wider=tuple(WidthBytes(width=width, **held[width]) for width in widths if width > 1),
    )


def _convert_bytes(node: _PiperNode, width: int, *, has_weights: bool) -> dict[str, Any]:
    plain = _require(node.variant(width, PLAIN))
    return {
        "parameter_bytes": _bytes(plain.parameterSize),
        "state_bytes": _bytes(plain.memoryUsageB),
        "stash_bytes": _bytes(plain.memoryUsageA),
        "weight_stash_bytes": _bytes(plain.memoryUsageA) if has_weights else 0,
        "checkpoint_bytes": _checkpoint_bytes(node, width),
    }


def _checkpoint_bytes(node: _PiperNode, width: int) -> int:
    """What recomputation leaves of the stash; all of it where recomputation was not measured."""
    chosen = node.variant(width, RECOMPUTING) or _require(node.variant(width, PLAIN))
    return _bytes(chosen.memoryUsageA)


def _convert_cost(node: _PiperNode, width: int, *, device_type: str) -> LayerCost:
    plain, recomputing = _require(node.variant(width, PLAIN)), node.variant(width, RECOMPUTING)
    total = _nanoseconds(plain.timePerSample)
    extra = 0 if recomputing is None else _nanoseconds(recomputing.timePerSample) - total
    if extra < 0:
        raise ValueError(
            f"node {node.id} at degree {width}: timePerSample with recomputation is {-extra / 1e9:g} s less than "
            "without; measure it again"
        )
    forward = round(Fraction(total, 3))
    weight_grad = (total - forward) // 2 if plain.parameterSize > 0 else 0
    return LayerCost(
        device_type=device_type,
        width=width,
        forward_ns=forward,
        input_grad_ns=total - forward - weight_grad,
        weight_grad_ns=weight_grad,
        recompute_ns=extra,
    )


def _require(variant: _PiperVariant | None) -> _PiperVariant:
    assert variant is not None  # read_piper refuses a degree without the plain variant
    return variant


def _nanoseconds(seconds: float) -> int:
    return round(Decimal(repr(seconds)).scaleb(9))


def _bytes(size: float) -> int:
    return round(size)
