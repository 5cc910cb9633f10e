"""Stages whose weights are gathered for runs of actions (`max_active_stages`), on gloo processes."""

from dataclasses import replace
from typing import Any

import pytest

from planner.actions import parse_action
from planner.decisions.max_active_stages.plans import possible_ranks, with_gathered
from planner.layout.gathers import most_gathered
from tests.long_runs import IS_LONG
from tests.planner.execute.orders import make_random_plan
from tests.planner.execute.parallel.test_full_sharding import require_torch
from tests.planner.execute.run.test_execution import TOLERANCES, Case, drawn, run_cases


def gathered(placement: str, *, active: int, backward: str = "B", order: str = "", **more: Any) -> Case:
    """As `drawn`; replicas hold their parts of weights, with so many stages of a device gathered at a time."""
    case = drawn(placement, backward=backward, **more)
    plan = case.plan
    if order:
        actions = tuple(map(parse_action, order.split()))
        plan = replace(plan, schedule=dict.fromkeys(plan.schedule, actions))
    return replace(case, plan=with_gathered(plan, possible_ranks(plan), max_active_stages=active))


TWO_CHUNKS = "0F0 0F1 1F0 1F1 1B0 0F2 0B0 1B1 1F2 0B1 1B2 0B2"
"""Six runs of the first stage's actions and five of the second one's."""
I_AND_W = "0F0 1F0 0F1 1I0 1F1 0I0 1W0 1I1 0W0 0I1 1W1 0F2 1F2 1I2 0I2 0W1 1W2 0W2"

TWO = {
    f"two stages, {active} active": gathered("0/1 0/1", active=active, order=TWO_CHUNKS, num_microbatches=3, steps=3)
    for active in (1, 2)
} | {
    "one stage": gathered("0/1", active=1, cut=(3,), num_microbatches=3),
    "two stages, one active": gathered("0/1 0/1", active=1, num_microbatches=3),
    "I and W apart": gathered("0/1 0/1", active=1, backward="IW", order=I_AND_W, num_microbatches=3, cut=(2, 1)),
    "three stages, two active": gathered("0/1 0/1 0/1", active=2, num_microbatches=4, seed=3),
    "recomputed": gathered("0/1 0/1", active=1, order=TWO_CHUNKS, num_microbatches=3, recompute="yy"),
    "clipped": gathered("0/1 0/1", active=1, num_microbatches=3, model="clipped", cut=(2, 1)),
    "frozen stage": gathered("0/1 0/1", active=1, kinds="fww", cut=(1, 2), num_microbatches=3),
    "gradients accumulate": gathered("0/1 0/1", active=1, num_microbatches=3, model="accumulating", steps=4),
    "tied": gathered("0/1 0/1", active=1, cut=(2, 1), num_microbatches=3, model="clipped_tied"),
    "goes on without": replace(
        gathered("0/1 0/1", active=1, num_microbatches=3, model="scheduled", steps=3),
        then=make_random_plan("1 0", num_microbatches=3),
    ),
}
FOUR = {
    "two ranks of two chunks": gathered("0/2 1/3 0/2 1/3", active=1, num_microbatches=4, steps=3, seed=2),
    "beside stages of one replica": gathered("0/1 2 3 0/1", active=1, num_microbatches=3),
}
LEFT_OUT = {"one stage", "frozen stage", "gradients accumulate", "tied"}
"""Which `make test` leaves to the long run."""
CASES = {2: {name: case for name, case in TWO.items() if IS_LONG or name not in LEFT_OUT}, 4: FOUR}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """What every rank says about every case."""
    require_torch()
    answers = {}
    for size, cases in CASES.items():
        answers |= run_cases(cases, size, folder=tmp_path_factory.mktemp(f"gathered{size}"))
    return answers


@pytest.mark.parametrize(("size", "name"), [(size, name) for size, cases in CASES.items() for name in cases])
def test_it_trains_as_one_process(outcomes: dict[str, Any], size: int, name: str):
    """Tests that losses, gradients and weights are those of a single process, whatever is gathered when."""
    case, answers = CASES[size][name], outcomes[name]
    tolerance = TOLERANCES[case.dtype]
    assert len(answers) == size
    for answer in answers:
        assert "refused" not in answer, answer
        for mine, theirs in zip(answer["losses"], answer["expected_losses"], strict=True):
            assert not mine or mine == pytest.approx(theirs, rel=tolerance, abs=0)
        assert answer["missing"] == []
        assert answer["gradients"] <= tolerance * answer["largest"]
        assert answer["weights"] <= 10 * tolerance * max(answer["largest"], 1)
        assert answer["kept"] == 0
    assert any(answer["losses"][0] for answer in answers)


@pytest.mark.parametrize(("size", "name"), [(size, name) for size, cases in CASES.items() for name in cases])
def test_gathered_weights_take_what_the_contract_says(outcomes: dict[str, Any], size: int, name: str):
    """Tests that at most the largest active stages are whole during any action, and during some action they are."""
    case, answers = CASES[size][name], outcomes[name]
    assert case.plan.max_active_stages is not None
    for answer in answers if case.then is None else ():
        if answer["gathered"]:
            most = most_gathered(answer["gathered"]["sizes"], most=case.plan.max_active_stages)
            assert max(answer["gathered"]["seen"]) == most > 0
    assert any(answer["gathered"] for answer in answers)
