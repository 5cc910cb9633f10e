"""Microbatches of different length dealt to pipelines."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.dealing import DealtBatches
from planner.dealing import Dealing, Durations, StageTimes, balance_durations, bound_dealings, deal, pipeline_actions
from planner.fidelity.run_replay import replay_ns
from profiles.importers.straggler import RunAction, RunStep
from tests.long_runs import examples

TIMES = st.integers(0, 20)


@st.composite
def microbatches(draw: st.DrawFn, *, most: int) -> list[Durations]:
    stages = draw(st.integers(1, 3))
    row = st.tuples(*[TIMES] * stages)
    return draw(st.lists(st.builds(Durations, forward_ns=row, backward_ns=row), min_size=1, max_size=most))


def make_step(dealt: list[list[Durations]]) -> RunStep:
    """Pipelines that run 1F1B in the order given."""
    actions: dict[tuple[int, int], list[RunAction]] = {}
    number = len(dealt[0][0].forward_ns)
    for pipeline, hand in enumerate(dealt):
        for stage, place, is_forward in pipeline_actions(number, len(hand)):
            times = hand[place].forward_ns if is_forward else hand[place].backward_ns
            actions.setdefault((pipeline, stage), []).append(
                RunAction(
                    kind="F" if is_forward else "B",
                    stage=stage,
                    microbatch=place,
                    start_ns=0,
                    duration_ns=times[stage],
                )
            )
    return RunStep(number=0, actions={seat: tuple(row) for seat, row in actions.items()}, transfers_ns={})


def test_orders_are_those_of_1f1b():
    """Tests that every stage runs as 1F1B draws it."""
    rows = [[], [], []]
    for stage, place, is_forward in pipeline_actions(3, 4):
        rows[stage].append(f"{'F' if is_forward else 'B'}{place}")
    assert [" ".join(row) for row in rows] == [
        "F0 F1 F2 B0 F3 B1 B2 B3",
        "F0 F1 B0 F2 B1 F3 B2 B3",
        "F0 B0 F1 B1 F2 B2 F3 B3",
    ]


@given(given=microbatches(most=12), pipelines=st.integers(1, 5), transfer_ns=st.integers(0, 4))
def test_dealings_are_whole_and_never_worse_than_longest_first(
    given: list[Durations], pipelines: int, transfer_ns: int
):
    """Tests that every microbatch is dealt once, and that bound <= time <= longest first."""
    dealing = balance_durations(given, pipelines, transfer_ns=transfer_ns)
    assert sorted(itertools.chain(*dealing.pipelines)) == list(range(len(given)))
    assert len(dealing.pipelines) == pipelines
    assert dealing.lower_bound_ns <= dealing.largest_ns <= dealing.longest_first_ns
    assert 0 <= dealing.gap <= 1


@settings(max_examples=examples(40), deadline=None)
@given(given=microbatches(most=5), pipelines=st.integers(1, 3))
def test_the_bound_is_below_every_dealing(given: list[Durations], pipelines: int):
    """Tests that no dealing in any order, of all there are, ends before the bound, each replayed."""
    bound = bound_dealings(given, pipelines)
    for order in itertools.permutations(range(len(given))):
        for cuts in itertools.combinations_with_replacement(range(len(given) + 1), pipelines - 1):
            ends = (0, *cuts, len(given))
            hands = [[given[i] for i in order[a:b]] for a, b in itertools.pairwise(ends) if a < b]
            assert max(replay_ns(make_step([hand])) for hand in hands) >= bound


@settings(max_examples=examples(60), deadline=None)
@given(given=microbatches(most=6), pipelines=st.integers(1, 2), transfer_ns=st.integers(0, 3))
def test_bounds_are_below_the_best_dealing_of_all(given: list[Durations], pipelines: int, transfer_ns: int):
    """Tests that any order <= 1F1B <= the best of all dealings and all orders under 1F1B, transfers included."""
    best = {(): 0}
    for size in range(1, len(given) + 1):
        for hand in itertools.combinations(range(len(given)), size):
            orders = ([given[i] for i in order] for order in itertools.permutations(hand))
            best[hand] = min(deal_alone(order, transfer_ns=transfer_ns) for order in orders)
    everything = tuple(range(len(given)))
    rests = {hand: tuple(i for i in everything if i not in hand) for hand in best}
    optimum = min(max(best[a], best[b]) for a, b in rests.items()) if pipelines == 2 else best[everything]
    any_order = bound_dealings(given, pipelines, transfer_ns=transfer_ns)
    assert any_order <= bound_dealings(given, pipelines, transfer_ns=transfer_ns, is_1f1b=True) <= optimum


def deal_alone(hand: list[Durations], *, transfer_ns: int) -> int:
    """When one pipeline that runs 1F1B in this order ends, written down anew."""
    stages = len(hand[0].forward_ns)
    end: dict[tuple[int, int, bool], int] = {}
    free = [0] * stages
    for stage, place, is_forward in pipeline_actions(stages, len(hand)):
        source = (stage - 1, place, True) if is_forward else (stage + 1, place, False)
        ready = end.get(source, -transfer_ns) + transfer_ns
        duration = (hand[place].forward_ns if is_forward else hand[place].backward_ns)[stage]
        end[stage, place, is_forward] = free[stage] = max(free[stage], ready) + duration
    return max(end.values())


def test_waiting_for_the_first_backward_is_counted():
    """Tests that the first of two stages is bounded with its wait for the first backward, which only 1F1B has."""
    one = Durations(forward_ns=(20, 10), backward_ns=(40, 20))
    dealing = balance_durations([one] * 8, 2)
    assert dealing.lower_bound_ns == 4 * 60
    assert bound_dealings([one] * 8, 2, is_1f1b=True) == dealing.largest_ns == 4 * 60 + 10


def test_costs_are_interpolated_and_never_invented():
    """Tests that lengths between two measured ones are interpolated, rounded up, and others refused."""
    stage = StageTimes(lengths=(10, 20), forward_ns=(100, 201), backward_ns=(0, 0))
    assert deal([15], 1, stages=[stage]).largest_ns == 151
    assert deal([15], 1, stages=[stage]).lower_bound_ns == 150
    for length in (9, 21):
        with pytest.raises(ValueError, match=rf"length = {length}: only 10 to 20 were measured"):
            deal([length], 1, stages=[stage])
    with pytest.raises(ValueError, match="do not ascend"):
        StageTimes(lengths=(20, 10), forward_ns=(1, 1), backward_ns=(1, 1))
    with pytest.raises(ValueError, match="one of each"):
        StageTimes(lengths=(20,), forward_ns=(1, 1), backward_ns=(1,))
    with pytest.raises(ValueError, match="pipelines = 0"):
        deal([15], 0, stages=[stage])
    with pytest.raises(ValueError, match="stages is empty"):
        deal([15], 1, stages=[])
    nothing = Dealing(pipelines=((), ()), largest_ns=0, longest_first_ns=0, lower_bound_ns=0)
    assert deal([], 2, stages=[stage]) == nothing


def test_the_example_gives_every_sequence_to_one_pipeline():
    """Tests that the samplers of all pipelines together draw each sequence of a step once."""
    lengths = [128 + 37 * i for i in range(16)]
    drawn = [list(DealtBatches(lengths, per_step=8, pipelines=4, rank=rank)) for rank in range(4)]
    assert sorted(i for batches in drawn for batch in batches for i in batch) == list(range(16))
