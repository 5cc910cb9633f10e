"""The screen that `plan` ends with, and the other reports, as text."""

import io
import re
from dataclasses import replace

import pytest
from rich.cells import cell_len
from rich.console import Console, RenderableType

from api.progress import RunSummary
from api.reporting.command_reports import render_explanation, render_simulation, render_verdict
from api.reporting.screen import MAX_BASELINE_ROWS, MAX_STAGE_ROWS, render_screen
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.simulation.explain import explain
from planner.simulation.simulate import simulate
from planner.verify import verify
from profiles.host_times import HostTime
from profiles.model_profile import ProbeRun
from tests.api.worlds import make_evidence, make_plan, make_problem, make_workload

SCREEN = """\
toy  chain of 4 layers · desk: 2 × toy · 3 microbatches of 8 samples

                                     forward    input   weight
stage  layers               devices       ms  grad ms  grad ms      peak memory  of limit
    0  embed … block.0 (2)  gpu0       2.000    2.000    2.000  4.00 / 8.00 GiB  ████░░░░  50 %
    1  block.1 … head (2)   gpu1       3.000    3.000    3.000  3.00 / 8.00 GiB  ███░░░░░  38 %

   plan                        makespan ms  vs ours  bubble  memory  fits
✓  this plan                         31.00    1.00×  27.4 %    50 %  yes
   1F1B (equal layer counts)         31.00    1.00×  27.4 %    50 %  yes
   GPipe (equal layer counts)        44.00    1.42×  49.0 %   125 %  no
   data parallel                         –        –       –       –  –     needs no more than one replica

a pipeline: data parallelism takes 1,096.2 ms (35.36×), 1,073.7 of them for gradients and the optimizer's step
best of its kind             ms  vs ours  microbatches  memory
one process               45.00    1.45×        3 of 8    75 %  one process
DDP, the batch at once        –        –                        pinned to 3 microbatches; --global-batch opens this
DDP, accumulating       1,096.2   35.36×        3 of 8    62 %  data parallel
FSDP2 (fully sharded)   4,432.2  142.97×        3 of 8    62 %  excluded by an option: needs --fully-shard
pipeline                  31.00    1.00×        3 of 8    50 %  this plan
pipeline with replicas        –        –                        none was found

makespan  31.00 ms, as fast as 1F1B (equal layer counts)
          no plan can be below 30.00 ms (work of the busiest device): gap 3.2 %
          with these stages no order of the actions can be below 30.50 ms
verdict   ✓ passed every rule of the independent verifier
search    20.0 s, first plan after 0.41 s; stopped by the time limit; found by: search over everything at once
plan      out/plan.json
picture   out/plan.html
note      not measured: times of 2 layers for 1/2 of a microbatch are assumed to be 1/2 of the whole
          makespan: time of one iteration; bubble: part of it that devices idle; input and weight grad: the backward
          pass; gap: what a better plan could save at most, proved for the times as given"""

EXPLANATION = """\
toy  chain of 4 layers · desk: 2 × toy · 3 microbatches of 8 samples

Milliseconds per device
                  input  weight
device  forward    grad    grad   fill  others' work  transfers  order  drain  makespan
gpu0      6.000   6.000   6.000                9.500      1.500  2.000            31.00
gpu1      9.000   9.000   9.000  2.500                                  1.500     31.00
all      24.2 %  24.2 %  24.2 %  4.0 %        15.3 %      2.4 %  3.2 %  2.4 %   100.0 %"""

SIMULATION = """\
device  actions  first start ms  last end ms  work ms    busy      peak memory  of limit
gpu0          9           0.000        31.00    18.00  58.1 %  4.00 / 8.00 GiB  ████░░░░  50 %
gpu1          9           2.500        29.50    27.00  87.1 %  3.00 / 8.00 GiB  ███░░░░░  38 %

makespan 31.00 ms   longest device 31.00 ms   bubble 27.4 %   6 transfers, 3.000 ms"""


def text_of(renderable: RenderableType, *, width: int = 120) -> str:
    console = Console(file=io.StringIO(), width=width, markup=False, emoji=False, highlight=False)
    console.print(renderable)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    return "\n".join(line.rstrip() for line in text.splitlines())


@pytest.fixture
def problem() -> Problem:
    return make_problem(make_workload())


@pytest.fixture
def plan(problem: Problem) -> Plan:
    plan = make_plan(problem)
    return replace(plan, evidence=make_evidence(problem, plan))


def test_screen(problem: Problem, plan: Plan):
    """Tests that the screen of a small plan is this text."""
    run = RunSummary(elapsed_s=20.02, first_plan_s=0.41, files={"plan": "out/plan.json", "picture": "out/plan.html"})
    assert text_of(render_screen(problem, plan, run=run)) == SCREEN


@pytest.mark.parametrize("width", [60, 80, 100, 140])
def test_nothing_is_cut_on_narrow_screens(problem: Problem, plan: Plan, width: int):
    """Tests that no line is longer than the screen, and that every word of a wide one is on it."""
    run = RunSummary(elapsed_s=20.02, first_plan_s=0.41, files={"plan": "out/plan.json", "picture": "out/plan.html"})
    screen = render_screen(problem, plan, run=run)
    text = text_of(screen, width=width)
    assert max(map(cell_len, text.splitlines())) <= width
    assert set(text_of(screen, width=400).split()) <= set(text.split())


STUMBLED_OVER = re.compile(
    r"\b(SPP|I/W|capped|ZB automatic|\(work\)|incumbent|seeds|joint search|reference|neutral form|span|rounds|patience|"
    r"islands|split|uneven|unequal|skip edges|receive buffers|bucketed)\b"
)
"""Terms that new users did not know: screens do without them."""


@pytest.mark.parametrize("source", ["balanced seeds", "joint search", "SPP", "capped V (largest stage minimised)"])
def test_the_first_screen_needs_no_glossary(problem: Problem, plan: Plan, source: str):
    """Tests that the first screen has no term that only readers of the pages know, whatever found the plan."""
    assert plan.evidence is not None
    shown = replace(plan, evidence=replace(plan.evidence, source=source, stopped_by="rounds", bound_kind="work"))
    text = text_of(render_screen(problem, shown, run=RunSummary(elapsed_s=20.02)))
    assert STUMBLED_OVER.findall(text) == []


def test_a_host_that_sets_the_pace_is_named(problem: Problem, plan: Plan):
    """Tests that the screen names the stages whose host is slower, and what is saved at most without it."""
    host = tuple(HostTime(action=action, host_ns=4_000_000) for action in "FIW")
    layers = tuple(
        replace(layer, costs=tuple(replace(cost, host=host) for cost in layer.costs))
        for layer in problem.profile.layers
    )
    paced = replace(problem, profile=replace(problem.profile, layers=layers))
    text = text_of(render_screen(paced, plan, run=RunSummary(elapsed_s=1)), width=300)
    assert "the host sets the pace in stage 0, 1: CUDA graphs save 41.00 ms with these orders" in text
    assert "at most 42.00 ms (proved)" in text


@pytest.mark.parametrize(
    ("measured_ns", "said"),
    [
        (96, ""),
        (104, ""),
        (80, "took 20.0 % less than its figures say"),
        (125, "took 25.0 % more than its figures say"),
    ],
)
def test_a_profile_that_missed_its_own_run_is_said_to_have(problem: Problem, plan: Plan, measured_ns: int, said: str):
    """Tests that the screen tells how far the profile was from a run of its own, where that is much, on one line."""
    probe = ProbeRun(predicted_ns=100, measured_ns=measured_ns)
    problem = replace(problem, profile=replace(problem.profile, probe=probe))
    lines = text_of(render_screen(problem, plan, run=RunSummary(elapsed_s=1))).splitlines()
    told = [line for line in lines if "a run beside the profile" in line]
    assert len(told) == bool(said)
    assert all(said in line and line.endswith("mean little") for line in told)


@pytest.mark.parametrize("count", [1, 2])
def test_a_device_on_its_own_has_no_neighbours(problem: Problem, plan: Plan, count: int):
    """Tests that what was not measured is told, and of a single device nothing that it could not have."""
    assert plan.evidence is not None
    devices = problem.cluster.devices[:count]
    peaks = {device.name: plan.evidence.peak_bytes[device.name] for device in devices}
    timings = {"conditions": "alone", "action_overhead": "not measured", "message_overhead": "not measured"}
    shown = replace(
        plan,
        stages=tuple(replace(stage, replicas=(("gpu0",),)) for stage in plan.stages),
        evidence=replace(plan.evidence, timings=timings, peak_bytes=peaks, interpolated_costs=()),
    )
    cluster = replace(problem.cluster, devices=devices, links=problem.cluster.links[: count - 1])
    text = text_of(render_screen(replace(problem, cluster=cluster), shown, run=RunSummary(elapsed_s=1)))
    told = {word: word in text for word in ("busy neighbours", "action overhead", "message overhead")}
    assert told == dict.fromkeys(told, count > 1) | {"action overhead": True}


def test_large_screen_fits(problem: Problem, plan: Plan):
    """Tests that many stages with long names, many baselines and many remarks still fit 120 columns and 52 lines."""
    assert plan.evidence is not None
    row = replace(plan.evidence.baselines[1], name="interleaved 1F1B (largest stage or transfer minimised)")
    evidence = replace(plan.evidence, baselines=(row,) * 40, interpolated_costs=("something was scaled " * 10,) * 40)
    stages = tuple(Stage(layers=("embed", "head"), replicas=(("gpu0",), ("gpu1",))) for _ in range(100))
    run = RunSummary(elapsed_s=20.0, first_plan_s=0.4, files={"plan": "p" * 60, "picture": "q", "trace": "r"})
    text = text_of(render_screen(problem, replace(plan, stages=stages, evidence=evidence), run=run))
    assert len(text.splitlines()) <= 52
    assert max(map(len, text.splitlines())) <= 120
    assert f"{100 - MAX_STAGE_ROWS + 1} more" in text
    assert f"{40 - MAX_BASELINE_ROWS + 1} more in the plan's evidence" in text


def test_optimal_and_alone(problem: Problem, plan: Plan):
    """Tests that a proved optimum and the lack of any baseline that fits are said in words."""
    assert plan.evidence is not None
    evidence = replace(plan.evidence, lower_bound_ns=plan.evidence.makespan_ns, gap=0.0, baselines=())
    text = text_of(render_screen(problem, replace(plan, evidence=evidence), run=RunSummary(elapsed_s=1.0)))
    assert "31.00 ms, where no baseline fits into the memory\n" in text
    assert "optimal: no plan can be faster (work of the busiest device)\n" in text


def test_complete_search_is_shown(problem: Problem, plan: Plan):
    """Tests that a plan proved by the complete search says so, and what the certified bound leaves open."""
    assert plan.evidence is not None
    proved = replace(
        plan.evidence,
        proved_by="complete search",
        solution_status="optimal",
        stopped_by="complete_search",
        solver_bound_ns=plan.evidence.makespan_ns,
    )
    text = text_of(render_screen(problem, replace(plan, evidence=proved), run=RunSummary(elapsed_s=2.0)), width=160)
    assert "optimal: a complete search found nothing faster" in text
    assert "it leaves a gap of 3.2 %, which the complete search closed" in text
    assert "proved optimal (complete search)" in text
    assert "stopped by" not in text
    claim = replace(plan.evidence, solver_bound_ns=30_750_000)
    text = text_of(render_screen(problem, replace(plan, evidence=claim), run=RunSummary(elapsed_s=2.0)), width=160)
    assert "the complete search, not at its end, rules out less than 30.75 ms" in text
    claim = replace(claim, solver_bound_ns=plan.evidence.makespan_ns, stopped_by="complete_search")
    text = text_of(render_screen(problem, replace(plan, evidence=claim), run=RunSummary(elapsed_s=2.0)), width=160)
    assert "found nothing faster, but some cases only a solver closed: that is its word" in text
    assert "optimal" not in text


def test_names_are_not_markup(problem: Problem, plan: Plan):
    """Tests that names with brackets and colons are printed as they are."""
    assert plan.evidence is not None
    row = replace(plan.evidence.baselines[1], name="[red]x[/red] :smile:")
    text = text_of(
        render_screen(
            problem, replace(plan, evidence=replace(plan.evidence, baselines=(row,))), run=RunSummary(elapsed_s=1)
        )
    )
    assert "[red]x[/red] :smile:" in text


def test_explanation(problem: Problem, plan: Plan):
    """Tests that the table of where the time goes is this text, and that the chain adds up to the makespan."""
    text = text_of(render_explanation(problem, explain(problem, plan, timeline=simulate(problem, plan))))
    assert text.startswith(EXPLANATION)
    assert "The chain of events that sets the makespan:\n" in text


def test_simulation(problem: Problem, plan: Plan):
    """Tests that the figures per device are this text."""
    assert text_of(render_simulation(problem, simulate(problem, plan))).endswith(SIMULATION)


def test_verdict(problem: Problem):
    """Tests that a verdict says passed, or lists what was expected and what was found."""
    assert text_of(render_verdict(problem, verify(problem, make_plan(problem)))).endswith("✓ passed: no rule is broken")
    tight = make_problem(make_workload(memory_bytes=2**31))
    text = text_of(render_verdict(tight, verify(tight, make_plan(tight))))
    assert "✗ rejected: 2 violations" in text
    assert "at most 2147483648" in text
