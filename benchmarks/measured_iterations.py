"""Iterations that others measured, predicted from aiconfigurator-core's tables without running anything.

`python -m benchmarks.measured_iterations -o out/benchmarks/measured_iterations.md` needs the extra `tables`. The files
in `benchmarks/measured/` have their sources and licences beside them. The layers of a model are put together as
`pipeplan import aiconfigurator` does, its stages played by the simulator of plans in the order that was run (1F1B, or
interleaved 1F1B), a tensor-parallel group as one device and one of the equal pipelines for all; what the replicas then
exchange is added. Rows of one group share one factor: the median of measured over predicted.
"""

import math
import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations

from benchmarks.audits import read_rows
from benchmarks.report import Table, line, make_parser
from planner.baselines.alternation import order_one_f_one_b
from planner.baselines.interleaved import order_interleaved
from planner.baselines.pipeline import make_pipeline, make_plan
from planner.layout.costs import CostModel
from planner.plan import Stage
from planner.problem import Options, Problem
from planner.simulation.simulate import simulate
from profiles.cluster import Cluster, Device, Link
from profiles.estimates.composed_profile import STEP_BYTES, CompositionQuestion, compose
from profiles.estimates.model_shapes import ModelShape
from profiles.estimates.operations import Dtype
from profiles.importers.aiconfigurator.rates import MeasuredRates
from profiles.importers.aiconfigurator.tables import find_package
from profiles.importers.aiconfigurator.workloads import find_shape
from profiles.model_profile import ModelProfile

VOCABULARY = 51_200
"""Megatron's: GPT-2's 50,257 made divisible."""
NETWORK_BYTES_PER_S = 12_500_000_000
"""Of one A100 in vTrain's cluster: 800 Gb/s per node of eight."""
LATENCY_NS = 10_000
GRADIENT_BYTES = 2
"""Per weight, of what replicas exchange: both programs reduce in 16 bits."""
GPUS = {"DGX-H100": "h100_sxm", "DGX-GB200": "gb200", "DGX-GB300": "gb300"}
DTYPES: dict[str, Dtype] = {"BF16": "bf16", "FP8": "fp8", "MXFP8": "fp8_block", "NVFP4": "nvfp4"}


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One measured row."""

    group: str
    """Rows of one group share one factor."""
    label: str
    """Its degrees."""
    shape: ModelShape
    gpu: str
    dtype: Dtype
    sequence: int
    batch: int
    """Samples of an iteration."""
    micro: int
    """Samples of a microbatch."""
    tensor: int
    data: int
    pipeline: int
    context: int = 1
    chunks: int = 1
    """Stages per device."""
    recomputes: bool = False
    overlaps: bool = False
    """Whether gathers beside products, messages and reductions are hidden, as Megatron-Bridge's recipes have it."""
    is_fully_sharded: bool = False
    is_plain: bool = False
    """Without sequence parallelism and fused attention, as vTrain's model of the program has it."""
    measured_s: float


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """What is said of a row, before the group's factor."""

    trial: Trial
    seconds: float


@cache
def rates_of(gpu: str) -> MeasuredRates:
    """The tables of a device type; vTrain's cluster has its own network."""
    network = NETWORK_BYTES_PER_S if gpu == "a100_sxm" else None
    return MeasuredRates(package=find_package(), gpu=gpu, network_bytes_per_s=network)


def read_vtrain() -> Iterator[Trial]:
    """Megatron-DeepSpeed on A100: bf16 recomputed, 1F1B, nothing hidden (`config/validation` of its repository)."""
    for row in read_rows("vtrain-a100.csv"):
        hidden, heads = int(row["hidden size"]), int(row["attention heads"])
        tensor, data, pipeline = (int(row[f"{kind} parallelism"]) for kind in ("tensor", "data", "pipeline"))
        micro = int(row["micro batch"])
        yield Trial(
            group=f"vTrain {row['Parameters (billion)']}B, {row['# GPUs']} A100",
            label=f"t {tensor}, d {data}, p {pipeline}, b {micro}",
            shape=ModelShape(
                name=f"GPT {row['Parameters (billion)']}B",
                blocks=int(row["# layers"]),
                hidden=hidden,
                heads=heads,
                key_value_heads=heads,
                head_width=hidden // heads,
                inner=4 * hidden,
                vocabulary=VOCABULARY,
                is_gated=False,
            ),
            gpu="a100_sxm",
            dtype="bf16",
            sequence=int(row["sequence length"]),
            batch=int(row["global batch"]),
            micro=micro,
            tensor=tensor,
            data=data,
            pipeline=pipeline,
            recomputes=True,
            is_plain=True,
            measured_s=float(row["iteration time (ms)"]) / 1e3,
        )


def read_bridge() -> Iterator[Trial]:
    """Megatron-Bridge's pre-training rows of dense models."""
    for row in read_rows("megatron-bridge-dense.csv"):
        if row["task"] != "Pre-Training":
            continue
        tensor, pipeline, context = (int(row[key]) for key in ("tp", "pp", "cp"))
        batch, sequence, gpus = int(row["global batch"]), int(row["sequence"]), int(row["gpus"])
        chunks = 1 if row["vp"] == "n/a" else int(row["vp"])
        sharded = int(row["fsdp"]) > 0
        model = "llama3-70b" if "70B" in row["model"] else "llama3-405b"
        degrees = f"t {tensor}, p {pipeline} x {chunks}, c {context}, b {row['micro batch']}"
        yield Trial(
            group=f"Megatron-Bridge, {row['system'].removeprefix('DGX-')}, {row['precision']}",
            label=f"{model}, {gpus} GPUs, {row['precision']}, {degrees}{', fully sharded' if sharded else ''}",
            shape=find_shape(find_package(), model),
            gpu=GPUS[row["system"]],
            dtype=DTYPES[row["precision"]],
            sequence=sequence,
            batch=batch,
            micro=int(row["micro batch"]),
            tensor=tensor,
            data=gpus // (tensor * pipeline * context),
            pipeline=pipeline,
            context=context,
            chunks=chunks,
            overlaps=True,
            is_fully_sharded=sharded,
            measured_s=batch * sequence / (float(row["tokens per s per GPU"]) * gpus),
        )


@cache
def composed(shape: ModelShape, gpu: str, dtype: Dtype, run: tuple[int, int, int, int, bool, bool]) -> ModelProfile:
    """The layers of a tensor-parallel group, as if it were one device."""
    sequence, micro, tensor, context, overlaps, is_plain = run
    question = CompositionQuestion(
        shape=shape,
        rates=[rates_of(gpu)],
        sequence=sequence,
        sizes=(micro,),
        degrees=(tensor,),
        dtype=dtype,
        context=context,
        hides_exchanges=overlaps,
        sequence_parallel=not is_plain,
        fused_attention=not is_plain,
    )
    profile, _ = compose(question)
    layers = tuple(each.as_one_device(replace(each.costs[0], optimizer_ns=0)) for each in profile.layers)
    return replace(profile, layers=layers, measurements=())


def cut(profile: ModelProfile, stages: int) -> list[tuple[str, ...]]:
    """Equally many blocks per stage; where they do not divide, embedding and head count as blocks, as in recipes."""
    names = [layer.name for layer in profile.layers]
    blocks = names[1:-1]
    if len(blocks) % stages == 0:
        each = len(blocks) // stages
        parts = [tuple(blocks[start : start + each]) for start in range(0, len(blocks), each)]
        parts[0] = (names[0], *parts[0])
        return [*parts[:-1], (*parts[-1], names[-1])]
    each = math.ceil(len(names) / stages)
    short = each * stages - len(names)
    sizes = [each - (stage >= stages - short) for stage in range(stages)]
    return [tuple(names[sum(sizes[:stage]) : sum(sizes[: stage + 1])]) for stage in range(stages)]


def make_devices(trial: Trial) -> Cluster:
    """One tensor-parallel group per device of the pipeline, each joined to the next."""
    node = find_package().sheet(trial.gpu)["node"]
    single = NETWORK_BYTES_PER_S if trial.gpu == "a100_sxm" else int(node["inter_node_bw"])
    bandwidth = single * min(trial.tensor, node["num_gpus_per_node"])
    devices = [Device(name=f"g{n}", type=trial.gpu, memory_bytes=2**50) for n in range(trial.pipeline)]
    links = [
        Link(a=a.name, b=b.name, bandwidth_bytes_per_s=bandwidth, latency_ns=LATENCY_NS)
        for a, b in combinations(devices, 2)
    ]
    return Cluster(name="groups", devices=tuple(devices), links=tuple(links), overlap=trial.overlaps)


def predict(trial: Trial) -> Prediction:
    """Play the pipeline, and add what its replicas exchange and the optimizer's step."""
    run = (trial.sequence, trial.micro, trial.tensor, trial.context, trial.overlaps, trial.is_plain)
    profile = composed(trial.shape, trial.gpu, trial.dtype, run)
    problem = Problem(
        profile=profile,
        cluster=make_devices(trial),
        num_microbatches=trial.batch // (trial.micro * trial.data),
        options=Options(
            split_backward=False, max_stages_per_device=trial.chunks, recompute=trial.recomputes, receive_buffers=0
        ),
    )
    costs = CostModel(problem)
    parts = cut(profile, trial.pipeline * trial.chunks)
    stages = tuple(
        Stage(layers=layers, replicas=((f"g{number % trial.pipeline}",),), recompute=trial.recomputes)
        for number, layers in enumerate(parts)
    )
    pipeline = make_pipeline(costs, stages)
    order = order_interleaved if trial.chunks > 1 else order_one_f_one_b
    timeline = simulate(problem, make_plan(costs, stages, device_orders=order(pipeline)), costs=costs)
    weights = max(sum(_weights(profile, name, trial.tensor) for name in layers) for layers in _by_device(trial, parts))
    return Prediction(trial=trial, seconds=timeline.makespan_ns / 1e9 + exchange_s(trial, weights))


def _by_device(trial: Trial, parts: Sequence[tuple[str, ...]]) -> Iterator[list[str]]:
    for device in range(trial.pipeline):
        yield [name for part in parts[device :: trial.pipeline] for name in part]


def _weights(profile: ModelProfile, name: str, tensor: int) -> float:
    return profile.by_name[name].parameter_bytes / 2 / tensor


def exchange_s(trial: Trial, weights: float) -> float:
    """Seconds for gradients and weights to go round the replicas, and for the optimizer's step.

    Where reductions are hidden, those of a device's first stage alone are not, and the step is shared.
    """
    sheet = find_package().sheet(trial.gpu)
    node, size = sheet["node"], sheet["node"]["num_gpus_per_node"]
    step = STEP_BYTES * weights / (sheet["gpu"]["mem_bw"] * sheet["gpu"]["mem_bw_empirical_scaling_factor"])
    if trial.is_fully_sharded:
        return step / trial.data
    inside = trial.tensor * trial.data <= size
    outside = NETWORK_BYTES_PER_S if trial.gpu == "a100_sxm" else node.get("inter_rack_bw", node["inter_node_bw"])
    per_device = node["intra_node_bw"] if inside else outside * max(1, size // trial.tensor)
    moved = 2 * (trial.data - 1) / trial.data * GRADIENT_BYTES * weights
    if trial.overlaps:
        return moved / trial.chunks / per_device + step / trial.data
    return moved / per_device + step


def factor_of(predictions: Iterable[Prediction]) -> float:
    """The one factor of a group: the median of measured over predicted."""
    return statistics.median(each.trial.measured_s / each.seconds for each in predictions)


def grouped(predictions: Sequence[Prediction]) -> dict[str, list[Prediction]]:
    """Predictions by group."""
    groups: dict[str, list[Prediction]] = {}
    for each in predictions:
        groups.setdefault(each.trial.group, []).append(each)
    return groups


def main() -> None:
    """What is said of every group, then every row."""
    parser = make_parser(__doc__)
    given = parser.parse_args()
    trials = [*read_vtrain(), *read_bridge()]
    groups = grouped([predict(trial) for trial in (trials[:3] if given.quick else trials)])
    table = Table.about(
        "# Iterations that others measured, predicted",
        __doc__,
        header=("group", "rows", "factor", "median error", "worst", "chosen", "behind the best measured"),
        output=given.output,
    )
    rows = []
    for group, predictions in groups.items():
        factor = factor_of(predictions)
        errors = [factor * each.seconds / each.trial.measured_s - 1 for each in predictions]
        table.add((group, str(len(errors)), f"{factor:.3f}", *_sizes(errors), *_choice(predictions)))
        rows += [_row(each, factor=factor, error=error) for each, error in zip(predictions, errors, strict=True)]
    header = ("group", "row", "measured s", "predicted s", "with the factor", "error")
    table.close("t, d, p, c: degrees; p x stages per device; b: samples per microbatch.", "", line(header), RULE, *rows)


RULE = "|" + " --- |" * 6


def _row(prediction: Prediction, *, factor: float, error: float) -> str:
    trial = prediction.trial
    cells = (trial.measured_s, prediction.seconds, factor * prediction.seconds)
    return line((trial.group, trial.label, *(f"{cell:.3f}" for cell in cells), f"{100 * error:+.1f} %"))


def _sizes(errors: Sequence[float]) -> tuple[str, str]:
    sizes = [abs(error) for error in errors]
    return f"{100 * statistics.median(sizes):.1f} %", f"{100 * max(sizes):.1f} %"


def _choice(predictions: Sequence[Prediction]) -> tuple[str, str]:
    """The configuration with the least predicted time, where rows of a group answer one question."""
    if not predictions[0].trial.group.startswith("vTrain"):
        return "", ""
    chosen = min(predictions, key=lambda each: each.seconds).trial
    best = min(each.trial.measured_s for each in predictions)
    return chosen.label, f"{100 * (chosen.measured_s / best - 1):.1f} %"


if __name__ == "__main__":
    main()
