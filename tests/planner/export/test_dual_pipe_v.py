"""DeepSpeed 0.19.8's DualPipeV engine: its order, its module, and what it cannot run."""

import importlib.util
import itertools
import sys
import types
from dataclasses import replace
from typing import Any

import pytest

from planner.export import deepspeed
from planner.export.dual_pipe_v import as_dual_pipe_v, is_v, v_orders
from planner.export.targets import TARGETS, restrict
from planner.plan import Plan, Stage
from planner.problem import Problem
from planner.progress import Limits
from planner.verify import verify
from tests.planner.export.reading_back import import_deepspeed_parts
from tests.planner.export.test_targets import language_model, parser_file
from tests.planner.hasty import make_plan

DRAWN = """
d0: 0F0 0F1 0F2 3F0 3B0 3F1 0F3 3B1 3F2 0B0 3B2 3F3 0B1 3B3 0B2 0B3
d1: 1F0 2F0 1F1 2F1 1F2 2B0 2F2 1B0 1F3 2B1 2F3 1B1 2B2 1B2 2B3 1B3
"""


def in_a_v(problem: Problem, *, devices: str, replicas: int = 1) -> Plan:
    """The layers in equal stages on these devices; replica r of a device is the one `len(set(devices))` further on."""
    names = [layer.name for layer in problem.profile.layers]
    ends = [len(names) * n // len(devices) for n in range(len(devices) + 1)]
    ranks = len(set(devices))
    stages = tuple(
        Stage(layers=tuple(names[a:b]), replicas=tuple((f"d{int(device) + ranks * r}",) for r in range(replicas)))
        for device, (a, b) in zip(devices, itertools.pairwise(ends), strict=True)
    )
    return Plan(problem=problem.reference(), stages=stages, schedule={})


def drawn(plan: Plan) -> str:
    """A line per device."""
    return "\n".join(f"{device}: {' '.join(map(str, order))}" for device, order in sorted(plan.schedule.items()))


def test_two_ranks_run_as_drawn():
    """Tests that the order of two ranks is the drawing, and that it passes the verifier."""
    problem = language_model()
    plan = as_dual_pipe_v(problem, in_a_v(problem, devices="0110"))
    assert drawn(plan) == DRAWN.strip()
    assert verify(problem, plan).passed


def load_schedule(monkeypatch: pytest.MonkeyPatch) -> Any:
    """DeepSpeed's own schedules, out of their one file; None where they were not unpacked."""
    path = parser_file("deepspeed", "runtime", "pipe", "schedule.py")
    if path is None:
        return None
    for name in ("deepspeed", "deepspeed.runtime", "deepspeed.runtime.pipe", "deepspeed.runtime.utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["deepspeed.runtime.utils"].call_to_str = str  # type: ignore[attr-defined]
    specification = importlib.util.spec_from_file_location("deepspeed.runtime.pipe.schedule", path)
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    monkeypatch.setitem(sys.modules, specification.name, module)
    specification.loader.exec_module(module)
    return module


@pytest.mark.parametrize(("ranks", "count"), [(1, 2), (2, 4), (2, 7), (3, 6), (4, 8), (4, 11)])
def test_every_rank_runs_what_deepspeed_runs(ranks, count, monkeypatch, record_property):
    """Tests that the order of every rank is that of DeepSpeed's own class, and each action runs once."""
    problem = language_model(num_blocks=2 * ranks, num_devices=ranks, num_microbatches=count)
    devices = "".join(map(str, [*range(ranks), *reversed(range(ranks))]))
    plan = in_a_v(problem, devices=devices)
    orders = v_orders(problem, plan.stages)
    assert all(len(set(order)) == len(order) == 4 * count for order in orders)
    theirs = load_schedule(monkeypatch)
    record_property("parser", "drawing alone" if theirs is None else "DeepSpeed's source")
    for rank, order in enumerate(orders if theirs is not None else ()):
        schedule = theirs.DualPipeVSchedule(micro_batches=count, stages=ranks, stage_id=rank)
        stage_of, found = (rank, 2 * ranks - 1 - rank), []
        for each in itertools.chain.from_iterable(schedule.steps()):
            if type(each).__name__ in ("ForwardPass", "BackwardPass"):
                kind = "F" if type(each).__name__ == "ForwardPass" else "B"
                found.append((kind, stage_of[each.phase], each.buffer_id - each.phase * count))
        assert found == [tuple(action) for action in order]


class StandIn:
    """What DeepSpeed's PipelineModule has when it partitions."""

    def __init__(self, num_layers: int, *, num_stages: int, stage: int) -> None:
        self._layer_specs, self.num_stages, self.global_rank, self.stage_id = [None] * num_layers, num_stages, 7, stage
        self._topo = types.SimpleNamespace(get_coord=lambda rank: types.SimpleNamespace(pipe=stage))
        self.parts: list[int] = []

    def _set_bounds(self, start: int, stop: int) -> None:
        self._local_start, self._local_stop = start, stop


class StandInV(StandIn):
    """What DeepSpeed's DualPipeVModule does in `_partition_layers` (0.19.8)."""

    def _partition_layers(self, method: str = "uniform") -> None:
        self.num_stages *= 2
        super()._partition_layers(method)  # type: ignore[misc]
        mirror = self.num_stages - 1 - self.stage_id
        self.phase_bounds = [(self._local_start, self._local_stop), (self.parts[mirror], self.parts[mirror + 1])]


@pytest.mark.parametrize("replicas", [1, 2])
def test_the_module_holds_two_stages_per_rank(replicas, monkeypatch):
    """Tests that each rank's module has the plan's two stages, and that the cut leads back."""
    problem = language_model(num_devices=2 * replicas)
    plan = as_dual_pipe_v(problem, in_a_v(problem, devices="0110", replicas=replicas))
    text = deepspeed.render_deepspeed(problem, plan)
    for name in ("deepspeed", "deepspeed.pipe"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    sys.modules["deepspeed.pipe"].PipelineModule = StandIn  # type: ignore[attr-defined]
    sys.modules["deepspeed.pipe"].DualPipeVModule = StandInV  # type: ignore[attr-defined]
    space: dict[str, Any] = {}
    exec(text, space)
    for rank, bounds in enumerate([[(0, 2), (6, 9)], [(2, 4), (4, 6)]]):
        module = space["PlannedDualPipeVModule"](9, num_stages=2, stage=rank)
        module._partition_layers()
        assert module.phase_bounds == bounds
    assert space["RANKS"] == [f"d{n + 2 * r}" for n in range(2) for r in range(replicas)]
    names = [layer.name for layer in problem.profile.layers]
    assert import_deepspeed_parts(text, names) == tuple(stage.layers for stage in plan.stages)
    if (path := parser_file("deepspeed", "runtime", "pipe", "dualpipev.py")) is not None:
        source = path.read_text()
        assert "self.num_stages *= 2\n        super()._partition_layers(method)" in source
        assert "self.micro_batches >= 2 * self.num_stages" in source


@pytest.mark.parametrize(
    ("devices", "count", "message"),
    [
        ("0110", 3, "3 microbatches on 2 ranks, .* at least two per rank; plan with num_microbatches = 4"),
        ("0101", 4, "'d0', 'd1', 'd0', 'd1', but DeepSpeed's DualPipeV engine needs two per rank, down"),
        ("01", 4, "needs two per rank"),
        ("011220", 9, "needs two per rank"),
    ],
)
def test_what_the_engine_cannot_hold_is_refused(devices: str, count: int, message: str):
    """Tests that stages in a loop or fewer than two per rank, and too few microbatches, are refused with a remedy."""
    problem = language_model(num_devices=3, num_microbatches=count)
    with pytest.raises(ValueError, match=message):
        TARGETS["deepspeed-dualpipev"].fit(problem, in_a_v(problem, devices=devices))


def test_other_orders_of_a_v_are_refused():
    """Tests that W apart, or another order, is refused by the export, naming the engine and its first other action."""
    problem = language_model()
    plan = as_dual_pipe_v(problem, in_a_v(problem, devices="0110"))
    order = plan.schedule["d0"]
    other = replace(plan, schedule={**plan.schedule, "d0": (*order[:2], *order[3:1:-1], *order[4:])})
    with pytest.raises(ValueError, match=r"'d0' runs 3F0 as action 2, and DeepSpeed's DualPipeV engine runs 0F2"):
        deepspeed.render_deepspeed(problem, other)
    split = tuple(
        part for a in order for part in ((a,) if a.kind == "F" else (a._replace(kind="I"), a._replace(kind="W")))
    )
    with pytest.raises(ValueError, match=r"runs 3I0 as action 4, and DeepSpeed's DualPipeV engine runs 3B0"):
        deepspeed.render_deepspeed(problem, replace(plan, schedule={**plan.schedule, "d0": split}))


@pytest.mark.slow
def test_plans_for_the_engine_are_made():
    """Tests that a plan for the target stands in a V, passes the verifier and is exported without a change."""
    target = TARGETS["deepspeed-dualpipev"]
    asked = language_model(num_blocks=3, num_devices=2, num_microbatches=4, max_stages_per_device=2)
    problem = replace(asked, options=restrict(asked.options, target))
    plan = make_plan(problem, limits=Limits(time_limit_s=10, max_rounds=1), target=target)
    assert is_v(plan)
    assert verify(problem, plan).passed
    assert "PlannedDualPipeVModule" in deepspeed.render_deepspeed(problem, plan)
