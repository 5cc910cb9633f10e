"""Walk through a model layer by layer, holding one at a time, and measure each that is not like an earlier one."""

import hashlib
import json
import logging
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch

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
from profiles.measure.materialise import cast, make_layer, signature
from profiles.measure.memory import LayerMemory, optimizer_bytes
from profiles.measure.model import BATCH, Defer, Model, Tensors, as_tuple, sources_of, take_samples
from profiles.measure.record import Clock, Journal, LayerRecord, TensorSpec, Timing, summarise
from profiles.measure.segment import MeasuringEffort, Segment, time_optimizer, time_segment

LEAST_ROUNDS = 3
"""Each of several processes times every layer at least so many times."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Survey:
    """What shall be measured, and how."""

    microbatch_sizes: tuple[int, ...]
    """Samples per microbatch; the first is the profile's own."""
    widths: tuple[int, ...] = (1,)
    """Threads that work on a layer together (on the host only); the first is where bytes are taken."""
    device: str = "cpu"
    """A torch device."""
    device_type: str = "cpu"
    """What the document calls it."""
    dtype: str | None = None
    """Weights and activations are brought into this type (`bfloat16`, say); None: as the model makes them."""
    clock: Clock = "thread"
    """Which time on the host goes into the profile."""
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


_Hear = Callable[[MeasuringStep], None]

_Crowd = Callable[[Mapping[str, tuple[str, ...]], int], dict[int, dict[str, Samples]]]
"""Times some layers (with what they take) so many times by several processes at once: samples by size and layer."""

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
    try:
        for size in survey.microbatch_sizes:
            walk.pass_through(size)
    finally:
        torch.set_num_threads(threads)
    conditions: Literal["busy", "alone"] = "alone"
    if survey.busy_processes > 1:
        if crowd is None or not all(record.is_measured for record in walk.records.values()):
            single = replace(survey, busy_processes=1)  # what is too large for one process is too large for several
            return survey_model(model, single, defer=defer, journal=journal, hear=hear)
        walk.time_together(crowd)
        conditions = "busy"
    return Findings(
        takes=walk.takes,
        records=walk.records,
        survey=survey,
        machine=describe_machine(survey),
        conditions=conditions,
    )


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
        self.total = len(self.takes) * len(survey.microbatch_sizes) * len(survey.widths)
        self._signatures: dict[str, str] = {}
        self._sheet = survey.sheet
        self._run_here: set[str] = set()
        self._kind_of: dict[str, str] = {}

    def pass_through(self, size: int) -> None:
        """All layers at one microbatch size."""
        inputs, target = self.model.batch(0)
        arrives = cast(tuple(take_samples(tensor, size) for tensor in as_tuple(inputs)), self.dtype)
        values: dict[str, Tensors] = {BATCH: tuple(tensor.to(self.device) for tensor in arrives)}
        (self._target,) = cast((take_samples(target, size).to(self.device),), self.dtype)
        for name, sources in self.takes.items():
            given = tuple(tensor for source in sources for tensor in values[source])
            values[name] = self._layer(name, given, size=size)
            for source in sources:
                if self.last_use[source] == name:
                    values.pop(source, None)

    def time_together(self, crowd: _Crowd) -> None:
        """Times taken by several processes at once take the place of those of layers alone, at the first width.

        Of alike layers only some are run; the samples of all of them are put together.
        """
        survey, width = self.survey, self.survey.widths[0]
        stands, kept = self._choose()
        wanted = -(-survey.effort.repetitions // survey.busy_processes)
        found = crowd(kept, max(LEAST_ROUNDS, wanted))
        for size, layers in found.items():
            pooled: dict[str, Samples] = {}
            for name, samples in layers.items():
                add_samples(pooled.setdefault(self._kind_of[name], {}), samples)
            for name in stands:
                record = self.records[name, size, width]
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
        return {
            phase: summarise(
                [wall for wall, _ in taken],
                None if taken[0][1] is None else [thread or 0 for _, thread in taken],
                clock=self.survey.clock if width == 1 else "wall",
            )
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
        if name not in self._signatures:
            self._signatures[name] = signature(make_layer(self.model, name, device=torch.device("meta")))
        survey = self.survey
        parts = [
            self._signatures[name],
            [(tuple(tensor.shape), str(tensor.dtype), tensor.requires_grad) for tensor in inputs],
            [size, name == self.last, name if survey.each_layer else "", self._rest()],
        ]
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:40]

    def _rest(self) -> str:
        survey = self.survey
        return repr(
            (
                survey.device_type,
                survey.dtype,
                survey.clock,
                survey.effort,
                survey.recomputes,
                survey.sheet,
                "" if survey.sheet is None else origin_of(survey.sheet),
                survey.busy_processes > 1,
            )
        ) + describe_machine(survey)

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
            if isinstance(error, ValueError) and str(error).startswith("layer "):
                raise
            reason = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise ValueError(f"layer {name!r} cannot take what it is given: {reason}") from error

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
        """Of the card that is estimated, or of the one at hand; None: a CPU."""
        if self.survey.sheet is not None:
            return self.survey.sheet.compute_capability
        return torch.cuda.get_device_capability(self.device) if self.device.type == "cuda" else None

    def _fake_loss(self) -> Any:
        shape, dtype = tuple(self._target.shape), self._target.dtype
        return lambda output: self.model.loss(output, torch.empty(shape, dtype=dtype, device="cpu"))

    def _reason_to_estimate(self, count: Any) -> str:
        if self.survey.sheet is not None:
            return f"no device at hand; {origin_of(self.survey.sheet)}"
        limit = free_bytes(self.device) if self.survey.memory_bytes is None else self.survey.memory_bytes
        if count is None or limit is None:
            return ""
        sizes = count(_UNIT, "").sizes
        needed = sizes.state + sizes.saved + sizes.weight_saved + 2 * sizes.inputs + sizes.workspace
        return f"it needs {needed:,} bytes and {limit:,} are free" if needed > limit else ""

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
        clock, survey = make_clock(self.device), self.survey
        if survey.busy_processes == 1 or width != survey.widths[0]:
            time_segment(segment, clock, effort=survey.effort, recomputes=survey.recomputes)
        samples = dict(clock.samples)
        clock.samples = {}
        optimizer = time_optimizer(segment, clock, make=self.model.optimizer, effort=survey.effort)
        samples |= clock.samples
        timings = self._timings(samples, width)
        sizes = layer_memory.sizes(optimizer_bytes=optimizer_bytes(optimizer))
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        outputs = describe_tensors(layer_memory.results)
        return LayerRecord(
            outputs=outputs, sizes=sizes, timings=timings, unsplit=layer_memory.unsplit
        ), layer_memory.results


_UNIT = DeviceSheet(name="unit", operations_per_s=1, achieved_percent=100, bandwidth_bytes_per_s=1)


def _call_loss(loss: Any, output: Any, *, target: torch.Tensor) -> torch.Tensor:
    result: torch.Tensor = loss(output, target)
    return result
