"""Recorded runs of one accelerator, predicted again on two clocks from profiles that did not tell host and card apart.

Such a profile states t = max(h, d) of what the host took to ask and the card to work. h does not change with the
samples, so it is at most the least t of all sizes, and a t that is longer is the card's. Of others nobody knows whose
they are: at least half of their sum is somebody's. That leaves a range of predictions for every run, and the records
suffice where it is narrow, or the profile tells both apart: `python -m benchmarks.gpu --again FOLDER`.
"""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from benchmarks.gpu_runs import MICROBATCHES, make_plan
from benchmarks.two_clocks import clocked_actions, play_alone
from planner.document import parse_plan
from planner.judge.reading import Reading
from planner.problem import Options, Problem
from profiles.cluster import Cluster, Device
from profiles.host_times import HostTime
from profiles.load import load_workload
from profiles.microbatch_sizes import profile_at
from profiles.model_profile import FULL, Layer, LayerCost, ModelProfile

NARROW = 0.05
"""Largest range of predictions, as a part of their mean, of a record that suffices."""

COLD = ("first",)
"""Folders of profiles taken before the card was warm, without the forwards of layers that recompute."""

ALIKE = 1.1
"""A time that is more than so many times the least of all sizes is the card's."""


class Again(NamedTuple):
    """A run beside its predictions."""

    name: str
    executed_ns: float
    one_clock_ns: int
    least_ns: int
    most_ns: int

    @property
    def suffices(self) -> bool:
        """Whether the records leave little room."""
        return self.most_ns - self.least_ns <= NARROW * (self.most_ns + self.least_ns) / 2

    @property
    def ratio(self) -> float:
        """Executed over predicted, in the middle of the range."""
        return 2 * self.executed_ns / (self.most_ns + self.least_ns)


def predict_again(folder: Path) -> str:
    """All recorded runs in the folders of a folder, as Markdown."""
    rows = ["| run | executed ms | one clock | two clocks ms | executed / predicted |", "|---|---|---|---|---|"]
    for run in find_runs(folder):
        shown = f"{run.least_ns / 1e6:.1f}" if run.least_ns == run.most_ns else (
            f"{run.least_ns / 1e6:.1f} to {run.most_ns / 1e6:.1f}"
        )  # fmt: skip
        ratio = f"{run.ratio:.3f}" if run.suffices else "not recorded"
        ratio = "profiled cold" if run.name.split("/")[0] in COLD else ratio
        one_clock = run.executed_ns / run.one_clock_ns
        rows.append(f"| {run.name} | {run.executed_ns / 1e6:.1f} | {one_clock:.3f} | {shown} | {ratio} |")
    return "\n".join(rows) + "\n"


def find_runs(folder: Path) -> Iterator[Again]:
    """Every run that lies beside the profile that foresaw it."""
    for path in sorted(folder.glob("*/*.json")):
        found = json.loads(path.read_text(encoding="utf-8"))
        if "executed_ns" not in found:
            continue
        label, how = path.name.removesuffix(".json").split(".", 1)
        profile = load_workload(path.with_name(f"{label}.profile.json")).profile
        plan = path.with_name(f"{label}.{how}.plan.json")
        yield _predict(f"{path.parent.name}/{label}.{how}", profile, found, plan=plan if plan.exists() else None)


def _predict(name: str, profile: ModelProfile, found: dict[str, Any], *, plan: Path | None) -> Again:
    def played(choose: _Choice) -> int:
        layers = tuple(_with_clocks(layer, choose) for layer in profile.layers)
        clocked = profile_at(replace(profile, layers=layers), found["microbatch_size"])
        return _play(clocked, plan=plan, recompute="recomputed" in name)

    whole = played(lambda time, _: (0, time))
    if any(cost.host for layer in profile.layers for cost in layer.costs):
        both = _play(profile_at(profile, found["microbatch_size"]), plan=plan, recompute="recomputed" in name)
        return Again(name, found["executed_ns"], whole, both, both)
    known = played(lambda time, least: (0, time if time > ALIKE * least else 0))
    most = played(lambda time, least: (least, time))
    return Again(name, found["executed_ns"], whole, max(known, whole // 2), max(whole, most))


_Choice = Callable[[int, int], tuple[int, int]]
"""Of a time and the least of all sizes: what the host and the card take of it."""

_TIMES: dict[str, Callable[[LayerCost], int]] = {
    "F": lambda cost: cost.forward_ns,
    "I": lambda cost: cost.input_grad_ns,
    "W": lambda cost: cost.weight_grad_ns,
    "B": lambda cost: cost.fused_backward_ns,
    FULL: lambda cost: cost.recompute_ns,
}


def _with_clocks(layer: Layer, choose: _Choice) -> Layer:
    """The layer whose measured times are divided among host and card."""
    least = {action: min(map(time, layer.costs)) for action, time in _TIMES.items()}
    recomputing = min(cost.fused_backward_ns + cost.recompute_ns for cost in layer.costs)
    least[FULL] = recomputing - least["B"]  # what was measured is a backward with recomputation, less one without
    return replace(layer, costs=tuple(_divide(cost, least, choose) for cost in layer.costs))


def _divide(cost: LayerCost, least: dict[str, int], choose: _Choice) -> LayerCost:
    parts = {action: choose(time(cost), least[action]) for action, time in _TIMES.items()}
    card = {action: card for action, (_, card) in parts.items()}
    return replace(
        cost,
        forward_ns=card["F"],
        input_grad_ns=max(card["I"], card["B"] - card["W"]),
        weight_grad_ns=card["W"],
        backward_ns=card["B"],
        recompute_ns=card[FULL],
        host=tuple(HostTime(action=action, host_ns=host) for action, (host, _) in parts.items()),
    )


def _play(profile: ModelProfile, *, plan: Path | None, recompute: bool) -> int:
    """What the actions of an iteration take between their events."""
    device = Device(name="d0", type=profile.layers[0].costs[0].device_type, memory_bytes=2**40)
    problem = Problem(
        profile=profile,
        cluster=Cluster(name="one device", devices=(device,), links=()),
        num_microbatches=MICROBATCHES,
        options=Options(recompute=True, recompute_in_turn=True, recompute_layers=True),
    )
    own = make_plan(problem, recompute=recompute) if plan is None else parse_plan(plan.read_bytes(), source=str(plan))
    cells = [f"{action.stage}{action.kind}" for action in own.schedule["d0"]]
    durations: dict[str, list[int]] = defaultdict(list)
    for cell, span in zip(cells, play_alone(cells, clocked_actions(Reading(problem, own))), strict=True):
        durations[cell].append(span.end - span.begin)
    return round(sum(median(each) * len(each) for each in durations.values()))
