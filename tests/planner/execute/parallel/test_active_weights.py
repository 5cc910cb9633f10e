"""Which weights a process gathers and gives back when: as torch's own pipelines would, and what is refused."""

from dataclasses import replace
from random import Random

import pytest
from torch.distributed.pipelining.schedules import _Action, _add_unshard_reshard, _ComputationType

from planner.actions import parse_action
from planner.decisions.max_active_stages.plans import possible_ranks, with_gathered
from planner.execute.parallel.active_weights import ActiveStages
from planner.execute.run.preparation import prepare
from planner.layout.gathers import WeightChange, weight_changes
from planner.plan import Plan
from tests.integration import execute_models as models
from tests.planner.execute.orders import make_random_plan


def changes_of_torch(stages: list[int], *, most: int) -> list[WeightChange]:
    """Where torch's lowering puts UNSHARD and RESHARD, by the number of actions before them."""
    actions = [_Action(stage, _ComputationType.FORWARD, number) for number, stage in enumerate(stages)]
    position, found = 0, dict[int, tuple[list[int], list[int]]]()
    for action in _add_unshard_reshard(list(actions), max_active_stages=most):
        if action.computation_type is _ComputationType.FORWARD:
            position += 1
        else:
            is_gathered = action.computation_type is _ComputationType.UNSHARD
            found.setdefault(position, ([], []))[is_gathered].append(action.stage_index)
    return [WeightChange(at, tuple(sorted(freed)), tuple(gathered)) for at, (freed, gathered) in sorted(found.items())]


def test_weights_change_where_torch_changes_them():
    """Tests that positions and order are those of torch's own lowering, for random orders of up to five stages."""
    rng = Random(0)
    for _ in range(500):
        stages = [rng.randrange(rng.randint(1, 5)) for _ in range(rng.randint(1, 20))]
        most = rng.randint(1, 6)
        assert list(weight_changes(stages, most=most)) == changes_of_torch(stages, most=most)


class Noted:
    """A stage's layers that note what they are asked to do."""

    def __init__(self, number: int, notes: list[str]) -> None:
        self.number, self.notes = number, notes

    def hold(self, *, is_held: bool) -> None:
        """It is of no interest here."""

    def gather(self) -> None:
        """Note it."""
        self.notes.append(f"gather {self.number}")

    def wait(self) -> None:
        """Note it."""
        self.notes.append(f"wait {self.number}")

    def free(self) -> None:
        """Note it."""
        self.notes.append(f"free {self.number}")


def test_weights_are_freed_after_the_reduction_and_gathered_before_messages():
    """Tests that what a row does comes in this order, with one stage active, and that all is free in the end."""
    notes: list[str] = []
    order = [parse_action(each) for each in ("0F0", "1F0", "1B0", "0B0")]
    active = ActiveStages({n: Noted(n, notes) for n in range(2)}, order=order, most=1)  # type: ignore[misc]
    with active.iteration():
        for cell in ["0F0", "0SEND_F0", "1F0", "1B0", "1REDUCE_GRAD", "0B0", "0REDUCE_GRAD"]:
            active.take(cell)
            notes.append(cell)
    assert " ".join(notes) == (
        "gather 0 wait 0 0F0 free 0 gather 1 0SEND_F0 wait 1 1F0 wait 1 1B0 1REDUCE_GRAD "
        "free 1 gather 0 wait 0 0B0 0REDUCE_GRAD free 0"
    )
    held, most = set(), 0
    for word, number in zip(" ".join(notes).split(), " ".join(notes).split()[1:], strict=False):
        held = held | {number} if word == "gather" else held - {number} if word == "free" else held
        most = max(most, len(held))
    assert (held, most) == (set(), 1)


def gathered(placement: str, **more: object) -> Plan:
    """A plan whose stages are gathered one at a time."""
    plan = make_random_plan(placement, num_microbatches=2, **more)  # type: ignore[arg-type]
    return with_gathered(plan, possible_ranks(plan), max_active_stages=1)


def test_what_cannot_be_gathered_is_refused():
    """Tests that stage, reason and remedy are named."""
    training = models.vectors("ww", num_microbatches=2)
    plan = gathered("0/1 0/1", backward="B")
    assert prepare(plan, training).fully_sharded == {0, 1}
    with pytest.raises(ValueError, match="go together; plan again, or without max_active_stages"):
        prepare(
            replace(plan, max_active_stages=2, stages=make_random_plan("0/1 0/1", num_microbatches=2).stages), training
        )
