"""LayerPipe: `python -m benchmarks.seeds_layer_pipe [--quick] [-o PAGE.md]`.

The expected ratios from layer shapes, bytes moved against a PipeDream-style plan, and a run on four processes.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from benchmarks.convnets import NETWORKS, Shape
from benchmarks.processes import run_ranks
from benchmarks.report import Table, line, make_parser, ms
from planner.baselines.layer_pipe.loads import as_work, load_ratio
from planner.baselines.layer_pipe.plans import bytes_moved, make_layer_pipe_plan
from planner.baselines.layouts import ONE_EACH, SMALLEST_LARGEST
from planner.baselines.registry import METHODS, make_method_plan
from planner.layout.costs import CostModel
from planner.plan import Plan, Stage
from planner.planning import Limits
from planner.planning import make_plan as plan_jointly
from planner.problem import Options, Problem
from planner.verify import verify
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile

EXPECTED = {"VGG16": (1.24, 1.44, 1.60), "VGG11": (1.71, 1.93, 2.00), "ResNet-50": (1.04, 1.06, 1.08)}
PROCESSORS = (7, 8, 9)
MICROBATCHES, SAMPLES, MACS_PER_NS, BANDWIDTH = 8, 4, 7_000, 12_000_000_000


def ratio_rows(network: str) -> Iterator[list[str]]:
    """Rows of the first table."""
    work = as_work([shape.macs for shape in NETWORKS[network]])
    for processors, expected in zip(PROCESSORS, EXPECTED[network], strict=True):
        found, most = load_ratio(work, processors)
        whole, _ = load_ratio(work, processors, halves=False)
        verdict = "met" if round(found, 2) == expected else "MISSED"
        yield [network, str(processors), f"{whole:.3f}", f"{found:.3f}", f"{expected:.2f}", verdict, f"{most:.3f}"]


def make_problem(shapes: list[Shape], num_devices: int) -> Problem:
    """A chain of a network's layers (shortcuts left out), fp32, on devices joined pair by pair."""
    layers = tuple(_layer(shape, is_first=not number) for number, shape in enumerate(shapes))
    edges = tuple(
        Edge(producer=a.name, consumer=b.name, bytes=4 * SAMPLES * min(a.outputs, b.inputs))
        for a, b in pairwise(shapes)
    )
    devices = tuple(Device(name=f"d{number}", type="estimate", memory_bytes=2**40) for number in range(num_devices))
    links = tuple(
        Link(a=a.name, b=b.name, bandwidth_bytes_per_s=BANDWIDTH, latency_ns=5_000)
        for number, a in enumerate(devices)
        for b in devices[number + 1 :]
    )
    return Problem(
        profile=ModelProfile(
            name="layers of a network", layers=layers, edges=edges, microbatch_size=SAMPLES, provenance="from shapes"
        ),
        cluster=Cluster(name="full mesh", devices=devices, links=links),
        num_microbatches=MICROBATCHES,
        options=Options(split_placement=True, max_stages_per_device=len(layers), max_replicas=1),
    )


def _layer(shape: Shape, *, is_first: bool) -> Layer:
    time = -(-SAMPLES * shape.macs // MACS_PER_NS)
    stash = 4 * SAMPLES * (shape.inputs + shape.outputs)
    return Layer(
        name=shape.name,
        costs=(
            LayerCost(
                device_type="estimate",
                forward_ns=time,
                input_grad_ns=0 if is_first else time,
                weight_grad_ns=time,
            ),
        ),
        parameter_bytes=4 * shape.weights,
        state_bytes=16 * shape.weights,
        stash_bytes=stash,
        weight_stash_bytes=stash,
    )


def byte_rows(network: str, processors: int, *, quick: bool) -> Iterator[list[str]]:
    """Rows of the second table: plans for one network, none of them replicated."""
    problem = make_problem(NETWORKS[network], processors)
    costs = CostModel(problem)
    pipedream = next(method for method in METHODS if method.placement is ONE_EACH and method.name == "1F1B")
    contiguous = make_method_plan(costs, pipedream, cut=SMALLEST_LARGEST)
    yield _byte_cells(network, "PipeDream-style, 1F1B", problem=problem, plan=contiguous)
    yield _byte_cells(network, "LayerPipe, whole I", problem=problem, plan=make_layer_pipe_plan(costs, halves=False))
    yield _byte_cells(network, "LayerPipe, halves of I", problem=problem, plan=make_layer_pipe_plan(costs))
    limits = Limits(time_limit_s=2.0 if quick else 10.0)
    at_home = replace(problem, options=replace(problem.options, split_placement=False))
    for name, asked in (
        ("PipeDream-style cut, W and halves of I placed", _with_stages(problem, contiguous.stages)),
        ("joint planner, nothing elsewhere", at_home),
        ("joint planner, W and halves of I placed", problem),
    ):
        yield _byte_cells(network, name, problem=asked, plan=plan_jointly(asked, limits=limits))


def _with_stages(problem: Problem, stages: tuple[Stage, ...]) -> Problem:
    """The stages are decided, a layer each on its device: what is open is the order, and where I and W are."""
    options = replace(
        problem.options,
        partition=tuple((layer,) for stage in stages for layer in stage.layers),
        placement=tuple(stage.replicas for stage in stages for _ in stage.layers),
    )
    return replace(problem, options=options)


def _byte_cells(network: str, name: str, *, problem: Problem, plan: Plan) -> list[str]:
    verdict = verify(problem, plan)
    assert verdict.passed, verdict.violations
    assert verdict.timeline is not None
    timeline = verdict.timeline
    busiest = max(sum(timed.end_ns - timed.start_ns for timed in word) for word in timeline.actions.values())
    moved = f"{bytes_moved(timeline) / 1e6:,.1f}"
    return [network, str(len(problem.cluster.devices)), name, ms(busiest), ms(timeline.makespan_ns), moved, "yes"]


def run_page() -> Iterator[str]:
    """Four processes against one."""
    answer = json.loads(run_ranks("benchmarks.layer_pipe_worker", 4))
    yield (
        "Four processes over gloo, six linear layers, four microbatches: W of "
        f"{answer['weight_grads_elsewhere']} layers on another rank than F, I of {answer['input_grads_halved']} layers "
        "in two halves on two ranks. Largest "
        f"difference from one process: {answer['worst_relative_difference']:.1e} of the gradient (bit by bit equal: "
        f"{answer['is_bitwise_equal']}); bytes sent: {answer['bytes_moved']:,}, as many as the simulator counts."
    )


def main() -> None:
    """Write the page."""
    given = make_parser(__doc__).parse_args()
    table = Table(
        preface=[
            "# LayerPipe",
            "",
            "`python -m benchmarks.seeds_layer_pipe`. Largest load of contiguous whole layers over that of free",
            "placement; multiply-accumulates of the layers with weights, F = I = W, no I in the first layer.",
            "*At most*: against the floor of every placement (even share, largest task).",
            "",
        ],
        header=("network", "processors", "without halves", "with halves", "expected", "to two digits", "at most"),
        output=given.output,
    )
    for network in EXPECTED:
        for cells in ratio_rows(network):
            table.add(cells)
    sizes = [("VGG11", 8)] if given.quick else [(network, 8) for network in EXPECTED]
    header = ("network", "devices", "plan", "busiest device ms", "makespan ms", "MB moved per iteration", "verified")
    table.close(
        f"{MICROBATCHES} microbatches of {SAMPLES} samples under the synchronous barrier, {BANDWIDTH / 1e9:g} GB/s:",
        "",
        line(header),
        "|" + " --- |" * len(header),
        *(line(cells) for network, processors in sizes for cells in byte_rows(network, processors, quick=given.quick)),
        "",
        *run_page(),
    )


if __name__ == "__main__":
    main()
