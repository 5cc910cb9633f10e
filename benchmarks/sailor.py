"""Sailor (SOSP 2025) on its own ground: OPT-350M, a global batch of 1,024, its profiles, network and memory.

`python -m benchmarks.sailor -o docs/benchmarks/sailor.md`. The files in `benchmarks/sailor/` are those of its
repository (MIT, licence beside them), cut to one model, zone and two GPU types; `plans.json` has the plans that its
planner, built and run as its repository says, returned for the six clusters.
"""

import json
import math
import time
from dataclasses import dataclass
from functools import cache
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Table, make_parser, percent
from planner.batch_problem import BatchProblem, problem_for
from planner.layout.costs import CostModel
from planner.lowering import make_instance
from planner.plan import Plan, Stage
from planner.planning import Limits, Progress, make_plan
from planner.planning.starts.conversions import plan_of, rate
from planner.problem import Options, Problem
from planner.simulation.simulate import simulate
from planner.verify import verify
from profiles.cluster import Cluster, Device, Link
from profiles.importers.sailor import FLOAT_BYTES, STATE_FLOATS, read_sailor
from profiles.microbatch_sizes import profile_at
from profiles.model_profile import ModelProfile
from solver_models.local_search.search import Searcher

FOLDER = Path(__file__).parent / "sailor"
MODEL, BATCH, HOST_SIZE, ZONE = "OPT-350", 1024, 4, "us-central1-a"
MEMORY_GIB = {"A100-40": 40, "V100-16": 16}
RUNTIME_BYTES = 2 * 10**9
"""What its memory model adds on every GPU of degree 1; 10**9 more above that."""
BUCKET_BYTES = 500_000_000
"""Most that DeepSpeed reduces at once."""
LIMIT_S = 12.0
"""Seconds of a question, so that answers come within the 14.5 s of Sailor's search on its largest cluster."""
LEVEL = 0.001
"""Plans are level that differ by less."""
SIZES = (8, 16, 32, 64, 128, 256, 512, 1024)
SHARES = (1, 2, 4, 8)
"""Samples of a replica that were measured."""
CLUSTERS = ((32, 0), (80, 0), (128, 0), (32, 96), (80, 240), (128, 384))
OPTIONS = Options(split_backward=False, max_stages_per_device=1, max_width=HOST_SIZE, receive_buffers=0)
"""What its executor does: fused backward passes, one stage per device; its memory model knows no receive buffers."""


@cache
def read_profile() -> ModelProfile:
    """Its profiles and memory model of OPT-350M as ours."""
    paths = [FOLDER / MODEL / gpu / "profile.json" for gpu in MEMORY_GIB] + [FOLDER / "llm_info.json"]
    return read_sailor({str(path): path.read_bytes() for path in paths}).profile


@cache
def read_network() -> dict[str, Any]:
    """Coefficients of its bandwidth polynomials by sender, its degree, receiver and its degree."""
    tree = json.loads((FOLDER / "multizone_bandwidths_het.json").read_text(encoding="utf-8"))[ZONE]
    return {gpu: {d: to[ZONE] for d, to in by_degree.items()} for gpu, by_degree in tree.items()}


def send_s(num_bytes: float, ends: tuple[tuple[str, int], tuple[str, int]]) -> float:
    """Seconds of a message by its polynomial in log2 of the megabytes."""
    (sender, from_degree), (receiver, to_degree) = ends
    coefficients = read_network()[sender][str(from_degree)][receiver][str(to_degree)][0]
    return float(num_bytes / 1e9 / np.polyval(coefficients, math.log2(num_bytes / 1e6)))


@cache
def fit_link(gpu: str) -> tuple[int, int]:
    """Bytes per second and nanoseconds whose sum is its time of messages of 1 to 64 MB, least squares of the ratio."""
    sizes = np.logspace(0, 6, 61, base=2) * 1e6
    times = np.array([send_s(size, ((gpu, 1), (gpu, 1))) for size in sizes])
    rows = np.stack([np.ones_like(sizes), sizes], axis=1) / times[:, None]
    (latency_s, per_byte), *_ = np.linalg.lstsq(rows, np.ones_like(sizes), rcond=None)
    return round(1 / per_byte), round(latency_s * 1e9)


def make_cluster(num_a100: int, num_v100: int, *, overlap: bool) -> Cluster:
    """Hosts of four GPUs, each GPU with a link of its own to one switch, as its model knows no other."""
    counts = {"A100-40": num_a100, "V100-16": num_v100}
    devices = [
        Device(
            name=f"{gpu}-{number}",
            type=gpu,
            host=f"{gpu}-host-{number // HOST_SIZE}",
            memory_bytes=MEMORY_GIB[gpu] * 2**30,
            reserved_bytes=RUNTIME_BYTES,
        )
        for gpu, count in counts.items()
        for number in range(count)
    ]
    links = []
    for device in devices:
        bandwidth, latency = fit_link(device.type)
        links.append(Link(a=device.name, b="network", bandwidth_bytes_per_s=bandwidth, latency_ns=latency // 2))
    name = f"{num_a100} A100" + (f" + {num_v100} V100" if num_v100 else "")
    return Cluster(name=name, devices=tuple(devices), links=tuple(links), switches=("network",), overlap=overlap)


def make_question(
    num_a100: int, num_v100: int, *, overlap: bool = True, batch: int = BATCH, sizes: tuple[int, ...] = SIZES
) -> BatchProblem:
    """Its question as ours: fused backward passes, one stage per device, no receive buffers, as it has none."""
    return BatchProblem(
        profile=read_profile(),
        cluster=make_cluster(num_a100, num_v100, overlap=overlap),
        global_batch_size=batch,
        microbatch_sizes=sizes,
        options=OPTIONS,
    )


Group = tuple[str, int]
"""Type and degree of one replica."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SailorStage:
    """A stage as its simulator sees it."""

    layers: range
    """Consecutive ones."""
    samples: int
    """Of a microbatch, per replica."""
    groups: tuple[Group, ...]
    """The replicas, in order."""

    @property
    def kinds(self) -> tuple[Group, ...]:
        """What replicas there are."""
        return tuple(dict.fromkeys(self.groups))


@dataclass(frozen=True, slots=True, kw_only=True)
class SailorPlan:
    """A plan as its simulator sees it."""

    stages: tuple[SailorStage, ...]
    """In order."""

    @property
    def num_microbatches(self) -> int:
        """Rounded up where the replicas' samples do not divide the batch."""
        return -(-BATCH // self._at_once)

    @property
    def batch(self) -> int:
        """Samples of an iteration: at least as many as are asked for."""
        return self.num_microbatches * self._at_once

    @property
    def sizes(self) -> tuple[int, ...]:
        """Of microbatches that divide its batch and give as many replicas shares that were measured."""
        found = (share * len(self.stages[0].groups) for share in SHARES)
        return tuple(size for size in found if self.batch % size == 0)

    @property
    def _at_once(self) -> int:
        """Samples of a microbatch in all replicas."""
        return self.stages[0].samples * len(self.stages[0].groups)


@cache
def read_times() -> dict[str, Any]:
    """Its profiles: seconds by type, samples, degree and layer."""
    return {gpu: json.loads((FOLDER / MODEL / gpu / "profile.json").read_text(encoding="utf-8")) for gpu in MEMORY_GIB}


@cache
def read_floats() -> dict[str, Any]:
    """Its memory model: floats by degree and layer."""
    document = json.loads((FOLDER / "llm_info.json").read_text(encoding="utf-8"))[MODEL]
    return {degree: [by_layer[str(n)] for n in range(len(by_layer))] for degree, by_layer in document.items()}


def iteration_s(plan: SailorPlan, *, is_corrected: bool) -> float:
    """Seconds of an iteration by its simulator's formulas, written anew from reading them.

    The slowest stage for every microbatch but one, every stage once, the longest update of a layer, the longest
    all-reduce. A stage's messages count as work of the stage. As written, the gradient that a stage sends back has the
    size of its *first layer's output*: on a last stage that is the head alone, that of the logits. Corrected, it has
    the size of what the stage before has sent.
    """
    work = [max(_work_s(stage, group) for group in stage.kinds) for stage in plan.stages]
    messages = [_messages_s(plan, number, is_corrected=is_corrected) for number in range(len(plan.stages))]
    slowest = max(a + b for a, b in zip(work, messages, strict=True))
    updates = (_times(stage, group)[str(stage.layers[0])][2] for stage in plan.stages for group in stage.kinds)
    sync = max(map(_sync_s, plan.stages))
    return float((plan.num_microbatches - 1) * slowest + sum(work) + sum(messages) + max(updates) + sync)


def _times(stage: SailorStage, group: Group) -> dict[str, list[float]]:
    times: dict[str, list[float]] = read_times()[group[0]][str(stage.samples)][str(group[1])]
    return times


def _work_s(stage: SailorStage, group: Group) -> float:
    times = _times(stage, group)
    return sum(times[str(layer)][0] + times[str(layer)][1] for layer in stage.layers)


def _messages_s(plan: SailorPlan, number: int, *, is_corrected: bool) -> float:
    """Seconds that a stage sends per microbatch: activations on, gradients back, at the ends one of them twice."""
    stages, count = plan.stages, len(plan.stages)
    forward = (
        _message_s(stages[number], stages[number + 1], layer=stages[number].layers[-1]) if number < count - 1 else 0
    )
    layer = stages[number].layers[0] - (1 if is_corrected else 0)
    back = _message_s(stages[number], stages[number - 1], layer=layer) if number else 0
    if 0 < number < count - 1:
        return forward + back
    return 2 * back if number else (1 if count <= 3 else 2) * forward


def _message_s(sender: SailorStage, receiver: SailorStage, *, layer: int) -> float:
    """The longest message of any replica; where one side has fewer, it handles all samples of its own."""
    num_bytes = FLOAT_BYTES * read_floats()["1"][layer]["act_output_floats"] * max(sender.samples, receiver.samples)
    most = max(len(sender.groups), len(receiver.groups))
    ends = {(sender.groups[j % len(sender.groups)], receiver.groups[j % len(receiver.groups)]) for j in range(most)}
    return max(send_s(num_bytes, pair) for pair in ends)


def _sync_s(stage: SailorStage) -> float:
    """Ring all-reduce in buckets between neighbours, at the bandwidth of single devices."""
    count = len(stage.groups)
    if count == 1:
        return 0.0
    floats = sum(read_floats()["1"][layer]["params_floats"] for layer in stage.layers)
    whole = FLOAT_BYTES * floats / min(4, *(degree for _, degree in stage.groups))
    sizes = [BUCKET_BYTES] * int(whole // BUCKET_BYTES) + [whole % BUCKET_BYTES]
    pairs = {((a[0], 1), (b[0], 1)) for a, b in pairwise(stage.groups)}
    return max(sum(2 * (count - 1) * send_s(size / count, pair) for size in sizes if size) for pair in pairs)


def fits(plan: SailorPlan) -> bool:
    """Whether every stage fits by its memory model: six floats per parameter, 1F1B's activations, the runtime."""
    for number, stage in enumerate(plan.stages):
        for gpu, degree in stage.kinds:
            held = [read_floats()[str(degree)][layer] for layer in stage.layers]
            state = STATE_FLOATS * FLOAT_BYTES * sum(layer["params_floats"] for layer in held)
            stash = FLOAT_BYTES * stage.samples * sum(layer["act_mem_floats"] for layer in held)
            runtime = RUNTIME_BYTES + (10**9 if degree > 1 else 0)
            if state + stash * (len(plan.stages) - number) + runtime > MEMORY_GIB[gpu] * 2**30:
                return False
    return True


def read_plans(name: str) -> tuple[SailorPlan, ...]:
    """What its planner returned for a cluster, the best by its own estimate first, as far as it fits."""
    plans = []
    for entry in json.loads((FOLDER / "plans.json").read_text(encoding="utf-8"))[name]["plans"]:
        bounds = np.cumsum([0, *entry["layers"]]).tolist()
        plans.append(
            SailorPlan(
                stages=tuple(
                    SailorStage(
                        layers=range(start, end),
                        samples=entry["samples"],
                        groups=tuple((gpu, degree) for gpu, degree, count in groups for _ in range(count)),
                    )
                    for (start, end), groups in zip(pairwise(bounds), entry["stages"], strict=True)
                )
            )
        )
    return tuple(plan for plan in plans if fits(plan))


def as_sailor(question: BatchProblem, plan: Plan) -> SailorPlan:
    """Our plan as its simulator sees it; raises KeyError there if a share was not measured."""
    order = {name: number for number, name in enumerate(question.profile.topological_order)}
    size = plan.problem.microbatch_size
    assert size is not None
    return SailorPlan(
        stages=tuple(
            SailorStage(
                layers=range(order[stage.layers[0]], order[stage.layers[-1]] + 1),
                samples=size // len(stage.replicas),
                groups=tuple((question.cluster.by_name[group[0]].type, len(group)) for group in stage.replicas),
            )
            for stage in plan.stages
        )
    )


def play_by_our_rules_s(plan: SailorPlan) -> float:
    """Seconds of its plan by our contract, pipeline by pipeline as it pairs replicas, with our policies' best orders.

    Replicas of several degrees have no all-reduce in our contract: they get the one that its simulator has, at the
    smallest degree, on our links.
    """
    lanes = dict.fromkeys(
        tuple(stage.groups[j] for stage in plan.stages) for j in range(max(len(stage.groups) for stage in plan.stages))
    )
    ends = np.max([_play_lane(plan, lane) for lane in lanes], axis=0)
    return float(max(end + _ring_s(stage) for end, stage in zip(ends, plan.stages, strict=True)) + _steps_s(plan))


def _play_lane(plan: SailorPlan, lane: tuple[Group, ...]) -> list[float]:
    """Seconds at which the stages of one pipeline of single replicas end."""
    devices, stages, links = [], [], []
    names = [f"layer {number}" for number in range(plan.stages[-1].layers[-1] + 1)]
    for number, ((gpu, degree), stage) in enumerate(zip(lane, plan.stages, strict=True)):
        group = tuple(f"{number}-{member}" for member in range(degree))
        devices += [
            Device(name=name, type=gpu, host=f"host-{number}", memory_bytes=MEMORY_GIB[gpu] * 2**30) for name in group
        ]
        bandwidth, latency = fit_link(gpu)
        links += [Link(a=name, b="network", bandwidth_bytes_per_s=bandwidth, latency_ns=latency // 2) for name in group]
        stages.append(Stage(layers=tuple(names[stage.layers[0] : stage.layers[-1] + 1]), replicas=(group,)))
    problem = Problem(
        profile=profile_at(read_profile(), plan.stages[0].samples),
        cluster=Cluster(name="lane", devices=tuple(devices), links=tuple(links), switches=("network",)),
        num_microbatches=plan.num_microbatches,
        options=OPTIONS,
    )
    searcher = Searcher(make_instance(problem, CostModel(problem)))
    timeline = simulate(problem, plan_of(problem, searcher, candidate=rate(problem, searcher, stages=tuple(stages))))
    ends = [0] * len(stages)
    for action in chain.from_iterable(timeline.actions.values()):
        ends[action.action.stage] = max(ends[action.action.stage], action.end_ns)
    return [end / 1e9 for end in ends]


def _ring_s(stage: SailorStage) -> float:
    """Our ring all-reduce of a stage: bytes of the smallest degree on the slowest link of its types."""
    count = len(stage.groups)
    degree = min(degree for _, degree in stage.groups)
    floats = sum(read_floats()[str(degree)][layer]["params_floats"] for layer in stage.layers)
    links = [fit_link(gpu) for gpu, _ in stage.kinds]
    bandwidth, latency_s = min(link[0] for link in links), max(link[1] for link in links) / 1e9
    return 2 * (count - 1) * (FLOAT_BYTES * floats / count / bandwidth + latency_s) if count > 1 else 0.0


def _steps_s(plan: SailorPlan) -> float:
    """Our optimizer's step: the longest of a device."""
    profile = read_profile()
    return max(
        sum(profile.by_name[f"layer {layer}"].optimizer_ns(gpu) for layer in stage.layers) / degree / 1e9
        for stage in plan.stages
        for gpu, degree in stage.kinds
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Our plan for a cluster."""

    plan: SailorPlan
    """As its simulator sees it."""
    makespan_s: float
    """By our contract."""
    first_s: float
    """Until the first verified plan."""
    seconds: float
    """Until the answer."""
    cpu_s: float
    """Of all threads until the answer: what others on the machine took does not count."""
    gap: float
    """Certified."""
    is_verified: bool
    """Once more, memory included."""


def ask(counts: tuple[int, int], *, overlap: bool, batch: int, sizes: tuple[int, ...], limit_s: float) -> Answer:
    """Plan one of its clusters; both devices of a transfer are busy with it unless they `overlap`."""
    question, first = make_question(*counts, overlap=overlap, batch=batch, sizes=sizes), list[float]()
    begin, begin_cpu_s = time.monotonic(), time.process_time()

    def listen(progress: Progress) -> None:
        if not first and progress.incumbent is not None:
            first.append(time.monotonic() - begin)

    plan = make_plan(question, limits=Limits(time_limit_s=limit_s), on_progress=listen)
    seconds, cpu_s, evidence = time.monotonic() - begin, time.process_time() - begin_cpu_s, plan.evidence
    assert evidence is not None
    return Answer(
        plan=as_sailor(question, plan),
        makespan_s=evidence.makespan_ns / 1e9,
        first_s=first[0],
        seconds=seconds,
        cpu_s=cpu_s,
        gap=evidence.gap,
        is_verified=verify(problem_for(question, plan), plan).passed and not evidence.interpolated_costs,
    )


def describe(plan: SailorPlan) -> str:
    """Layers of every stage with its replicas, e.g. `13: 3 A1 + 24 V4` for degrees 1 and 4 of A100 and V100."""
    stages = []
    for stage in plan.stages:
        kinds = (f"{stage.groups.count(kind)} {kind[0][0]}{kind[1]}" for kind in stage.kinds)
        stages.append(f"{len(stage.layers)}: {' + '.join(kinds)}")
    samples = "/".join(dict.fromkeys(str(stage.samples) for stage in plan.stages))
    return f"{plan.num_microbatches} x {samples} samples; " + ", ".join(stages)


def rate_s(seconds: float) -> str:
    """Iterations per second."""
    return f"{1 / seconds:.4f}" if math.isfinite(seconds) else "share not measured"


def its_seconds(answer: Answer, *, is_corrected: bool) -> float:
    """Seconds of our plan by its formulas; infinity where a replica takes samples that were not measured."""
    try:
        return iteration_s(answer.plan, is_corrected=is_corrected)
    except KeyError:
        return math.inf


HEADER = (
    "cluster", "question", "batch", "ours: ours", "its plan: ours", "ours: its", "its plan: its", "ours: as written",
    "its plan: as written", "gap", "first plan s", "answer s", "CPU s", "its search + set-up s",
    "fits both memory models",
)  # fmt: skip

PREFACE = (
    "# Sailor on its own ground",
    "",
    "OPT-350M, sequences of 2,048, a global batch of 1,024 samples on six clusters; Sailor's profiles, bandwidth "
    "polynomials and memory model (`benchmarks/sailor/`, MIT). Iterations per second, larger is better. Each plan is "
    "played by three rules: *ours* is docs/model.md, links fitted to the polynomials for 1 to 64 MB; *its* are the "
    "formulas of Sailor's simulator, written anew, with a boundary's gradient as large as its activation; "
    "*as written* they charge the output of a stage's first layer, which on a stage of the head alone is the logits. "
    "Two questions are put to the planner, each with the limit of an answer: transfers beside computation (`overlap`), "
    "and devices busy with their transfers (`busy`), which is closer to Sailor's rules. Each question leaves size and "
    "number of microbatches, cuts, replicas and degrees open, replicas take whole samples of a microbatch, and no cost "
    "of a returned plan is extrapolated. Where the replicas of Sailor's plan do not divide the batch, it rounds the "
    "number of microbatches up, and its iterations have more samples than were asked for: the planner is asked for "
    "that *batch*, too, in microbatches that give as many replicas 1, 2, 4 or 8 samples. Iterations of unlike batches "
    "are compared as they are, the larger batch getting no credit.",
    "",
)


def main() -> None:
    """Print the table, and write it to `-o`."""
    given = make_parser(__doc__).parse_args()
    table = Table(preface=PREFACE, header=HEADER, output=given.output)
    clusters = CLUSTERS[:1] if given.quick else CLUSTERS
    best: list[tuple[float, ...]] = []
    plans = ["Plans: microbatches x samples per replica, then every stage's layers: replicas, type and degree.", ""]
    for counts in clusters:
        name = f"{counts[0]} A100" + (f" + {counts[1]} V100" if counts[1] else "")
        key = f"{counts[0]}+{counts[1]}"
        theirs = read_plans(key)[0]
        answers = {
            (question, batch): ask(counts, overlap=question == "overlap", batch=batch, sizes=sizes, limit_s=LIMIT_S)
            for batch, sizes in ({theirs.batch: theirs.sizes} | {BATCH: SIZES}).items()
            for question in ("overlap", "busy")
        }
        rivals = (play_by_our_rules_s(theirs), *(iteration_s(theirs, is_corrected=each) for each in (True, False)))
        rows = [_add_row(table, (name, key), asked, answer, rivals) for asked, answer in answers.items()]
        best.append((*(min(column) / rival for column, rival in zip(zip(*rows, strict=True), rivals, strict=True)),))
        plans += [f"* {name}, Sailor: {describe(theirs)}"]
        plans += [
            f"* {name}, ours, {question}, {batch}: {describe(answer.plan)}"
            for (question, batch), answer in answers.items()
        ]
    table.close(*_remarks(best), "", *plans)


def _add_row(
    table: Table, names: tuple[str, str], asked: tuple[str, int], answer: Answer, rivals: tuple[float, ...]
) -> tuple[float, ...]:
    """A row of the table; seconds by our rules (where transfers overlap only), by its, by its as written."""
    question, batch = asked
    own = (
        answer.makespan_s if question == "overlap" else math.inf,
        *(its_seconds(answer, is_corrected=each) for each in (True, False)),
    )
    setup = json.loads((FOLDER / "plans.json").read_text(encoding="utf-8"))[names[1]]
    played = [rate_s(answer.makespan_s) + ("" if question == "overlap" else " (busy)"), rate_s(rivals[0])]
    played += [rate_s(seconds) for pair in zip(own[1:], rivals[1:], strict=True) for seconds in pair]
    fit = answer.is_verified and fits(answer.plan)
    table.add(
        [
            names[0], question, str(batch), *played, percent(answer.gap),
            f"{answer.first_s:.1f}", f"{answer.seconds:.1f}", f"{answer.cpu_s:.1f}",
            f"{setup['search_s']} + {setup['setup_s']}", "yes" if fit else "NO",
        ]
    )  # fmt: skip
    return own


def _remarks(best: list[tuple[float, ...]]) -> list[str]:
    """How often we are ahead by each of the rules, the best of our answers counting."""
    found = []
    for number, rules in enumerate(("ours", "its, corrected", "its, as written")):
        ratios = [row[number] for row in best]
        ahead, level = sum(each < 1 - LEVEL for each in ratios), sum(abs(each - 1) <= LEVEL for each in ratios)
        found.append(
            f"By {rules}: ahead in {ahead}, level in {level}, behind in {len(ratios) - ahead - level}; "
            f"our seconds over those of its plan: {', '.join(f'{each:.3f}' for each in ratios)}."
        )
    return found


if __name__ == "__main__":
    main()
