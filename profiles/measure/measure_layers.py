"""Walk through a model layer by layer, holding one at a time, and measure each that is not like an earlier one."""

import hashlib
import itertools
import json
import logging
import platform
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from fractions import Fraction
from functools import partial
from typing import Any, Literal

import torch

from profiles.doubled_sizes import bent_sizes, ends_and_middle
from profiles.estimates.analytic import DeviceSheet
from profiles.measure.background_load import add_samples
from profiles.measure.clocks import Samples, make_clock
from profiles.measure.devices import free_bytes
from profiles.measure.estimate import (
    count_layer,
    describe_tensors,
    is_out_of_memory,
    make_tensors,
    measure_sheet,
    origin_of,
)
from profiles.measure.materialise import (
    cast,
    find_cut_dependence,
    is_batch_norm,
    is_uneven_loss,
    make_layer,
    other_samples,
    require_carried,
    signature,
)
from profiles.measure.memory import LayerMemory, OperationMemory, optimizer_bytes
from profiles.measure.model import BATCH, Defer, Model, Tensors, as_tuple, sources_of, take_samples
from profiles.measure.record import Journal, LayerBytes, LayerRecord, TensorSpec, Timing, summarise
from profiles.measure.segment import MeasuringEffort, Segment, time_optimizer, time_segment

LEAST_ROUNDS = 3
"""Each of several processes times every layer at least so many times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """Sizes, widths and effort of a measurement of layers."""

    microbatch_sizes: tuple[int, ...]
    """Samples per microbatch; the first is the profile's own."""
    widths: tuple[int, ...] = (1,)
    """Threads that work on a layer together (on the host only); the first is where bytes are taken."""
    device: str = "cpu"
    """A torch device."""
    device_type: str = "cpu"
    """Name of the device type in the document."""
    dtype: str | None = None
    """Weights and activations are brought into this type (`bfloat16`, say); None: as the model makes them."""
    effort: MeasuringEffort = field(default_factory=MeasuringEffort)
    """Repetitions and limits."""
    recomputes: bool = True
    """Also measure recomputation."""
    each_layer: bool = False
    """Measure layers that are alike one by one all the same."""
    memory_bytes: int | None = None
    """A layer that needs more is estimated; None: what is free on the device."""
    sheet: DeviceSheet | None = None
    """Estimate everything for this device type; nothing is run."""
    busy_processes: int = 1
    """So many processes time the layers at once, at the first width; 1: each layer is repeated alone."""
    share: int | None = None
    """A device's share of the global batch: of `microbatch_sizes` those are measured that fit into memory, larger ones
    than this where that takes no long, and only where times are not straight between them. None: all are measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuringStep:
    """How far the walk has come."""

    done: int
    total: int
    label: str
    """The layer, microbatch size and width."""
    how: str
    """`measured`, `estimated`, `alike` (an earlier layer was) or `known` (from the journal)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """Records of all layers."""

    takes: dict[str, tuple[str, ...]]
    """Per layer, in topological order, the producers that it takes."""
    records: dict[tuple[str, int, int], LayerRecord]
    """By layer, microbatch size and width."""
    survey: Survey
    machine: str
    """Processor, operating system, versions."""
    conditions: Literal["busy", "alone"] = "alone"
    """Whether other processes were at work on the same model while layers were timed."""
    interpolated: tuple[int, ...] = ()
    """Sizes between those of `survey` that were left out, ascending."""
    off_line: float = 0.0
    """How far measured times were from the line on which these lie, as a part of it."""
    batch_norm: str = ""
    """Class of a module that takes the statistics of a microbatch; empty: none is known."""
    cut_dependence: str = ""
    """A layer whose results depend on how a batch is cut, and why; empty: none was seen, batch norms aside."""
    tied: tuple[tuple[str, str, int], ...] = ()
    """Two layers that have a weight in common, one after the other, and its bytes."""
    uneven_loss: bool = False
    """Whether the loss of several samples is not the mean (or, where it adds up, the sum) of theirs."""


_Hear = Callable[[MeasuringStep], None]

_Crowd = Callable[[Mapping[str, tuple[str, ...]], Mapping[int, int]], dict[int, dict[str, Samples]]]
"""Times some layers (with what they take) by several processes at once, so many times per size: samples by size and
layer."""

LONG_NS = 3 * 10**9
"""A microbatch above a device's share that takes longer is not measured."""

ROUNDS_NS = 10**8
"""Rounds of a size that was chosen are as many as take so long, or twice what its part of the rounds of the profile's
own size takes, but no more rounds than those: larger microbatches vary less, and take the most of the time."""

_HELD_ALIKE = 2
"""Of layers that are alike so many are held at once where several processes time them."""


def survey_model(
    model: Model,
    survey: Survey,
    *,
    defer: Defer,
    journal: Journal | None = None,
    hear: _Hear | None = None,
    crowd: _Crowd | None = None,
) -> Findings:
    """Measure every layer at every microbatch size and width.

    Raises ValueError that names the layer where the model cannot be run.
    """
    walk = _Walk(model, survey, defer=defer, journal=journal or Journal(), hear=hear or (lambda _: None))
    threads = torch.get_num_threads()
    is_busy = survey.busy_processes > 1
    walk.look()
    try:
        for size in survey.microbatch_sizes if survey.share is None else survey.microbatch_sizes[:1]:
            walk.pass_through(size)
        walk.require_gradient()
        if is_busy and (crowd is None or not walk.is_measured):
            single = replace(survey, busy_processes=1)  # what is too large for one process is too large for several
            return survey_model(model, single, defer=defer, journal=journal, hear=hear)
        take = partial(walk.time_together, crowd) if is_busy and crowd is not None else walk.pass_through_all
        measured, interpolated, off = _measure_sizes(walk, take)
    finally:
        torch.set_num_threads(threads)
    return Findings(
        takes=walk.takes,
        records=walk.records,
        survey=replace(survey, microbatch_sizes=measured),
        machine=describe_machine(survey),
        conditions="busy" if is_busy else "alone",
        interpolated=interpolated,
        off_line=off,
        batch_norm=walk.batch_norm,
        cut_dependence=walk.find_cut_dependence(),
        tied=tuple(walk.find_tied()),
        uneven_loss=walk.has_uneven_loss(),
    )


def _measure_sizes(
    walk: "_Walk", take: Callable[[Mapping[int, int]], None]
) -> tuple[tuple[int, ...], tuple[int, ...], float]:
    """The sizes that were measured, the profile's own first; those left out between them, and how far off a line."""
    survey, rounds = walk.survey, walk.rounds()
    own = survey.microbatch_sizes[0]
    if survey.share is None:
        take(dict.fromkeys(survey.microbatch_sizes, rounds))
        return survey.microbatch_sizes, (), 0.0
    sizes = sorted(size for size in survey.microbatch_sizes if size == own or walk.fits(size))
    take(dict.fromkeys(sorted({own, sizes[0]}, reverse=True), rounds))
    own_ns = max(1.0, sum(walk.times(own)))
    most = max(own, min((size for size in sizes if size >= survey.share), default=own))
    sizes = [size for size in sizes if size <= most or own_ns * size / own <= LONG_NS or survey.sheet is not None]

    def few(chosen: tuple[int, ...]) -> dict[int, int]:
        counts = {size: max(int(ROUNDS_NS * own / (own_ns * size)), 2 * rounds * own // size, 1) for size in chosen}
        return {size: min(rounds, count) for size, count in counts.items()}

    first = ends_and_middle(sizes, own=own)
    take(few(tuple(size for size in first if size not in (own, sizes[0]))))
    bent, off = bent_sizes(sizes, {size: walk.times(size) for size in first}, noise=walk.noise(own))
    take(few(bent))
    measured = (own, *sorted({*first, *bent} - {own}))
    return measured, tuple(size for size in sizes if size not in measured), off


def describe_machine(survey: Survey) -> str:
    """Versions and processor, for the provenance."""
    device = torch.device(survey.device)
    chip = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
    system = f"{platform.system()} {platform.release()}"
    return f"{chip}, {system}, Python {platform.python_version()}, torch {torch.__version__}"


class _Walk:
    """Values are dropped after their last use, and a layer before the next one is made."""

    def __init__(self, model: Model, survey: Survey, *, defer: Defer, journal: Journal, hear: _Hear) -> None:
        self.model, self.survey, self.defer, self.journal, self.hear = model, survey, defer, journal, hear
        self.device = torch.device(survey.device if survey.sheet is None else "meta")
        self.dtype = None if survey.dtype is None else getattr(torch, survey.dtype)
        self.takes = sources_of(model)
        self.last = list(model.layers)[-1]
        self.last_use = {source: name for name, sources in self.takes.items() for source in sources}
        self.records: dict[tuple[str, int, int], LayerRecord] = {}
        walked = 1 if survey.share is not None and survey.busy_processes > 1 else len(survey.microbatch_sizes)
        self.total = len(self.takes) * walked * len(survey.widths)
        self._signatures: dict[str, str] = {}
        self._sheet = survey.sheet
        self._run_here: set[str] = set()
        self._kind_of: dict[str, str] = {}
        self._chosen: tuple[dict[str, str], dict[str, tuple[str, ...]]] | None = None
        self.batch_norm = ""
        self._last_inputs: Tensors | None = None

    def look(self) -> None:
        """At every layer, before any is run; raises ValueError for one whose tensors cannot be carried."""
        for name in self.takes:
            module = make_layer(self.model, name, device=torch.device("meta"))
            require_carried(name, module, optimizer=self.model.optimizer)
            self._signatures[name] = signature(module)
            norms = (type(part).__name__ for part in module.modules() if is_batch_norm(part))
            self.batch_norm = self.batch_norm or next(norms, "")

    @property
    def is_measured(self) -> bool:
        """Whether nothing is an estimate so far."""
        return all(record.is_measured for record in self.records.values())

    def require_gradient(self) -> None:
        """Raise ValueError for a model in which nothing trains."""
        losses = (record.outputs for (name, *_), record in self.records.items() if name == self.last)
        if not any(spec.has_gradient for outputs in losses for spec in outputs):
            raise ValueError(
                f"layer {self.last!r}: no gradient goes back from its loss, so nothing trains; let weights require "
                "gradients, and detach nothing between them and the loss"
            )

    def rounds(self) -> int:
        """Rounds of one process at the profile's own size."""
        return max(LEAST_ROUNDS, -(-self.survey.effort.repetitions // self.survey.busy_processes))

    def fits(self, size: int) -> bool:
        """Whether memory holds a microbatch of so many samples, and what was measured grows in proportion: of the
        largest layer, or, where processes time the whole model at once, of all layers in each of them.
        """
        survey, own, width = self.survey, self.survey.microbatch_sizes[0], self.survey.widths[0]
        limit = free_bytes(self.device) if survey.memory_bytes is None else survey.memory_bytes
        if limit is None or survey.sheet is not None:
            return True
        needed = [self.records[name, own, width].sizes.most(Fraction(size, own)) for name in self.takes]
        if survey.busy_processes == 1:
            return max(needed) <= limit
        return sum(needed) <= (limit // survey.busy_processes if survey.memory_bytes is None else limit)

    def times(self, size: int) -> list[float]:
        """Nanoseconds of F, I and W of all layers, in one order for every size."""
        records = (self.records[name, size, self.survey.widths[0]] for name in self.takes)
        timings = [record.timings.get(phase) for record in records for phase in "FIW"]
        return [0.0 if each is None else float(each.ns) for each in timings]

    def noise(self, size: int) -> float:
        """By what part times of a size vary, by their weight."""
        records = (self.records[name, size, self.survey.widths[0]] for name in self.takes)
        timings = [record.timings[phase] for record in records for phase in "FIW" if phase in record.timings]
        return sum(each.spread * each.ns for each in timings) / max(1, sum(each.ns for each in timings))

    def find_cut_dependence(self) -> str:
        """Of the first layer that has any; empty: none was seen to."""
        found = ((name, each.cut_dependence) for (name, _, _), each in self.records.items())
        return next((f"layer {name!r} {reason}" for name, reason in found if reason), "")

    def find_tied(self) -> Iterator[tuple[str, str, int]]:
        """Of each weight the layers that have it, pair by pair; copies of another shape or type are others."""
        order, meta = list(self.takes), torch.device("meta")
        for names in self.model.tied:
            found: dict[str, torch.Tensor] = {}
            for layer, path in sorted((name.split(":", 1) for name in names), key=lambda part: order.index(part[0])):
                module = make_layer(self.model, layer, device=meta, dtype=self.dtype)
                found.setdefault(layer, module.get_parameter(path))
            for (first, one), (second, other) in itertools.pairwise(found.items()):
                if (one.shape, one.dtype, one.requires_grad) == (other.shape, other.dtype, other.requires_grad):
                    yield first, second, one.numel() * one.element_size()

    def has_uneven_loss(self) -> bool:
        """Whether the loss of the batch depends on how it is cut."""
        if self._last_inputs is None:
            return False
        module = make_layer(self.model, self.last, device=self.device, dtype=self.dtype)
        try:
            return is_uneven_loss(self.model, module, inputs=self._last_inputs)
        except Exception:  # a loss that takes no single samples says nothing
            return False

    def pass_through_all(self, rounds: Mapping[int, int]) -> None:
        """All layers at each of some sizes, unless they were measured; how often is not asked here."""
        for size in rounds:
            if (self.last, size, self.survey.widths[0]) not in self.records:
                self.pass_through(size)

    def pass_through(self, size: int) -> None:
        """All layers at one microbatch size."""
        inputs, target = self.model.batch(0)
        arrives = cast(tuple(take_samples(tensor, size) for tensor in as_tuple(inputs)), self.dtype)
        values: dict[str, Tensors] = {BATCH: tuple(tensor.to(self.device) for tensor in arrives)}
        (self._target,) = cast((take_samples(target, size).to(self.device),), self.dtype)
        for name, sources in self.takes.items():
            given = tuple(tensor for source in sources for tensor in values[source])
            values[name] = self._layer(name, given, size=size)
            if name == self.last and size == self.survey.microbatch_sizes[0] and self.survey.sheet is None:
                self._last_inputs = given
            for source in sources:
                if self.last_use[source] == name:
                    values.pop(source, None)

    def time_together(self, crowd: _Crowd, rounds: Mapping[int, int]) -> None:
        """Times taken by several processes at once take the place of those of layers alone, at the first width.

        Of alike layers only some are run; the samples of all of them are put together. Bytes of a size that was not
        walked through are those of the profile's own.
        """
        if not rounds:
            return
        own, width = self.survey.microbatch_sizes[0], self.survey.widths[0]
        if self._chosen is None:
            self._chosen = self._choose()
        stands, kept = self._chosen
        for size, layers in crowd(kept, rounds).items():
            pooled: dict[str, Samples] = {}
            for name, samples in layers.items():
                add_samples(pooled.setdefault(self._kind_of[name], {}), samples)
            for name in stands:
                record = self.records.get((name, size, width)) or self.records[name, own, width]
                timings = record.timings | self._timings(pooled[self._kind_of[name]], width)
                self.records[name, size, width] = replace(record, timings=timings)

    def _choose(self) -> tuple[dict[str, str], dict[str, tuple[str, ...]]]:
        """Per layer the one that is run in its stead, itself or an earlier one, and what those that are run take."""
        groups: dict[str, list[str]] = {}
        stands: dict[str, str] = {}
        for name in self.takes:
            group = groups.setdefault(self._kind_of[name], [])
            if len(group) < _HELD_ALIKE:
                group.append(name)
            stands[name] = group[-1]
        kept = {
            name: tuple(stands.get(source, source) for source in sources)
            for name, sources in self.takes.items()
            if stands[name] == name
        }
        return stands, kept

    def _timings(self, samples: Samples, width: int) -> dict[str, Timing]:
        """A thread's own time says little where several work, and an accelerator's is not the host's."""
        return {
            phase: summarise([wall if width > 1 or thread is None else thread for wall, thread in taken])
            for phase, taken in samples.items()
        }

    def _layer(self, name: str, inputs: Tensors, *, size: int) -> Tensors:
        """All widths of a layer; gives its outputs, or something of their shape where it was not run."""
        outputs: Tensors | None = None
        specs: tuple[TensorSpec, ...] = ()
        key = self._key(name, inputs, size=size)
        self._kind_of.setdefault(name, key)
        for width in self.survey.widths:
            full_key = f"{key}:{width}"
            record = self.journal.get(full_key)
            how = "alike" if full_key in self._run_here else "known"
            if record is None:
                record, outputs = self._examine(name, inputs, width=width)
                how = "measured" if record.is_measured else "estimated"
                self.journal.put(full_key, record)
                self._run_here.add(full_key)
            self.records[name, size, width], specs = record, record.outputs
            self.hear(
                MeasuringStep(done=len(self.records), total=self.total, label=f"{name}, {size} x {width}", how=how)
            )
        return make_tensors(specs, device=self.device) if outputs is None else outputs

    def _key(self, name: str, inputs: Tensors, *, size: int) -> str:
        """Equal for layers that are alike and are given alike tensors."""
        survey = self.survey
        parts = [
            self._signatures[name],
            [(tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad) for tensor in inputs],
            [size, name == self.last, name if survey.each_layer else "", self._rest()],
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]

    def _rest(self) -> str:
        survey = self.survey
        clocks = ", host and card apart" if self.device.type == "cuda" else ""
        origin = "" if survey.sheet is None else origin_of(survey.sheet)
        known = survey.device_type, survey.dtype, survey.effort, survey.recomputes, survey.sheet, origin
        return clocks + repr((*known, survey.busy_processes > 1)) + describe_machine(survey)

    def _examine(self, name: str, inputs: Tensors, *, width: int) -> tuple[LayerRecord, Tensors | None]:
        """Run the layer if it fits, otherwise count it."""
        loss = partial(_call_loss, self.model.loss, target=self._target) if name == self.last else None
        wants = tuple(tensor.requires_grad for tensor in inputs)
        count = None
        try:
            count = self._counter(name, inputs)
            if reason := self._reason_to_estimate(count):
                return count(self._rates(), reason), None
            return self._run(name, inputs, wants=wants, width=width, loss=loss)
        except Exception as error:
            if is_out_of_memory(error) and count is not None:
                return count(self._rates(), "the device ran out of memory"), None
            if isinstance(error, ValueError) and str(error).startswith(("layer ", "the optimizer")):
                raise
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            is_inner = re.search("differentiate twice|not require grad|functorch|torch.func", reason)
            remedy = "leave torch.autograd.grad and torch.func out" if is_inner else "correct its forward or inputs"
            raise ValueError(f"layer {name!r} cannot take what it is given: {reason}; {remedy}") from error

    def _counter(self, name: str, inputs: Tensors) -> Any:
        """None where the layer cannot be run on fake tensors, which is only a pity unless it must be."""
        loss = self._fake_loss() if name == self.last else None
        logger = logging.getLogger("torch._subclasses.fake_tensor")
        was_disabled, logger.disabled = logger.disabled, True  # what fails on fake tensors is told by the real run
        try:
            return count_layer(
                self.model,
                name,
                inputs=inputs,
                defer=self.defer,
                dtype=self.dtype,
                loss=loss,
                capability=self._capability(),
            )
        except Exception as error:
            if self.survey.sheet is not None:
                reason = str(error).splitlines()[0] if str(error) else type(error).__name__
                raise ValueError(
                    f"layer {name!r} cannot be estimated on fake tensors: {reason}; measure it instead"
                ) from error
            return None
        finally:
            logger.disabled = was_disabled

    def _capability(self) -> tuple[int, int] | None:
        """Of the card that is estimated, or of this machine's; None: a CPU."""
        if self.survey.sheet is not None:
            return self.survey.sheet.compute_capability
        return torch.cuda.get_device_capability(self.device) if self.device.type == "cuda" else None

    def _fake_loss(self) -> Any:
        shape, dtype = tuple(self._target.shape), self._target.dtype
        return lambda output: self.model.loss(output, torch.empty(shape, dtype=dtype, device="cpu"))

    def _reason_to_estimate(self, count: Any) -> str:
        if self.survey.sheet is not None:
            return f"no device at hand; {origin_of(self.survey.sheet)}"
        return "" if count is None else self._lack(count(_UNIT, "").sizes.most())

    def _lack(self, needed: int) -> str:
        limit = free_bytes(self.device) if self.survey.memory_bytes is None else self.survey.memory_bytes
        return "" if limit is None or needed <= limit else f"it needs {needed:,} bytes and {limit:,} are free"

    def _rates(self) -> DeviceSheet:
        if self._sheet is None:
            self._sheet = measure_sheet(self.device, name=self.survey.device_type, dtype=self.dtype)
        return self._sheet

    def _run(
        self, name: str, inputs: Tensors, *, wants: tuple[bool, ...], width: int, loss: Any
    ) -> tuple[LayerRecord, Tensors]:
        if self.device.type == "cpu":
            torch.set_num_threads(width)
        module = make_layer(self.model, name, device=self.device, dtype=self.dtype)
        segment = Segment(module, inputs, wants=wants, waiting=self.defer(module), loss=loss)
        layer_memory = LayerMemory(segment)
        clock, survey = make_clock(self.device, tells_host=True), self.survey
        if survey.busy_processes == 1 or width != survey.widths[0]:
            time_segment(segment, clock, effort=survey.effort, recomputes=survey.recomputes)
        samples = dict(clock.samples)
        clock.samples = {}
        optimizers = time_optimizer(segment, clock, make=self.model.optimizer, effort=survey.effort)
        samples |= clock.samples
        timings = {
            phase: replace(timing, host_ns=clock.host_ns(phase))
            for phase, timing in self._timings(samples, width).items()
        }
        sizes = self._with_workspace(
            layer_memory.sizes(optimizer_bytes=sum(map(optimizer_bytes, optimizers))), segment, is_last=loss is not None
        )
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        return LayerRecord(
            outputs=describe_tensors(layer_memory.results),
            sizes=sizes,
            timings=timings,
            unsplit=layer_memory.unsplit,
            takes=layer_memory.takes,
            gives=layer_memory.gives,
            cut_dependence=find_cut_dependence(segment),
        ), layer_memory.results

    def _with_workspace(self, sizes: LayerBytes, segment: Segment, *, is_last: bool) -> LayerBytes:
        """With the memory inside of operations, and what of a workspace stays with more samples.

        Fewer say nothing of more: it is the larger of what weights and what samples take. A layer that cannot take
        more, or has no room for them, is said to have no such part.
        """
        workspace, fixed = _least_workspace(segment), 0
        times = max(2, (self.survey.share or max(self.survey.microbatch_sizes)) // len(self._target))
        while times > 3 and self._lack(sizes.most(times)):
            times //= 2
        inputs = other_samples(segment.inputs, times=times, likely=len(self._target))[2]
        loss = segment.loss
        if is_last:
            target = take_samples(self._target, times * len(self._target))  # where inputs are tokens, they are more
            loss = partial(_call_loss, self.model.loss, target=target)
        part = Segment(segment.module, inputs, wants=segment.wants, waiting=segment.waiting, loss=loss)
        with suppress(Exception):  # as a layer or a loss that asserts how many there are
            more = 0 if self._lack(sizes.most(times)) else _least_workspace(part)
            fixed = (times * workspace - more) // (times - 1) if more else 0
            workspace = max(workspace, -(-more // times))
        return replace(sizes, workspace=max(0, workspace), fixed_workspace=max(0, min(fixed, workspace)))


def _least_workspace(segment: Segment) -> int:
    """Of three runs: pages that the host holds beside what a layer needs come and go."""
    return min(OperationMemory(segment).workspace for _ in range(3))


_UNIT = DeviceSheet(name="unit", operations_per_s=1, achieved_percent=100, bandwidth_bytes_per_s=1)


def _call_loss(loss: Any, output: Any, *, target: torch.Tensor) -> Any:
    return loss(output, target)
