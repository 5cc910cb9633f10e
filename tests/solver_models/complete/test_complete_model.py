"""The complete model: one programme with everything open, for CP-SAT and for integer programming solvers."""

from dataclasses import replace
from itertools import pairwise
from random import Random

import pytest

from planner.errors import InfeasibleProblemError, NoPlanFoundError
from planner.problem import Options, Problem
from planner.progress import Limits
from tests.long_runs import shortened
from tests.planner.brute_force import brute_force
from tests.planner.evidence.test_certificate import make_chain
from tests.planner.hasty import make_plan
from tests.planner.planning.improvers.test_branch_and_check import chain_of, exact_tiny_problem
from tests.strategies import random_chain

KINDS = ("one stage", "replicas", "chunks", "both", "graphs", "given")


def problem_of(kind: str, seed: int) -> Problem:
    """A random small problem, the even chains with tight memory, and all whose stages and devices are given."""
    if kind == "given":
        return given_stages(chain_of("chunks", 2 * seed), Random(seed))
    problem = exact_tiny_problem(seed) if kind == "graphs" else chain_of(kind, seed)
    return replace(problem, options=replace(problem.options, objective="makespan"))


def given_stages(problem: Problem, rng: Random) -> Problem:
    """The chain cut and seated at random, at most two stages on a device."""
    names, devices = problem.profile.topological_order, [device.name for device in problem.cluster.devices]
    seats = rng.sample(2 * devices, rng.randint(1, min(len(names), 2 * len(devices))))
    cuts = [0, *sorted(rng.sample(range(1, len(names)), len(seats) - 1)), len(names)]
    options = replace(
        problem.options,
        partition=tuple(tuple(names[a:b]) for a, b in pairwise(cuts)),
        placement=tuple(((device,),) for device in seats),
    )
    return replace(problem, options=options)


@pytest.mark.parametrize("kind", KINDS)
def test_integer_programming_agrees_with_brute_force(kind: str):
    """Tests that `--method ilp` ends with the best of all plans, and claims no bound above it."""
    for seed in range(1000, 1000 + shortened(4, whole=40)):
        problem = problem_of(kind, seed)
        best = brute_force(problem)
        try:
            evidence = make_plan(problem, limits=Limits(time_limit_s=60, method="ilp")).evidence
        except (InfeasibleProblemError, NoPlanFoundError):
            assert best is None, f"seed {seed}"
            continue
        assert evidence is not None
        assert evidence.makespan_ns == best, f"seed {seed}"
        assert evidence.solver_bound_ns is None or evidence.solver_bound_ns <= evidence.makespan_ns


def two_stages_on_a_device(*, memory: int) -> Problem:
    """Three stages of 10 bytes that leave 10 of a microbatch, the first and last on d0, with buffers for 2 x 2 x 5."""
    options = Options(
        max_replicas=1,
        partition=(("l0",), ("l1",), ("l2",)),
        placement=((("d0",),), (("d1",),), (("d0",),)),
    )
    return make_chain(
        [(1, 1, 1)] * 3, num_devices=2, num_microbatches=2, memory=memory, stash=(10, 0), state=10, edge_bytes=5,
        options=options,
    )  # fmt: skip


@pytest.mark.parametrize("method", ["cp-sat", "ilp"])
def test_what_cannot_fit_is_said_with_its_limit(method: str):
    """Tests that a device that its given stages overfill is named, whoever is asked for a plan."""
    with pytest.raises(InfeasibleProblemError, match=r"device 'd0' needs 60 bytes when stage 2 .* but it has 59"):
        make_plan(two_stages_on_a_device(memory=59), limits=Limits(time_limit_s=60, method=method))  # type: ignore[arg-type]


def open_problem() -> Problem:
    """A chain whose best plan no baseline finds, and no certificate proves."""
    return chain_of("one stage", 1003)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_width": 2}, "max_width = 2 is not in the complete model; set it to 1"),
        ({"split_placement": True}, "split_placement = true"),
        ({"synchronisation": "bucketed"}, "synchronisation = bucketed"),
        ({"objective": "span"}, "objective = span"),
    ],
)
def test_what_the_model_does_not_cover_is_said_at_once(options: dict[str, object], message: str):
    """Tests that an option outside the model is refused with its value and the remedy."""
    problem = open_problem()
    changed = replace(problem, options=replace(problem.options, **options))
    with pytest.raises(ValueError, match=message):
        make_plan(changed, limits=Limits(method="cp-sat"))


def test_too_much_to_be_written_down_is_said_at_once():
    """Tests that a problem with too many rows is refused before anything is built."""
    problem = replace(random_chain(Random(1), sizes=(6, 3, 3), tight=False), num_microbatches=400)
    with pytest.raises(ValueError, match="rows or more, above the limit of"):
        make_plan(problem, limits=Limits(method="ilp"))


def test_too_many_stages_to_be_written_down_are_said_at_once():
    """Tests that 320 layers, of which 51,360 stages could be made, are refused before anything is built."""
    problem = make_chain([(1, 1, 1)] * 320, num_devices=2, num_microbatches=2, memory=10**6, options=Options())
    with pytest.raises(ValueError, match="51,360 sets of layers that could be a stage, above the limit of 50,000"):
        make_plan(problem, limits=Limits(method="cp-sat"))


def test_limits_name_a_method_that_there_is():
    """Tests that methods and solvers that do not go together are refused."""
    with pytest.raises(ValueError, match="method = 'best' is unknown; give one of auto, search, cp-sat, ilp"):
        Limits(method="best")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="solver = 'HiGHS' needs method = ilp, not auto"):
        Limits(solver="HiGHS")
    with pytest.raises(ValueError, match=r"solver 'NONE' is not available here; choose one of .*HiGHS"):
        make_plan(open_problem(), limits=Limits(method="ilp", solver="NONE"))


def test_search_leaves_the_complete_search_out():
    """Tests that `search` claims nothing, and never asks the exact search or CP-SAT."""
    evidence = make_plan(open_problem(), limits=Limits(time_limit_s=60, method="search", max_rounds=8)).evidence
    assert evidence is not None
    assert evidence.solver_bound_ns is None
    assert not {"exact search", "CP-SAT order"} & {each.name for each in evidence.improvers}
