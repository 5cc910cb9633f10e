"""Which communicator a message goes through."""

from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

from planner.execute.parallel.process_groups import ProcessGroups  # noqa: E402
from planner.execute.stage.routed_runtime import meet  # noqa: E402
from planner.execute.table import message_queues  # noqa: E402
from planner.execute.table.layout import make_layout  # noqa: E402
from planner.execute.table.message_queues import find_directions, make_queues  # noqa: E402
from planner.execute.table.routes import SampleExchange, make_routes  # noqa: E402
from planner.execute.table.wiring import StageEdge  # noqa: E402
from tests.planner.execute.orders import make_random_plan  # noqa: E402

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def routes_of(placement: str) -> tuple[SampleExchange, ...]:
    plan = make_random_plan(placement, num_microbatches=2)
    edges = [StageEdge(producer=n, consumer=n + 1, values=("x",)) for n in range(len(plan.stages) - 1)]
    return tuple(make_routes(make_layout(plan), edges))


def test_every_direction_has_a_queue_of_its_own():
    """Tests that no two directions between processes share a communicator: neither two peers nor the two ways."""
    routes = routes_of("0 1 2 0")
    made: dict[int, dict[tuple[int, int], Any]] = {}
    for rank in range(3):
        calls: list[list[int]] = []

        def new_group(ranks: list[int], *, calls: list[list[int]] = calls, **more: Any) -> object:
            assert more == {"backend": "nccl", "use_local_synchronization": True}
            calls.append(ranks)
            return object()

        with mock.patch.object(message_queues.distributed, "new_group", new_group):
            made[rank] = dict(make_queues(routes, rank=rank, device=CUDA))
        assert len(set(map(id, made[rank].values()))) == len(made[rank]) == len(calls) == 4
        assert all(rank in ends for ends in made[rank]), "only its own: 64 processes have 4,032 directions"
        assert list(made[rank]) == [ends for ends in find_directions(routes) if rank in ends], "one order for all"
    assert make_queues(routes, rank=0, device=CPU) == {}


def test_messages_meet_without_a_circle():
    """Tests that as every process takes its directions in turn, each that sends first finds the other receiving."""
    routes = routes_of("0 1 2 0 2 1")
    turns: dict[int, list[tuple[str, int]]] = {}
    for rank in range(3):
        turns[rank] = []
        with (
            mock.patch("planner.execute.stage.routed_runtime.distributed.get_rank", lambda rank=rank: rank),
            mock.patch(
                "planner.execute.stage.routed_runtime.distributed.send",
                lambda _, to, group, rank=rank: turns[rank].append(("to", to)),
            ),
            mock.patch(
                "planner.execute.stage.routed_runtime.distributed.recv",
                lambda _, source, group, rank=rank: turns[rank].append(("from", source)),
            ),
        ):
            meet(routes, device=CPU)
    while any(turns.values()):
        ready = [
            (a, b) for a in turns for b in turns
            if turns[a][:1] == [("to", b)] and turns[b][:1] == [("from", a)]
        ]  # fmt: skip
        assert ready, f"all wait: {turns}"
        for a, b in ready:
            turns[a].pop(0)
            turns[b].pop(0)


def test_stages_without_replicas_need_no_groups():
    """Tests that of 64 processes none makes, or waits for, groups where each stage is on one."""
    layout = make_layout(make_random_plan(" ".join(map(str, range(64))), num_microbatches=1))
    with (
        mock.patch("planner.execute.parallel.process_groups.distributed.get_rank", return_value=5),
        mock.patch("planner.execute.parallel.process_groups.distributed.new_group") as new_group,
    ):
        ProcessGroups(layout)
    new_group.assert_not_called()
