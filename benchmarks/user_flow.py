"""What a reader of README does, command by command, each in processes of its own: profile, plan, run."""

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from planner.baselines.partitions import cut_at
from planner.baselines.registry import make_baselines
from planner.document import render_plan
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.problem import Options, Problem
from profiles.load import load_workload
from profiles.model_profile import ModelProfile
from profiles.workload import Workload

ROOT = Path(__file__).resolve().parents[1]
COMMAND_S = 600.0
FAILED = "failed"
"""Start of the names of a launch's files that say which contender failed last in a process, and why."""


class FlowError(Exception):
    """A command ended with an error; the message is its own."""


@dataclass(frozen=True, kw_only=True)
class FlowModel:
    """A model as it is named on the command line."""

    name: str
    """In tables."""
    factory: str
    """`module:factory`."""
    num_devices: int = 2
    num_microbatches: int = 8
    switches: tuple[str, ...] = ()
    """More of `pipeplan profile`, where defaults will not do."""
    is_unseen: bool = False
    """Nothing was tuned on it."""


def pipeplan(*arguments: str, timeout_s: float = COMMAND_S) -> str:
    """Run a command in a fresh process; gives what it said, raises FlowError."""
    command = [sys.executable, "-m", "api", *arguments]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        raise FlowError(f"pipeplan {arguments[0]}: not done after {timeout_s:.0f} s") from None
    if done.returncode:
        last = done.stderr.strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise FlowError(f"pipeplan {arguments[0]}: {last[0]}")
    return done.stderr


class Flow:
    """One model in a folder of its own."""

    def __init__(self, model: FlowModel, folder: Path) -> None:
        self.model, self.folder = model, folder
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / "workload.json"

    def profile(self) -> Workload:
        """With README's first command, before there is any plan."""
        model = self.model
        devices = str(model.num_devices)
        pipeplan("profile", model.factory, "--devices", devices, *model.switches, "-o", str(self.path), "-q")
        return load_workload(str(self.path))

    def plan(self, name: str, *switches: str, time_limit_s: float) -> Path:
        """With README's second command, and what else is switched."""
        path = self.folder / f"{name.replace(' ', '-')}.json"
        limit = ("--time-limit", f"{time_limit_s:g}")
        pipeplan("plan", str(self.path), *limit, *switches, "-o", str(path), "-q")
        return path

    def write(self, name: str, plan: Plan) -> Path:
        """A plan made elsewhere."""
        path = self.folder / f"{name.replace(' ', '-')}.json"
        path.write_text(render_plan(plan), encoding="utf-8")
        return path


def make_layout(problem: Problem, sizes: Sequence[int], *, places: Sequence[Sequence[int]], **options: Any) -> Problem:
    """The question whose stages have so many layers each, on the devices with these numbers."""
    devices = [device.name for device in problem.cluster.devices]
    ends = [sum(sizes[:number]) for number in range(len(sizes) + 1)]
    layout = Options(
        partition=cut_at(problem.profile.topological_order, ends),
        placement=tuple(tuple((devices[number],) for number in place) for place in places),
        uneven_replication=False,
        **options,
    )
    return replace(problem, options=layout)


def balanced_cut(profile: ModelProfile, num_stages: int) -> tuple[int, ...]:
    """Layers per stage so that the largest stage is smallest, by F + B of a whole microbatch."""
    times = []
    for name in profile.topological_order:
        cost = profile.by_name[name].costs[0]
        times.append(cost.forward_ns + cost.fused_backward_ns)
    best = {0: (0, ())}  # end of the stages so far: their largest, and their sizes
    for _ in range(num_stages):
        longer: dict[int, tuple[int, tuple[int, ...]]] = {}
        for end, (largest, sizes) in best.items():
            for stop in range(end + 1, len(times) + 1):
                found = (max(largest, sum(times[end:stop])), (*sizes, stop - end))
                longer[stop] = min(longer.get(stop, found), found)
        best = longer
    return best[len(times)][1]


def find_baseline(method: str, problem: Problem) -> Plan:
    """The first of a family of baselines that has a plan; raises ValueError if none has."""
    rows = [row for row in make_baselines(problem, CostModel(problem)) if row.name.split(" (")[0] == method]
    found = [row.plan for row in rows if row.plan is not None]
    if not found:
        raise ValueError(f"{method} has no plan: {rows[0].note if rows else 'unknown'}")
    return found[0]


def without_evidence(plan: Plan) -> Plan:
    """What the executor needs of a plan."""
    return replace(plan, evidence=None)
