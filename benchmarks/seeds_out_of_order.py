"""Out-of-order backprop: `python -m benchmarks.seeds_out_of_order [--quick] [-o PAGE.md]`.

The unit-cost ratios, the curve over k of reverse first-k, runs of two and four processes on a throttled link, and
exactness in data parallelism and on one device.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.convnets import NETWORKS
from benchmarks.one_device import NETWORKS as SMALL_NETWORKS
from benchmarks.processes import run_ranks
from benchmarks.report import Table, make_parser, ms, percent
from benchmarks.statistics_of import interval, paired
from planner.baselines.gpipe import order_gpipe
from planner.baselines.out_of_order.first_k import LayerTimes, buckets_of, choose_first_k, curve
from planner.baselines.out_of_order.pipelined import make_modulo_plan, make_modulo_stages
from planner.baselines.pipeline import make_pipeline, make_plan
from planner.layout.costs import CostModel
from planner.planning import Limits
from planner.planning import make_plan as plan_jointly
from planner.problem import Options, Problem
from planner.verify import verify
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile

EXPECTED = ((4, 6, 1.17), (4, 1, 1.62), (4, 2, 1.50), (4, 3, 1.40), (8, 1, 1.32))
"""Microbatches, group size, ratio against GPipe; 24 layers on 4 devices, so that groups of 6 are one stage each."""

MACS_PER_NS, LINK_BYTES_PER_S, BATCH, WORKERS, BUCKET_BYTES = 7_000, 10**9 * 3 // 4, 64, 16, 0
"""The data parallel curve: an estimate of a V100's fp32 rate, and 16 workers on a link of 6 Gbit/s."""


def unit_problem(num_microbatches: int, *, mod: int) -> Problem:
    """F = I = W = 1 tick of a microsecond for each of 24 layers, four devices, no time on links."""
    cost = LayerCost(device_type="unit", forward_ns=1000, input_grad_ns=1000, weight_grad_ns=1000)
    layers = tuple(Layer(name=f"l{number:02}", costs=(cost,), parameter_bytes=1) for number in range(24))
    devices = tuple(Device(name=f"d{number}", type="unit", memory_bytes=2**40) for number in range(4))
    links = tuple(Link(a=a.name, b=b.name, bandwidth_bytes_per_s=10**15) for a, b in pairwise(devices))
    return Problem(
        profile=ModelProfile(name="24 equal layers", layers=layers, edges=_chain(layers)),
        cluster=Cluster(name="four devices", devices=devices, links=links),
        num_microbatches=num_microbatches,
        options=Options(max_stages_per_device=24 // (4 * mod), max_replicas=1),
    )


def _chain(layers: tuple[Layer, ...]) -> tuple[Edge, ...]:
    return tuple(Edge(producer=a.name, consumer=b.name, bytes=0) for a, b in pairwise(layers))


def ratio_cells(num_microbatches: int, mod: int, *, expected: float, seconds: float) -> list[str]:
    """A row of the first table."""
    problem = unit_problem(num_microbatches, mod=mod)
    costs = CostModel(problem)
    stages = make_modulo_stages(costs, mod=6)
    gpipe = _played_ns(problem, make_plan(costs, stages, words=order_gpipe(make_pipeline(costs, stages))))
    ours = _played_ns(problem, make_modulo_plan(costs, mod=mod))
    joint = plan_jointly(problem, limits=Limits(time_limit_s=seconds, patience_s=seconds))
    assert joint.evidence is not None
    found = gpipe / ours
    return [
        str(num_microbatches),
        "one stage each" if mod == 6 else f"modulo {mod}",
        str(gpipe // 1000),
        str(ours // 1000),
        f"{found:.2f}",
        f"{expected:.2f}",
        "met" if round(found, 2) == expected else "MISSED",
        str(joint.evidence.makespan_ns // 1000),
        f"{gpipe / joint.evidence.makespan_ns:.2f}",
        percent(joint.evidence.gap),
    ]


def _played_ns(problem: Problem, plan: object) -> int:
    verdict = verify(problem, plan)  # type: ignore[arg-type]
    assert verdict.passed
    assert verdict.timeline is not None
    return verdict.timeline.makespan_ns


def data_parallel_times(network: str) -> LayerTimes:
    """F, I, W by multiply-accumulates, gradients in fp32 by a ring all-reduce among `WORKERS`."""
    shapes = NETWORKS[network]
    times = tuple(BATCH * shape.macs // MACS_PER_NS for shape in shapes)
    sent = [2 * (WORKERS - 1) * 4 * shape.weights * 10**9 // (WORKERS * LINK_BYTES_PER_S) for shape in shapes]
    return LayerTimes(
        forward_ns=times,
        input_grad_ns=(0, *times[1:]),
        weight_grad_ns=times,
        synchronisation_ns=tuple(sent),
    )


def draw_curve(periods: list[int]) -> Iterator[str]:
    """A text picture: a column per k, its height the period above the least one."""
    low, high, rows = min(periods), max(periods), 10
    for row in range(rows, -1, -1):
        level = low + (high - low) * row / rows
        yield "".join("#" if period >= level else " " for period in periods).rstrip() + f"   {ms(round(level))}"
    best = periods.index(low)
    yield " " * best + f"^ k = {best}"


def first_k_page(network: str) -> Iterator[str]:
    """The curve of one network and what it comes to."""
    times = data_parallel_times(network)
    buckets = buckets_of([4 * shape.weights for shape in NETWORKS[network]], least_bytes=BUCKET_BYTES)
    periods = curve(times, buckets=buckets)
    best = choose_first_k(times, buckets=buckets)
    yield ""
    yield f"{network}, {len(periods) - 1} layers with weights; ms per iteration over k = 0, 1, 2 ...:"
    yield ""
    yield "```"
    yield from draw_curve(periods)
    yield "```"
    yield ""
    yield (
        f"k = {best}: {ms(periods[best])} ms; k = 0: {ms(periods[0])} ms ({periods[0] / periods[best]:.3f} x); "
        f"all layers: {ms(periods[-1])} ms. "
        f"The optimum is {'interior' if 0 < best < len(periods) - 1 else 'AT AN END'}."
    )


def run_page(count: int, *, rounds: int) -> Iterator[str]:
    """A real run of `count` processes: its speed and its exactness."""
    answer = json.loads(run_ranks("benchmarks.first_k_worker", count, arguments=["speed", str(rounds)]))
    seconds = {int(k): values for k, values in answer["seconds"].items()}
    chosen, curve_ns = answer["chosen"], answer["curve_ns"]
    yield ""
    for k, values in sorted(seconds.items()):
        mean, half = interval(values)
        yield f"* {count} processes, k = {k}: {1000 * mean:.1f} ± {1000 * half:.1f} ms, computed {ms(curve_ns[k])} ms"
    mean, half = paired(seconds[0], seconds[chosen])
    sign = "faster" if mean - half > 0 else "slower" if mean + half < 0 else "NOT TOLD APART"
    yield (
        f"* {count} processes: k = {chosen} against the usual order, pair by pair: {percent(mean)} ± {percent(half)}: "
        f"{sign}"
    )
    exact = json.loads(run_ranks("benchmarks.first_k_worker", count, arguments=["exact"]))
    yield (
        f"* {count} processes: losses of 80 steps equal bit by bit: {exact['losses_equal']}; parameters after 40 and "
        f"80: {exact['parameters_equal']}"
    )


def orders_page(count: int) -> Iterator[str]:
    """Exactness of the pipeline's orders, on processes."""
    answer = json.loads(run_ranks("benchmarks.pipeline_worker", count))
    for name, found in answer["orders"].items():
        yield (
            f"* {count} processes, {name} against the usual order: losses of 80 steps equal bit by bit: "
            f"{found['losses_equal']}; parameters after 40 and 80: {found['parameters_equal']}; largest difference "
            f"{found['worst_relative_difference']:.1e}"
        )


def one_device_page(networks: list[str], *, rounds: int) -> Iterator[str]:
    """Exactness with every W put off into the next forward; then speed and exactness with W beside regions."""
    yield ""
    for network in networks:
        answer = _answer_of("benchmarks.one_device", network)
        yield (
            f"* {network}: {answer['weight gradients put off']} weight gradients put off; losses of 80 steps equal bit "
            f"by bit: {answer['losses equal']}; parameters after 40 and 80: "
            f"{answer['parameters equal after half and all steps']}"
        )
    yield ""
    yield "W of a block beside regions of the main thread, on a second thread, chosen from a measured table of co-runs"
    yield "(`benchmarks/co_runs.py`); *all*: each W beside the region after its I. ms per step, predicted and measured;"
    yield "savings against plain order round by round. On a GPU: gpu.md."
    for network in networks:
        yield ""
        yield from _co_run_lines(network, _answer_of("benchmarks.co_runs", network, "--rounds", str(rounds)))


def _answer_of(module: str, *arguments: str) -> dict[str, Any]:
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).resolve().parents[1]), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", module, *arguments]
    answer: dict[str, Any] = json.loads(
        subprocess.run(command, env=environment, capture_output=True, check=True).stdout
    )
    return answer


def _co_run_lines(network: str, answer: dict[str, Any]) -> Iterator[str]:
    predicted, plain = answer["predicted_ns"], answer["seconds"]["plain"]
    beside = sum(region is not None for region in answer["choice"])
    yield (
        f"* {network}: {beside} of {len(answer['choice'])} W beside a region; predicted {ms(predicted['chosen'])} "
        f"(no choice takes less than {ms(answer['bound_ns'])}), greedy {ms(predicted['greedy'])}; losses of "
        f"{answer['steps']} steps equal bit by bit: {answer['losses equal']}; parameters: {answer['parameters equal']}"
    )
    for name, values in answer["seconds"].items():
        mean, half = interval(values)
        line = (
            f"* {network}, {name}: predicted {ms(predicted[name])}, measured {1000 * mean:.2f} ± {1000 * half:.2f} ms"
        )
        if name != "plain":
            saved, about = paired(plain, values)
            sign = "faster" if saved > about else "slower" if saved < -about else "NOT TOLD APART"
            foreseen = percent(1 - predicted[name] / predicted["plain"])
            line += f"; saves {percent(saved)} ± {percent(about)} (predicted {foreseen}): {sign}"
        yield line


def main() -> None:
    """Write the page."""
    given = make_parser(__doc__).parse_args()
    table = Table(
        preface=[
            "# Out-of-order backprop",
            "",
            "`python -m benchmarks.seeds_out_of_order`. Pipeline: 24 layers, 4 devices, F = I = W = 1, no time on",
            "links; fast-forwarded order against GPipe; *joint*: the joint planner, with as many stages per device.",
            "",
        ],
        header=(
            "M", "placement", "GPipe", "fast-forwarded", "ratio", "expected", "to two digits", "joint", "ratio", "gap",
        ),
        output=given.output,
    )  # fmt: skip
    for num_microbatches, mod, expected in EXPECTED:
        table.add(ratio_cells(num_microbatches, mod, expected=expected, seconds=1.0 if given.quick else 5.0))
    table.close(
        "Six layers over gloo, every layer a stage (*tasks apart*: LayerPipe's placement):",
        "",
        *orders_page(4),
        "",
        "## Data parallel: reverse first-k",
        "",
        f"An estimate from shapes: {BATCH} samples on each of {WORKERS} workers, ring all-reduce layer by layer.",
        *(line for network in ("ResNet-50", "ResNet-101") for line in first_k_page(network)),
        "",
        "An emulation: real processes over gloo whose F, I and W sleep until 8 ms are over, gradients on a link that",
        "sleeps until three times a W is over. What real arithmetic gains is in `benchmarks.seeds_executed`.",
        *(
            line
            for count in ([2] if given.quick else [2, 4])
            for line in run_page(count, rounds=2 if given.quick else 8)
        ),
        "",
        "## One device",
        *one_device_page(["transformer"] if given.quick else list(SMALL_NETWORKS), rounds=4 if given.quick else 16),
    )


if __name__ == "__main__":
    main()
