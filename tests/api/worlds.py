"""A small world for the tests of the command line: four layers, two devices, and plans with their evidence."""

import io
import json
import sys
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from api.cli import main
from planner.actions import parse_action
from planner.document import render_plan
from planner.plan import BaselineResult, Evidence, Plan, Stage
from planner.problem import Problem
from planner.simulation.simulate import simulate
from planner.verify import verify
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile
from profiles.workload import Workload, dump_workload

MILLISECOND = 10**6


def make_workload(*, memory_bytes: int = 8 * 2**30, num_microbatches: int | None = 3) -> Workload:
    """Layers of 1, 1, 1 and 2 ms; 1 GiB of state and half a GiB of stash each; a byte takes a nanosecond."""
    costs = {"embed": 1, "block.0": 1, "block.1": 1, "head": 2}
    layers = tuple(
        Layer(
            name=name,
            costs=(
                LayerCost(
                    device_type="toy",
                    forward_ns=ms * MILLISECOND,
                    input_grad_ns=ms * MILLISECOND,
                    weight_grad_ns=ms * MILLISECOND,
                ),
            ),
            parameter_bytes=2**28,
            state_bytes=2**30,
            stash_bytes=2**29,
        )
        for name, ms in costs.items()
    )
    names = list(costs)
    return Workload(
        profile=ModelProfile(
            name="toy",
            layers=layers,
            edges=tuple(Edge(producer=a, consumer=b, bytes=MILLISECOND // 2) for a, b in pairwise(names)),
            microbatch_size=8,
        ),
        cluster=Cluster(
            name="desk",
            devices=tuple(Device(name=f"gpu{i}", type="toy", memory_bytes=memory_bytes) for i in range(2)),
            links=(Link(a="gpu0", b="gpu1", bandwidth_bytes_per_s=10**9),),
        ),
        num_microbatches=num_microbatches,
    )


def make_problem(workload: Workload) -> Problem:
    """The question of a complete workload."""
    assert workload.cluster is not None
    assert workload.num_microbatches is not None
    return Problem(profile=workload.profile, cluster=workload.cluster, num_microbatches=workload.num_microbatches)


WORDS = {
    "gpu0": "0F0 0F1 0I0 0W0 0F2 0I1 0W1 0I2 0W2",
    "gpu1": "1F0 1I0 1W0 1F1 1I1 1W1 1F2 1I2 1W2",
}
"""1F1B."""


def make_plan(problem: Problem, *, words: dict[str, str] = WORDS) -> Plan:
    """Two stages of two layers each, in the order of `words`, without evidence."""
    return Plan(
        problem=problem.reference(),
        stages=(
            Stage(layers=("embed", "block.0"), replicas=(("gpu0",),)),
            Stage(layers=("block.1", "head"), replicas=(("gpu1",),)),
        ),
        schedule={device: tuple(parse_action(text) for text in word.split()) for device, word in words.items()},
    )


def make_evidence(problem: Problem, plan: Plan) -> Evidence:
    """The plan's true figures beside a bound and baselines that are made up."""
    timeline = simulate(problem, plan)
    lower_bound_ns = 30 * MILLISECOND
    return Evidence(
        makespan_ns=timeline.makespan_ns,
        span_ns=timeline.span_ns,
        bubble=timeline.bubble,
        peak_bytes=timeline.peak_bytes,
        lower_bound_ns=lower_bound_ns,
        bound_kind="work of the busiest device",
        certificate={},
        gap=(timeline.makespan_ns - lower_bound_ns) / timeline.makespan_ns,
        schedule_bound_ns=30_500_000,
        solver_bound_ns=None,
        solution_status="feasible",
        stopped_by="time",
        source="joint search",
        baselines=(
            BaselineResult(name="data parallel", makespan_ns=None, note="needs no more than one replica"),
            BaselineResult(
                name="GPipe (even layers)",
                makespan_ns=44 * MILLISECOND,
                span_ns=44 * MILLISECOND,
                bubble=0.49,
                peak_fraction=1.25,
                note="needs 1.25 x the memory of gpu0",
            ),
            BaselineResult(
                name="1F1B (even layers)",
                makespan_ns=timeline.makespan_ns,
                span_ns=timeline.span_ns,
                bubble=timeline.bubble,
                peak_fraction=0.5,
                fits_memory=True,
            ),
        ),
        interpolated_costs=("2 layers on toy at width 1: scaled to 1/2 of the microbatch",),
        planner_version="0",
        solver_versions={},
        seed=0,
        verdict=verify(problem, plan).summary(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one command did."""

    code: int
    out: str
    err: str


class Shell:
    """Runs commands in this process and keeps what they say."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.folder, self._capsys, self._monkeypatch = folder, capsys, monkeypatch
        monkeypatch.chdir(folder)

    def run(self, *arguments: str, stdin: str = "") -> Outcome:
        """The command's exit code and its two streams."""
        self._monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode()), encoding="utf-8"))
        self._capsys.readouterr()
        code = main(list(arguments))
        said = self._capsys.readouterr()
        return Outcome(code=code, out=said.out, err=said.err)

    def write(self, name: str, text: str) -> str:
        """A file in the folder; the answer is its name."""
        (self.folder / name).write_text(text, encoding="utf-8")
        return name

    def write_world(self) -> None:
        """`workload.json`, and `plan.json` without evidence."""
        workload = make_workload()
        self.write("workload.json", dump_workload(workload))
        self.write("plan.json", render_plan(make_plan(make_problem(workload))))


def plain(workload: Workload) -> Any:
    """The document of a workload as a tree to spoil."""
    return json.loads(dump_workload(workload))
