"""A layer that cannot be run here, on fake tensors: bytes are those that operations make and autograd saves on the card
(`card_kernels`), times are estimated from operations and bytes.
"""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.flop_counter import FlopCounterMode

from profiles.estimates.analytic import DeviceSheet
from profiles.estimates.sustained_rates import Phase
from profiles.importers.aiconfigurator.default_rates import default_rates_of
from profiles.measure.card_kernels import card_kernels
from profiles.measure.materialise import cast, make_layer
from profiles.measure.memory import LayerMemory, LiveBytes, count_bytes, optimizer_bytes
from profiles.measure.model import Defer, Model, Tensors
from profiles.measure.operation_log import BACKWARD, FORWARD, KNOWN, LoggedWork, OperationLog, aten, time_of
from profiles.measure.record import LayerRecord, TensorSpec, Timing
from profiles.measure.segment import Segment, make_optimizers

SHEETS = {
    name: DeviceSheet(
        name=name,
        operations_per_s=teraops * 10**12,
        achieved_percent=50,
        bandwidth_bytes_per_s=gigabytes * 10**9,
        tables=tables,
        compute_capability=capability,
    )
    for name, teraops, gigabytes, tables, capability in (
        ("A100", 312, 2_039, "a100_sxm", (8, 0)),
        ("H100", 989, 3_350, "h100_sxm", (9, 0)),
        ("H200", 989, 4_800, "h200_sxm", (9, 0)),
        ("B200", 2_250, 8_000, "b200_sxm", (10, 0)),
        ("GB200", 2_500, 8_000, "gb200", (10, 0)),
        ("A10", 125, 600, "", (8, 6)),
        ("L4", 121, 300, "", (8, 9)),
    )
}
"""Data sheets of accelerators: dense bf16 rate in 10^12 per second, memory bandwidth in GB/s."""


def origin_of(sheet: DeviceSheet) -> str:
    """What estimates by a sheet rest on."""
    return default_rates_of(sheet.tables).origin if sheet.tables else f"data sheet of {sheet.name}"


def _count_attention(*shapes: Any, first: int = 0, scores: int = 1, sums: int = 1, **_: Any) -> int:
    """Of scores and of the sum of values; the backward forms scores once more, and two products for each of the two."""
    query, key, value = shapes[first : first + 3]
    samples, heads, rows, width = query
    return int(2 * samples * heads * rows * key[2] * (scores * width + sums * value[3]))


def _count_experts(rows: Any, columns: Any, *_: Any, **__: Any) -> int:
    """Each group has columns of its own, or its part of those of all."""
    return int(2 * math.prod(rows) * columns[-1] // (rows[0] if len(rows) > len(columns) else 1))


def _count_recurrence(steps: Any, *weights: Any, passes: int = 1, **_: Any) -> int:
    """One layer in one direction: each step meets the weights of the input and those of the state."""
    return int(2 * math.prod(steps[:-1]) * sum(map(math.prod, weights[:2])) * passes)


_MAPPING = {
    **dict.fromkeys(FORWARD, _count_attention),
    **dict.fromkeys(BACKWARD, partial(_count_attention, first=1, scores=3, sums=2)),
    aten._grouped_mm: _count_experts,
    aten.mkldnn_rnn_layer: _count_recurrence,
    aten.mkldnn_rnn_layer_backward: partial(_count_recurrence, passes=2),
}
"""Torch's counter has no formula for these kernels, or none for fewer heads of keys than of queries."""


class _Work:
    """Operations and bytes moved by F, I and W."""

    def __init__(self, parameter_bytes: int) -> None:
        self.parameter_bytes = parameter_bytes
        self.operations: dict[Phase, int] = {}
        self.moved: dict[Phase, int] = {}
        self.logged: dict[Phase, LoggedWork] = {}
        self.others: dict[Phase, int] = {}

    def watch(self, phase: Phase, run: Callable[[], None], *, live: LiveBytes) -> None:
        made = live.made
        with OperationLog() as log, FlopCounterMode(display=False, custom_mapping=_MAPPING) as counter:
            run()
        self.operations[phase] = int(counter.get_total_flops())
        self.logged[phase] = log.finish()
        by_kind = counter.get_flop_counts().get("Global", {})
        self.others[phase] = sum(int(count) for kind, count in by_kind.items() if kind not in KNOWN)
        written = live.made - made
        read = self.parameter_bytes if self.operations[phase] else 0  # a table look-up reads a few rows
        self.moved[phase] = 2 * written + read

    def time_ns(self, phase: Phase, sheet: DeviceSheet) -> int:
        """Of a phase: by tables or achieved rates where they know the device type, otherwise by its sheet."""
        if not sheet.tables:
            return sheet.time_ns(self.operations[phase], self.moved[phase])
        return time_of(self.logged[phase], default_rates_of(sheet.tables), phase=phase) + sheet.time_ns(
            self.others[phase]
        )


class _Counting(LayerMemory):
    """The memory of a layer whose phases are counted."""

    def __init__(self, segment: Segment, work: _Work) -> None:
        self.work = work
        super().__init__(segment, watch=self._count)

    def _count(self, phase: Phase, run: Callable[[], None]) -> int:
        self.work.watch(phase, run, live=self.live)
        return 0


def count_layer(
    model: Model,
    name: str,
    *,
    inputs: Tensors,
    defer: Defer,
    dtype: torch.dtype | None,
    loss: Any,
    capability: tuple[int, int] | None,
) -> Callable[[DeviceSheet, str], LayerRecord]:
    """Run a layer on fake tensors once; gives what makes its record on a device, with the reason why it is estimated.

    `capability`: the compute capability of the card whose kernels count; None: those of the CPU.
    Raises whatever the layer raises where it needs real values.
    """
    meta = make_layer(model, name, device=torch.device("meta"), dtype=dtype)
    with FakeTensorMode(allow_non_fake_inputs=True), card_kernels(capability) as kernels:
        module = _make_fake(meta)
        given = tuple(torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="cpu") for tensor in inputs)
        wants = tuple(tensor.requires_grad for tensor in inputs)
        segment = Segment(module, cast(given, dtype), wants=wants, waiting=defer(module), loss=loss)
        work = _Work(count_bytes(module.parameters()))
        layer_memory = _Counting(segment, work)
        optimizers = make_optimizers(model.optimizer, segment.parameters())
        sizes = layer_memory.sizes(optimizer_bytes=sum(map(optimizer_bytes, optimizers)))
        outputs = describe_tensors(layer_memory.results)

    def make(sheet: DeviceSheet, reason: str) -> LayerRecord:
        times: dict[str, int] = {phase: work.time_ns(phase, sheet) for phase in work.operations}
        if "I" in times:
            times["B"] = times["I"] + times.get("W", 0)
            times["R"] = times["B"] + times["F"]
        if sizes.trained:
            times["O"] = sheet.time_ns(0, 2 * sizes.state)
        timings = {phase: Timing(ns=value, repetitions=0) for phase, value in times.items()}
        attention = "" if not kernels else "unfused" if "math" in kernels else "flash"
        return LayerRecord(
            outputs=outputs,
            sizes=sizes,
            timings=timings,
            estimate=reason,
            unsplit=layer_memory.unsplit,
            takes=layer_memory.takes,
            gives=layer_memory.gives,
            attention=attention,
        )

    return make


def _make_fake(module: nn.Module) -> nn.Module:
    """Give a module new parameters and buffers of the same shapes; to be called under a fake mode."""
    made: dict[int, torch.Tensor] = {}
    for part in module.modules():
        for tensors in (part._parameters, part._buffers):
            for name, tensor in tensors.items():
                if tensor is not None and id(tensor) not in made:
                    empty = torch.empty(tuple(tensor.shape), dtype=tensor.dtype, device="cpu")
                    is_parameter = isinstance(tensor, nn.Parameter)
                    made[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
                if tensor is not None:
                    tensors[name] = made[id(tensor)]  # type: ignore[assignment]
    return module


def describe_tensors(tensors: Tensors) -> tuple[TensorSpec, ...]:
    """Shapes, types and bytes."""
    return tuple(
        TensorSpec(
            shape=tuple(tensor.shape),
            dtype=str(tensor.dtype).removeprefix("torch."),
            num_bytes=tensor.numel() * tensor.element_size(),
            has_gradient=tensor.requires_grad,
        )
        for tensor in tensors
    )


def make_tensors(specs: tuple[TensorSpec, ...], *, device: torch.device) -> Tensors:
    """Noise of these shapes; zeros where the type is not a floating-point one."""
    made = []
    for spec in specs:
        dtype = getattr(torch, spec.dtype)
        tensor = torch.zeros(spec.shape, dtype=dtype, device=device)
        if dtype.is_floating_point:
            tensor.normal_().requires_grad_(spec.has_gradient)
        made.append(tensor)
    return tuple(made)


def measure_sheet(device: torch.device, *, name: str, dtype: torch.dtype | None) -> DeviceSheet:
    """Rates of this very device, from one matrix product and one copy: what estimates on it are based on."""
    size = 512
    matrix = torch.randn(size, size, device=device, dtype=dtype or torch.float32)
    operations = 2 * size**3 * 10**9 // max(1, _best_ns(lambda: matrix @ matrix, device))
    block = torch.empty(16 * 2**20, dtype=torch.uint8, device=device)
    moved = 2 * block.numel() * 10**9 // max(1, _best_ns(lambda: block.clone(), device))
    return DeviceSheet(
        name=name, operations_per_s=max(1, operations), achieved_percent=100, bandwidth_bytes_per_s=max(1, moved)
    )


def _best_ns(run: Callable[[], Any], device: torch.device) -> int:
    best = []
    for _ in range(5):
        started = time.perf_counter_ns()
        run()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best.append(time.perf_counter_ns() - started)
    return min(best)


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed, on an accelerator or on the host."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or "not enough memory" in str(error)
