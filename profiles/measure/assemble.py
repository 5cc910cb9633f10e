"""Records of layers become a profile; needs no torch.

Where the contract (docs/reference/contract.md) has no word for what was found, the safe side is taken: a stash is never
less than what waits for W, and a layer of which only a part is trained synchronises that part.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from profiles.assumptions import Assumptions, GradientPrecision
from profiles.held_once import HeldOnce
from profiles.host_times import HostTime
from profiles.measure.record import LayerBytes, LayerRecord, spreads_that_count
from profiles.model_profile import FULL, Edge, Layer, LayerCost, ModelProfile, WidthBytes

if TYPE_CHECKING:
    from profiles.measure.measure_layers import Survey

BATCH = ""

Key = tuple[str, int, int]
"""Layer, microbatch size, width."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What the provenance says beside the figures."""

    model: str
    """The argument of `pipeplan profile`: `module:function` or a family with settings."""
    machine: str
    """Processor, system, versions."""
    notes: tuple[str, ...] = ()
    """More sentences."""
    conditions: Literal["busy", "alone"] | None = None
    """Whether other processes computed meanwhile; None: not known."""


def make_profile(
    name: str,
    *,
    takes: Mapping[str, tuple[str, ...]],
    records: Mapping[Key, LayerRecord],
    asked: "Survey",
    origin: Origin,
    is_split: bool = True,
    tied: Iterable[tuple[str, str, int]] = (),
) -> ModelProfile:
    """The profile; `is_split`: a backward may be split into I and W; `tied`: two layers and the bytes of a weight."""
    size, width = asked.microbatch_sizes[0], asked.widths[0]
    main = {layer: records[layer, size, width] for layer in takes}
    return ModelProfile(
        name=name,
        layers=tuple(_layer(layer, records=records, asked=asked, is_split=is_split) for layer in takes),
        held_once=tuple(_held_once(takes, main, tied=tied, is_split=is_split)),
        edges=tuple(_edges(takes, main)),
        microbatch_size=size,
        provenance=_provenance(records, asked=asked, origin=origin),
        conditions=origin.conditions,
        assumptions=_assumptions(main.values()),
    )


PRECISIONS: Mapping[str, GradientPrecision] = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16"}


def _assumptions(records: Iterable[LayerRecord]) -> Assumptions | None:
    """The one type of floating-point numbers that leaves layers, and how an estimate counts attention.

    Torch keeps gradients in the type of weights, and one process holds the whole of the optimizer's state.
    """
    records = tuple(records)
    kinds = {tensor.dtype for record in records for tensor in record.outputs if tensor.has_gradient}
    precision = PRECISIONS.get(kinds.pop()) if len(kinds) == 1 else None
    taken = {record.attention for record in records if record.attention}
    attention: Literal["flash", "unfused"] | None = None if not taken else "unfused" if "unfused" in taken else "flash"
    return Assumptions(precision=precision, gradients=precision, attention=attention, distributed_optimizer=False)


def _layer(name: str, *, records: Mapping[Key, LayerRecord], asked: "Survey", is_split: bool) -> Layer:
    """Where B runs alone nothing waits for W, and the stash is what F saved."""
    size, width = asked.microbatch_sizes[0], asked.widths[0]
    main = records[name, size, width]
    sizes = main.sizes
    if not is_split:
        sizes = replace(sizes, weight_saved=0)
    has_host = any(timing.host_ns is not None for record in records.values() for timing in record.timings.values())
    costs = [_cost(records[name, size_, width_], asked=asked, size=size_, width=width_, has_host=has_host)
             for size_ in asked.microbatch_sizes for width_ in asked.widths]  # fmt: skip
    stash = max(sizes.saved, sizes.weight_saved)
    return Layer(
        name=name,
        costs=tuple(costs),
        parameter_bytes=sizes.trained or sizes.parameters,
        optimizer_bytes=sizes.optimizer if sizes.trained else None,
        state_bytes=sizes.state,
        stash_bytes=stash,
        weight_stash_bytes=sizes.weight_saved if sizes.trained else 0,
        checkpoint_bytes=min(stash, sizes.inputs),
        workspace_bytes=sizes.workspace,
        fixed_workspace_bytes=sizes.fixed_workspace,
        frozen=sizes.parameters > 0 and not sizes.trained,
        splittable=not main.unsplit,
        unsplit_module=main.unsplit,
        wider=tuple(_wider(sizes, width=width_) for width_ in asked.widths if width_ > 1),
    )


def _wider(sizes: LayerBytes, *, width: int) -> WidthBytes:
    """Cores of one host hold a layer once, so each of them counts for its part of it."""
    stash, state, optimizer = max(sizes.saved, sizes.weight_saved), _ceil(sizes.state, width), None
    if sizes.trained and sizes.optimizer is not None:
        optimizer = sizes.optimizer // width
        state = max(state, 2 * _ceil(sizes.trained, width) + optimizer)  # weights and gradients are rounded up, too
    return WidthBytes(
        width=width,
        state_bytes=state,
        stash_bytes=_ceil(stash, width),
        weight_stash_bytes=_ceil(sizes.weight_saved if sizes.trained else 0, width),
        checkpoint_bytes=_ceil(min(stash, sizes.inputs), width),
        workspace_bytes=_ceil(sizes.workspace, width),
        fixed_workspace_bytes=sizes.fixed_workspace // width,
        parameter_bytes=_ceil(sizes.trained or sizes.parameters, width),
        optimizer_bytes=optimizer,
    )


def _ceil(number: int, parts: int) -> int:
    return -(-number // parts)


def _cost(record: LayerRecord, *, asked: "Survey", size: int, width: int, has_host: bool = False) -> LayerCost:
    """A layer without weights to train has no W: what its empty W took belongs to I. Its step stands with one size.

    What its forward takes longer where the backward will be split (N) belongs to I as well: it comes and goes with I.
    So does with recomputation what the forward takes longer where it will be recomputed (C).
    """
    times = {phase: _time(record, phase) for phase in "FNIWBCR"}
    times["I"] += max(0, times["N"] - times["F"]) if times["N"] else 0
    is_trained = record.sizes.trained > 0
    split = times["I"] + times["W"]
    whole = min(times["B"], split)
    has_split = is_trained and not record.unsplit  # an empty W takes some time as well, which belongs to I
    is_main = (size, width) == (asked.microbatch_sizes[0], asked.widths[0])
    recomputing = _recomputing(times)
    return LayerCost(
        device_type=asked.device_type,
        width=width,
        microbatch_size=size if size != asked.microbatch_sizes[0] else None,
        forward_ns=times["F"],
        input_grad_ns=times["I"] if has_split else whole,
        weight_grad_ns=times["W"] if has_split else 0,
        backward_ns=whole if has_split and whole < split else None,
        recompute_ns=recomputing,
        optimizer_ns=_time(record, "O") if is_trained and is_main else 0,
        host=_host_times(record, has_split=has_split) if has_host else (),
    )


def _recomputing(times: Mapping[str, int]) -> int:
    """What a backward with recomputation takes longer, and the forward before it."""
    longer = max(0, times["R"] - times["B"]) if times["R"] else 0
    return longer + (max(0, times["C"] - times["F"]) if times["C"] else 0)


def _host_times(record: LayerRecord, *, has_split: bool) -> tuple[HostTime, ...]:
    """What the host takes to ask, distinguished as the card's times are; nothing where a layer was estimated."""
    timings = {phase: record.timings.get(phase) for phase in "FNIWBCR"}
    host = {phase: 0 if timing is None else timing.host_ns or 0 for phase, timing in timings.items()}
    host["I"] += max(0, host["N"] - host["F"]) if host["N"] else 0
    whole = host["B"] or host["I"] + host["W"]
    actions = {"F": host["F"], "I": host["I"] if has_split else whole, "B": whole, FULL: _recomputing(host)}
    actions |= {"W": host["W"]} if has_split else {}
    return tuple(HostTime(action=action, host_ns=ns) for action, ns in actions.items())


def _time(record: LayerRecord, phase: str) -> int:
    """Nanoseconds; 0 where the phase does not happen."""
    timing = record.timings.get(phase)
    return 0 if timing is None else timing.ns


def _edges(takes: Mapping[str, tuple[str, ...]], main: Mapping[str, LayerRecord]) -> Iterable[Edge]:
    for consumer, producers in takes.items():
        for producer in dict.fromkeys(producers):
            if producer != BATCH:
                outputs = main[producer].outputs
                forward = sum(output.num_bytes for output in outputs)
                back = sum(output.num_bytes for output in outputs if output.has_gradient)
                yield Edge(
                    producer=producer,
                    consumer=consumer,
                    bytes=forward,
                    gradient_bytes=None if back == forward and back else back,
                )


def _held_once(
    takes: Mapping[str, tuple[str, ...]],
    main: Mapping[str, LayerRecord],
    *,
    tied: Iterable[tuple[str, str, int]],
    is_split: bool,
) -> Iterable[HeldOnce]:
    """Tensors that layers keep, each with the last layer before that keeps it, and tied weights."""
    pairs: dict[tuple[str, str], list[int]] = {}
    for first, second, num_bytes in tied:
        if 0 < num_bytes <= (trained := main[second].sizes.trained):
            optimizer = (main[second].sizes.optimizer or 0) * num_bytes // trained
            pairs.setdefault((first, second), [0, 0, 0])[0] += 2 * num_bytes + optimizer
    holders: dict[tuple[str, int], tuple[str, int, int]] = {}
    given: dict[str, list[tuple[str, int]]] = {}
    for name, sources in takes.items():
        record = main[name]
        others = sum(len(given[each]) for each in sources if each != BATCH)
        given[BATCH] = [(BATCH, number) for number in range(len(record.takes) - others)]
        arrives = [tensor for each in sources for tensor in given[each]]
        given[name] = [(name, number) for number in range(len(record.outputs))]
        for number, (_, _, source) in enumerate(record.gives):
            if source >= 0:
                given[name][number] = arrives[source]
        kept = dict(zip([*arrives, *given[name]], [*record.takes, *record.gives], strict=False))
        for tensor, (saved, waiting, *_) in kept.items():
            if saved and tensor in holders:
                first, *other = holders[tensor]
                pair = pairs.setdefault((first, name), [0, 0, 0])
                pair[1] += min(saved, other[0])
                pair[2] += min(waiting, other[1]) if is_split and record.sizes.trained else 0
            if saved:
                holders[tensor] = name, saved, waiting
    for (first, second), (state, stash, weight_stash) in pairs.items():
        yield HeldOnce(
            first=first, second=second, state_bytes=state, stash_bytes=stash, weight_stash_bytes=weight_stash
        )


def _provenance(records: Mapping[Key, LayerRecord], *, asked: "Survey", origin: Origin) -> str:
    estimated = list(dict.fromkeys(name for (name, _, _), record in records.items() if not record.is_measured))
    how = "measured" if len(estimated) < len({name for name, _, _ in records}) else "estimated"
    parts = [f"Source: {how} by pipeplan profile of {origin.model} on {origin.machine}"]
    timings = [timing for record in records.values() if record.is_measured for timing in record.timings.values()]
    if timings:
        spreads = spreads_that_count(timings)
        counts, clock = [timing.repetitions for timing in timings], "wall" if asked.device == "cuda" else "thread"
        parts.append(
            f"medians of {min(counts)} to {max(counts)} repetitions after a warm-up, {clock} time; distance of "
            f"the quartiles {100 * spreads[len(spreads) // 2]:.1f} % of the median for the median phase, "
            f"{100 * spreads[-1]:.1f} % for the worst"
        )
    if estimated:
        reasons = {record.estimate for record in records.values() if not record.is_measured}
        shown = ", ".join(estimated[:5]) + (f" and {len(estimated) - 5} more" if len(estimated) > 5 else "")
        parts.append(
            f"ESTIMATE, times from operations and bytes on fake tensors: {shown} ({'; '.join(sorted(reasons)[:2])})"
        )
    unsplit = dict.fromkeys(record.unsplit for record in records.values() if record.unsplit)
    if unsplit:
        names = dict.fromkeys(name for (name, _, _), record in records.items() if record.unsplit)
        parts.append(f"NOT SPLIT, W is part of I: {', '.join(list(names)[:5])} ({', '.join(unsplit)})")
    parts.append("I is a whole backward in which weight gradients are put off as the executor does, W computes them")
    if any(timing.host_ns is not None for timing in timings):
        parts.append("host times are the least that the host took to ask, the others what the card took")
    parts.append("optimizer_ns of a layer is the step of an optimizer that has this layer alone")
    return "; ".join([*parts, *origin.notes]) + "."
