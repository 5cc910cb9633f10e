"""The neutral workload form: layers in milliseconds on a reference device, devices by speed, links by their ends."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from fractions import Fraction
from math import ceil
from typing import Annotated

from pydantic import Field

from profiles.cluster import Cluster, Device, Link
from profiles.documents.refusal import blaming
from profiles.documents.strict_record import StrictRecord
from profiles.documents.validation import validate
from profiles.field_rules import MAX_BYTES, MAX_SAMPLES
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile
from profiles.workload import Workload

Milliseconds = Annotated[float, Field(ge=0, le=10**7)]
Bytes = Annotated[int, Field(ge=0, le=MAX_BYTES)]

REFERENCE = "reference"
"""Type of the device that the figures were measured on."""

_LENIENT = {"extra": "ignore"}


@dataclass(frozen=True, slots=True, kw_only=True)
class NeutralLayer(StrictRecord):
    """One layer, per microbatch on the reference device; its backward is I + W, its gradients are `param_bytes`."""

    name: str
    forward_ms: Milliseconds
    backward_ms: Milliseconds
    input_grad_ms: Milliseconds | None = None
    """None: with parameters half of the backward, recorded as an assumption; without, all of it."""
    weight_grad_ms: Milliseconds | None = None
    """None: the rest of the backward."""
    param_bytes: Bytes
    activation_bytes: Bytes
    """Size of each edge that leaves the layer."""
    stash_bytes: Bytes | None = None
    """None: `activation_bytes`."""
    weight_stash_bytes: Bytes | None = None
    """None: the stash if the layer has parameters, else 0."""
    static_bytes: Bytes | None = None
    """None: `param_bytes` times `static_multiplier`."""

    def __post_init__(self) -> None:
        owner = f"layer {self.name[:80]!r}"
        if (self.input_grad_ms is None) != (self.weight_grad_ms is None):
            raise ValueError(f"{owner}: one of input_grad_ms and weight_grad_ms is missing; give both or none")
        if self.input_grad_ms is not None and self.weight_grad_ms is not None:
            total = self.input_grad_ms + self.weight_grad_ms
            if abs(total - self.backward_ms) > 1e-5 + 1e-3 * self.backward_ms:
                raise ValueError(
                    f"{owner}: backward_ms = {self.backward_ms} is not input_grad_ms + weight_grad_ms = {total:.6g}; "
                    "correct one of the three"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class _NeutralDevice(StrictRecord):
    """One device; an operation takes its reference time divided by `speed`."""

    name: str
    memory_bytes: Bytes
    speed: Annotated[float, Field(ge=1e-3, le=1e3)] = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _NeutralLink(StrictRecord):
    """A duplex link between two devices."""

    a: str
    b: str
    bandwidth_bytes_per_s: Annotated[float, Field(ge=1, le=MAX_BYTES)]
    latency_s: Annotated[float, Field(ge=0, le=1000)] = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class _NeutralCluster(StrictRecord):
    """Devices and the links between them."""

    devices: tuple[_NeutralDevice, ...]
    links: tuple[_NeutralLink, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class NeutralMeta:
    """The remarks that change how the figures are read; all others are ignored."""

    __pydantic_config__ = _LENIENT

    static_multiplier: Annotated[float, Field(ge=0, le=1000)] = 3.0
    memory_semantics: str = ""
    """If it speaks of an activation budget, `receive_buffers` is 0."""
    cluster_note: str = ""
    microbatch_size: Annotated[int, Field(ge=1, le=MAX_SAMPLES)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class NeutralWorkload(StrictRecord):
    """A whole document; `edges` holds pairs of positions in `layers`."""

    name: str
    source: str = ""
    layers: tuple[NeutralLayer, ...]
    edges: tuple[tuple[int, int], ...]
    cluster: _NeutralCluster | None = None
    microbatches: int | None = None
    meta: NeutralMeta = field(default_factory=NeutralMeta)

    def __post_init__(self) -> None:
        for position, edge in enumerate(self.edges):
            if not all(0 <= end < len(self.layers) for end in edge):
                raise ValueError(f"edges[{position}] = {list(edge)} leaves the {len(self.layers)} layers; count from 0")


def import_neutral(tree: object, *, source: str) -> Workload:
    """The workload of a parsed document in the neutral form; raises ValueError that names the source and the remedy."""
    neutral = validate(NeutralWorkload, tree, source=source)
    with blaming(source):
        return convert(neutral)


def convert(neutral: NeutralWorkload, *, device_type: str = REFERENCE) -> Workload:
    """The same workload in integer nanoseconds and bytes, with the assumptions in the profile's provenance."""
    cluster, layers = neutral.cluster, neutral.layers
    speeds = [1.0, *(device.speed for device in cluster.devices)] if cluster else [1.0]
    types = {speed: device_type if speed == 1 else f"{device_type}/{speed}" for speed in speeds}
    return Workload(
        profile=ModelProfile(
            name=neutral.name,
            layers=tuple(_convert_layer(layer, types, multiplier=neutral.meta.static_multiplier) for layer in layers),
            edges=tuple(
                Edge(producer=layers[a].name, consumer=layers[b].name, bytes=layers[a].activation_bytes)
                for a, b in neutral.edges
            ),
            microbatch_size=neutral.meta.microbatch_size,
            scaling="linear",
            provenance=" ".join(_provenance(neutral)),
        ),
        cluster=_convert_cluster(neutral, types),
        num_microbatches=neutral.microbatches,
        options={"receive_buffers": 0} if neutral.meta.memory_semantics else {},
    )


def _convert_layer(layer: NeutralLayer, types: dict[float, str], *, multiplier: float) -> Layer:
    stash = layer.activation_bytes if layer.stash_bytes is None else layer.stash_bytes
    weight_stash = layer.weight_stash_bytes
    if weight_stash is None:
        weight_stash = stash if layer.param_bytes else 0
    state = layer.static_bytes
    if state is None:
        state = ceil(Fraction(repr(multiplier)) * layer.param_bytes)
    return Layer(
        name=layer.name,
        costs=tuple(_convert_cost(layer, device_type, speed=speed) for speed, device_type in types.items()),
        parameter_bytes=layer.param_bytes,
        state_bytes=state,
        stash_bytes=stash,
        weight_stash_bytes=weight_stash,
    )


def _convert_cost(layer: NeutralLayer, device_type: str, *, speed: float) -> LayerCost:
    input_grad, weight_grad = _split_backward_ns(layer)
    slowness = 1 / Fraction(repr(speed))
    return LayerCost(
        device_type=device_type,
        forward_ns=round(_milliseconds_to_ns(layer.forward_ms) * slowness),
        input_grad_ns=round(input_grad * slowness),
        weight_grad_ns=round(weight_grad * slowness),
    )


def _split_backward_ns(layer: NeutralLayer) -> tuple[int, int]:
    """I and W: as measured; else all of the backward is I without weights, and half of it with weights."""
    if layer.input_grad_ms is not None and layer.weight_grad_ms is not None:
        return _milliseconds_to_ns(layer.input_grad_ms), _milliseconds_to_ns(layer.weight_grad_ms)
    backward = _milliseconds_to_ns(layer.backward_ms)
    input_grad = round(Fraction(backward, 2)) if layer.param_bytes else backward
    return input_grad, backward - input_grad


def _milliseconds_to_ns(milliseconds: float) -> int:
    return _shift(milliseconds, places=6)


def _shift(value: float, *, places: int) -> int:
    """`value` as it was written, in decimal, with the point moved right by `places`; rounded half to even."""
    return round(Decimal(repr(value)).scaleb(places))


def _convert_cluster(neutral: NeutralWorkload, types: dict[float, str]) -> Cluster | None:
    if neutral.cluster is None:
        return None
    return Cluster(
        name=neutral.meta.cluster_note or f"{neutral.name} cluster",
        devices=tuple(
            Device(name=device.name, type=types[device.speed], memory_bytes=device.memory_bytes)
            for device in neutral.cluster.devices
        ),
        links=tuple(
            Link(
                a=link.a,
                b=link.b,
                bandwidth_bytes_per_s=round(link.bandwidth_bytes_per_s),
                latency_ns=_shift(link.latency_s, places=9),
            )
            for link in neutral.cluster.links
        ),
    )


def _provenance(neutral: NeutralWorkload) -> Iterable[str]:
    """Where the figures come from, then one sentence for every assumption that was made."""
    layers, meta = neutral.layers, neutral.meta
    yield f"Source: {neutral.source or 'not stated'}."
    yield "Times are per microbatch, rounded to whole nanoseconds."
    yield "One size was measured: shares of a microbatch are assumed to take their part of its time."
    if any(layer.input_grad_ms is None and layer.param_bytes for layer in layers):
        yield (
            "The split of the backward pass was not measured: assumed half input gradient and half weight gradient for "
            "layers with weights, all input gradient for the others; no gain from fusing the two."
        )
    if any(layer.stash_bytes is None for layer in layers):
        yield "The stash was not measured: assumed to be the layer's own output."
    if any(layer.weight_stash_bytes is None and layer.param_bytes for layer in layers):
        yield "Layers with weights are assumed to hold their whole stash until the end of W."
    if meta.static_multiplier and any(layer.static_bytes is None and layer.param_bytes for layer in layers):
        yield f"Resident state is assumed to be {meta.static_multiplier:g} x the parameter bytes."
    if neutral.cluster and any(device.speed != 1 for device in neutral.cluster.devices):
        yield f"Costs on a device of type {REFERENCE}/s are the reference costs divided by s."
    if meta.memory_semantics:
        yield f"Memory: {meta.memory_semantics}; receive buffers are not counted."
