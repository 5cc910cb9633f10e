"""`python -m planner.execute` as a user starts it, and what its processes say when something is wrong."""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from planner.document import render_plan
from planner.execute.table.layout import make_layout
from planner.fidelity.advice import advise
from planner.fidelity.attribution import Comparison
from planner.fidelity.executed_run import read_run
from planner.fidelity.run_replay import replay_ns
from planner.plan import Plan
from planner.problem import Options, Problem
from planner.progress import Limits
from planner.simulation.simulate import simulate
from profiles.importers.rank_steps import read_run_steps
from tests.api.worlds import make_evidence, make_plan, make_problem, make_workload
from tests.free_ports import free_port
from tests.integration.clean_end import require_clean_end
from tests.integration.forked_ranks import EXECUTOR, Rank, run_forked
from tests.long_runs import IS_LONG, long_only
from tests.planner.execute.orders import make_random_plan
from tests.planner.export import chains
from tests.planner.hasty import make_plan as planner_plan

HERE = Path(__file__).parents[2] / "integration"
ROOT = HERE.parents[1]
PLAN = make_random_plan("0 1", cut=(2, 2), num_microbatches=4)
WIDE_MODEL = """\
import torch
from torch import nn
from planner.execute.training import Training

def make_training():
    return Training(
        layers={name: lambda: nn.Sequential(nn.Linear(512, 512), nn.GELU()) for name in ("l0", "l1", "l2", "l3")},
        loss=lambda output, target: (output - target).square().mean(),
        batch=lambda step: (torch.ones(3072, 512), torch.zeros(3072, 512)),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3),
    )
"""
"""Layers that take some milliseconds."""

LIMIT_S = 90
"""None may hang."""


def environment(**more: str) -> dict[str, str]:
    paths = os.pathsep.join([str(ROOT), str(HERE), os.environ.get("PYTHONPATH", "")])
    return os.environ | {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": paths} | more


def write(plan: Plan, path: Path) -> Path:
    path.write_text(render_plan(plan))
    return path


def torchrun(num_processes: int, *arguments: object) -> subprocess.CompletedProcess[str]:
    launcher = [
        sys.executable,
        "-m",
        "planner.execute.run.agent",
        "--standalone",
        "--nproc-per-node",
        str(num_processes),
    ]
    command = [*launcher, "-m", "planner.execute", *map(str, arguments)]
    return subprocess.run(command, env=environment(), cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S)


def start_ranks(
    commands: Sequence[Sequence[object]], *, program: str = EXECUTOR, folder: Path = ROOT, **each: Sequence[str]
) -> list[tuple[int, str]]:
    """Exit code and standard error of every rank, started without a launcher; `each`: variables that differ."""
    port = free_port()
    common = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(len(commands))}
    with tempfile.TemporaryDirectory() as logs:
        ranks = [
            Rank(
                arguments=[str(word) for word in command],
                environment=environment(**common, RANK=str(rank), LOCAL_RANK=str(rank))
                | {key: values[rank] for key, values in each.items()},
                folder=folder,
                log=Path(logs) / f"{rank}.log",
                program=program,
            )
            for rank, command in enumerate(commands)
        ]
        return run_forked(ranks, timeout_s=LIMIT_S)


def messages(error: str) -> list[str]:
    """What the executor itself says."""
    return [line for line in error.splitlines() if line.startswith("planner.execute: ")]


def report(error: str) -> list[str]:
    """Its last message with the lines that belong to it."""
    lines = error.splitlines()
    start = max(place for place, line in enumerate(lines) if line.startswith("planner.execute: "))
    return [lines[start], *(line for line in lines[start + 1 :] if line.startswith("  rank "))]


def run(plan: Path, model: str, *more: object, **each: Sequence[str]) -> list[tuple[int, str]]:
    return start_ranks([[plan, "--model", f"execute_failures:{model}", *more]] * 2, **each)


def losses(path: Path) -> list[list[float]]:
    return [json.loads(line)["losses"] for line in path.read_text().splitlines()]


def launch(num_processes: int, command: Sequence[object]) -> tuple[int, str]:
    """Exit code and standard error of a run that torchrun starts; in `make test`, of forks (test_three_commands.py has
    torchrun start the same model)."""
    if IS_LONG:
        done = torchrun(num_processes, *command)
        return done.returncode, done.stderr
    answers = start_ranks([command] * num_processes)
    return next((code for code, _ in answers if code), 0), "".join(said for _, said in answers)


def test_the_documented_model_trains_as_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tests that the documented model, as the planner plans it, has one process's losses, and a timeline of each."""
    (training,) = re.findall(
        r"```\n(Training\(.*?)```", (ROOT / "docs" / "how-to" / "run-it.md").read_text(), flags=re.DOTALL
    )
    (start,) = re.findall(r"```python\n(.*?)def make_training", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    (tmp_path / "my_model.py").write_text(f"{start}def make_training() -> Training:\n    return {training}")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    model = ["--model", "my_model:make_training", "--steps", 3]
    options = Options(max_replicas=1, partition=(("l0",), ("l1",)), placement=((("d1",),), (("d0",),)))
    problem = chains.make_chain("ww", num_devices=3, num_microbatches=4, options=options)
    plan = planner_plan(problem, limits=Limits(time_limit_s=60, max_rounds=1))
    command = [write(plan, tmp_path / "2.json"), *model, "--losses", tmp_path / "2", "--trace", tmp_path / "t"]
    code, said = launch(2, command)
    require_clean_end(code, said)
    alone = make_random_plan("0", cut=(2,), num_microbatches=4)
    require_clean_end(*launch(1, [write(alone, tmp_path / "1.json"), *model, "--losses", tmp_path / "1"]))
    assert losses(tmp_path / "2") == losses(tmp_path / "1")
    assert len(losses(tmp_path / "1")) == 3
    assert re.findall(r"^iteration (\d): loss [0-9.]+, [0-9.]+ ms$", said, re.MULTILINE) == ["0", "1", "2"]
    events = json.loads((tmp_path / "t" / "timeline.json").read_text())["traceEvents"]
    for rank, device in enumerate(make_layout(plan).devices):
        row = [str(action) for action in plan.schedule[device]]
        document: dict[str, Any] = json.loads((tmp_path / "t" / f"rank{rank}.json").read_text())
        assert [[name for name, _, _ in spans] for spans in document["iterations"]] == [row] * 3
        assert all(start <= end for spans in document["iterations"] for _, start, end in spans)
        assert [event["name"] for event in events if event["ph"] == "X" and event["pid"] == rank + 1] == row * 3
    require_parts_that_add_up(problem, plan, tmp_path / "t")


@pytest.mark.parametrize(
    ("placement", "backward", "num_ranks"), [("0/1 2/3", "B", 4), ("0 1 0 1", "IW", 2)], ids=["replicas", "chunks"]
)
def test_what_ran_is_replayed_within_half_a_per_cent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, placement: str, backward: str, num_ranks: int
):
    """Tests that the traces of 2 pipelines of 2 stages, and of 2 chunks with I and W apart, give every action in its
    order and, replayed, what the iterations took, and that chunks are advised on."""
    (tmp_path / "wide_model.py").write_text(WIDE_MODEL)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    num_stages = len(placement.split())
    plan = make_random_plan(placement, cut=[4 // num_stages] * num_stages, num_microbatches=6, backward=backward)
    command = [write(plan, tmp_path / "p.json"), "--model", "wide_model:make_training", "--steps", 4]
    done = start_ranks([[*command, "--trace", tmp_path / "t"]] * num_ranks)
    for code, said in done:
        require_clean_end(code, said)
    steps = read_run_steps([tmp_path / "t"])
    assert len(steps) == 3
    rows = [plan.schedule[f"d{rank}"] for rank in range(num_ranks)]
    for step in steps:
        ran = sorted(tuple(f"{a.stage}{a.kind}{a.microbatch}" for a in row) for row in step.actions.values())
        assert ran == sorted(tuple(map(str, row)) for row in rows)
    assert statistics.median(abs(replay_ns(step) / step.measured_ns - 1) for step in steps) <= 0.005
    assert advise(steps, blocks_per_stage=2).is_plain == (num_stages == 2)


def require_parts_that_add_up(problem: Problem, plan: Plan, folder: Path) -> None:
    """The run's own figures, replayed, give what it took."""
    iterations = read_run(folder, plan)
    comparison = Comparison(problem, plan, timeline=simulate(problem, plan), iterations=iterations)
    for iteration in iterations:
        attribution = comparison.attribute(iteration)
        assert attribution.measured_ns == iteration.duration_ns > 0
        assert sum(part for _, part in attribution.parts) == attribution.measured_ns - attribution.predicted_ns


def test_another_plan_goes_on_from_a_checkpoint(tmp_path: Path):
    """Tests that two iterations under one plan and two under another, from its checkpoint, are four without a break."""
    plan, other = (
        write(PLAN, tmp_path / "a.json"),
        write(make_random_plan("1 0 1 0", num_microbatches=4), tmp_path / "b.json"),
    )
    start = run(plan, "sound", "--steps", 2, "--save", tmp_path / "c")
    rest = run(other, "sound", "--steps", 2, "--load", tmp_path / "c", "--losses", tmp_path / "rest")
    whole = run(plan, "sound", "--steps", 4, "--losses", tmp_path / "whole")
    assert [code for code, _ in (*start, *rest, *whole)] == [0] * 6, (start, rest, whole)
    assert losses(tmp_path / "rest") == losses(tmp_path / "whole")[2:]
    refused = run(plan, "another_width", "--load", tmp_path / "c")
    assert [code for code, _ in refused] == [1, 1]
    for _, error in refused:
        assert "weights/l3:inner.weight has shape (12, 6), but the model needs (7, 6)" in report(error)[0]


def test_processes_find_their_devices(tmp_path: Path):
    """Tests that processes that the launcher numbered against the plan run it all the same, by host and slot."""
    plan = write(PLAN, tmp_path / "plan.json")
    cluster = tmp_path / "cluster.json"
    cluster.write_text(json.dumps({"devices": [{"name": "d0", "host": "b"}, {"name": "d1", "host": "a"}]}))
    more = ["--cluster", cluster, "--trace", tmp_path / "t"]
    answers = run(plan, "sound", *more, PLAN_NODE=["a", "b"], LOCAL_RANK=["0", "0"])
    assert [code for code, _ in answers] == [0, 0]
    assert "iteration 0: loss" in answers[0][1]  # the launcher's rank 0 is on host a: the second device, the last stage
    assert json.loads((tmp_path / "t" / "rank1.json").read_text())["device"] == "d1"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("other_model", "the plan is for another model: it has 4 layers and the model 5; 1 of its layers are not in"),
        ("shapes_that_do_not_fit", "stage 1 (layers 'l2' to 'l3') cannot take what it is given: "),
    ],
)
def test_what_does_not_fit_is_said_by_every_rank(tmp_path: Path, model: str, message: str):
    """Tests that a plan for another model, and shapes that do not fit, end in one message on every rank."""
    (first, one), (second, other) = run(write(PLAN, tmp_path / "plan.json"), model)
    assert (first, second) == (2, 2)
    assert messages(one) == messages(other)
    assert len(messages(one)) == 1
    assert message in messages(one)[0]


def test_a_loss_that_microbatches_change_is_told_once(tmp_path: Path):
    """Tests that the process with the losses tells it, before they are trained all the same."""
    plan = write(PLAN, tmp_path / "plan.json")
    answers = run(plan, "coupled")
    said = [text for _, error in answers for text in messages(error) if "by halves" in text]
    assert [code for code, _ in answers] == [0, 0]
    assert len(said) == 1
    assert "4 microbatches do not train as their batch would" in said[0]
    assert not [text for _, error in run(plan, "sound") for text in messages(error)]


def test_a_wrong_number_of_processes_is_said_by_every_rank(tmp_path: Path):
    """Tests that three processes for two devices each say how many to start, before they wait for anyone."""
    plan = write(PLAN, tmp_path / "plan.json")
    for code, said in start_ranks([[plan, "--model", "execute_failures:sound"]] * 3):
        assert code == 2
        (line,) = messages(said)
        assert "the plan runs on 2 devices (d0, d1), but 3 processes were started; start 2" in line


def test_another_plan_on_one_rank_is_named(tmp_path: Path):
    """Tests that ranks with different plans say so, all alike."""
    other = make_random_plan("0 1", cut=(2, 2), num_microbatches=4, seed=1)
    plans = [write(PLAN, tmp_path / "0.json"), write(other, tmp_path / "1.json")]
    answers = start_ranks([[plan, "--model", "execute_failures:sound"] for plan in plans])
    assert [code for code, _ in answers] == [2, 2]
    assert messages(answers[0][1]) == messages(answers[1][1])
    assert "rank 1 (d1) has another plan than rank 0 (d0)" in messages(answers[0][1])[0]


@long_only
def test_a_killed_rank_ends_all(tmp_path: Path):
    """Tests that under torchrun the others say who is gone and what they were waiting for."""
    done = torchrun(2, write(PLAN, tmp_path / "plan.json"), "--model", "execute_failures:killed")
    assert done.returncode != 0
    headline, *ranks = report(done.stderr)
    assert "rank 1 (d1) does not answer: killed, or out of reach" in headline
    assert re.fullmatch(r"  rank 0 \(d0\): (waits|computes) .*", ranks[0])
    assert ranks[1] == "  rank 1 (d1): no answer"


def test_a_failing_rank_is_quoted_by_all(tmp_path: Path):
    """Tests that an error in a layer stands in one message on every rank, with its traceback where it happened."""
    answers = run(write(PLAN, tmp_path / "plan.json"), "raising")
    assert [code for code, _ in answers] == [1, 1]
    for _, error in answers:
        headline, *ranks = report(error)
        assert re.search(r": rank 1 \(d1\) failed in 1F[0-3]: RuntimeError: the layer's own fault$", headline)
        own = r"waits in 0I[0-3] for stage 1 on rank 1 \(d1\)|computes 0[FIW][0-3]"  # or not waiting yet
        assert re.fullmatch(rf"  rank 0 \(d0\): ({own})", ranks[0])
    assert ["Traceback" in error for _, error in answers] == [False, True]


def test_a_wait_for_several_replicas_names_all(tmp_path: Path):
    """Tests that where replicas are uneven, a rank says every stage and rank that it waits for, or asks just then."""
    plan = write(make_random_plan("0 1/2", cut=(2, 2), num_microbatches=4, backward="B"), tmp_path / "plan.json")
    answers = start_ranks([[plan, "--model", "execute_failures:raising"]] * 3)
    assert [code for code, _ in answers] == [1, 1, 1]
    for _, error in answers:
        headline, first, *_ = report(error)
        assert re.search(r": rank 1 \(d1\) failed in 1F[0-3]: RuntimeError: the layer's own fault$", headline)
        waits = r"B[0-3] for stage 1 on rank 1 \(d1\), stage 1 on rank 2 \(d2\)|RECV_B[0-3]<1@[12]"
        assert re.fullmatch(rf"  rank 0 \(d0\): (waits in 0({waits})|computes 0[FB][0-3])", first)


def test_a_hanging_rank_is_found_within_the_timeout(tmp_path: Path):
    """Tests that a rank that does not get on ends all, and that each rank says which action it is in."""
    answers = run(write(PLAN, tmp_path / "plan.json"), "hanging", "--timeout", 5)
    assert [code for code, _ in answers] == [1, 1]
    for _, error in answers:
        headline, *ranks = report(error)
        waited = re.search(r"rank [01] \(d[01]\) has not got on for (\d+) s", headline)
        assert waited is not None
        assert 5 <= int(waited[1]) < 30
        assert re.fullmatch(r"  rank 0 \(d0\): waits in 0I[0-3] for stage 1 on rank 1 \(d1\)", ranks[0])
        assert re.fullmatch(r"  rank 1 \(d1\): computes 1F[0-3]", ranks[1])


@pytest.mark.parametrize(("model", "where"), [("greedy", "failed in 1F[0-3]"), ("too_large", "failed")])
def test_a_rank_without_memory_is_named(tmp_path: Path, model: str, where: str):
    """Tests that running out of memory, for weights or on the way, is called that, beside what the plan expected."""
    problem = make_problem(make_workload())
    evidence = make_evidence(problem, make_plan(problem))
    plan = replace(PLAN, evidence=replace(evidence, peak_bytes={"d0": 10, "d1": 4_000}))
    answers = run(write(plan, tmp_path / "plan.json"), model)
    assert [code for code, _ in answers] == [1, 1]
    for _, error in answers:
        pattern = rf"rank 1 \(d1\) {where}: out of memory \(the plan expects at most 4,000 bytes\)"
        assert re.search(pattern, report(error)[0])
