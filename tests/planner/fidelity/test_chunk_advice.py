"""Other dealings, places and cuts of steps whose devices have several stages, or whose backwards run in halves."""

from dataclasses import replace
from random import Random

import pytest

from planner.fidelity.advice import advise
from planner.fidelity.placement_advice import device_factors
from planner.fidelity.run_pipelines import PipelinePlayer, find_shape, one_pipeline, rows_of, with_rows
from planner.fidelity.run_replay import replay_ns
from planner.simulation.simulate import simulate
from profiles.importers.straggler import RunStep
from tests.long_runs import examples
from tests.planner.fidelity.chunked_runs import interleaved, slow_device, uneven
from tests.profiles.importers.test_rank_steps import as_run_step, running


def random_step(rng: Random) -> RunStep:
    """Two pipelines of two devices with two stages each."""
    is_split, microbatches = rng.random() < 0.5, rng.choice((2, 4))
    times = uneven(rng, stages=4, microbatches=microbatches, pipelines=2, is_split=is_split)
    return interleaved(times, microbatches=microbatches, pipelines=2, is_split=is_split, lag_ns=rng.choice((0, 500)))


def places_alike(step: RunStep) -> RunStep:
    """With places counted within each pipeline."""
    seats = {seat: sum(other[0] == seat[0] and other[1] < seat[1] for other in step.actions) for seat in step.actions}
    return replace(step, actions={(seat[0], place): step.actions[seat] for seat, place in seats.items()})


@pytest.mark.parametrize("seed", range(examples(40)))
def test_the_player_plays_what_the_replay_does(seed: int):
    """Tests that of random plans, and of dealings of theirs, the player gives the replay's makespan."""
    rng = Random(seed)
    problem, plan = running(seed)
    step = places_alike(as_run_step(plan, simulate(problem, plan)))
    shape = find_shape(step)
    assert shape is not None
    hands = rows_of(step, shape)
    for pipeline, hand in hands.items():
        rng.shuffle(hand)
        one = with_rows(one_pipeline(step, pipeline), shape, assignments={pipeline: hand})
        assert PipelinePlayer(one_pipeline(step, pipeline), shape).play(sum(hand, ())) == replay_ns(one)


@pytest.mark.parametrize("seed", range(examples(4)))
def test_all_remedies_are_offered(seed: int):
    """Tests that uneven microbatches on two chunks per device get all four, each between its bound and the step."""
    advice = advise([random_step(Random(seed))], blocks_per_stage=2)
    assert not advice.is_plain
    order, dealt, *others = advice.remedies
    assert order.what.startswith("another order within every pipeline (list scheduling")
    assert dealt.what.startswith("whole microbatches rebalanced (orders as run, or by list scheduling")
    assert {each.what.partition(":")[0] for each in others} <= {"placed again", "divided again"}
    assert "placed again" in others[0].what
    for remedy in advice.remedies:
        assert remedy.lower_bound_ns <= remedy.makespan_ns <= advice.replayed_ns


def test_long_microbatches_are_shared_out():
    """Tests that where one pipeline has all long microbatches, half of what that costs or more is won."""
    step = interleaved(lambda key: 1000 if key[0] else 3000, microbatches=4, pipelines=2)
    dealt = advise([step], blocks_per_stage=2).remedies[1]
    assert dealt.makespan_ns <= 0.75 * replay_ns(step)
    assert dealt.makespan_ns <= 1.15 * dealt.lower_bound_ns


def test_a_slow_device_is_named_and_moved():
    """Tests that of four pipelines' devices with two chunks the slow one is named and goes where less is to do."""
    light = 2
    times = slow_device(lambda key: 1000 if key[1] % light else 4000, pipeline=1, device=0, devices=2, factor=3)
    step = interleaved(times, microbatches=4, pipelines=4)
    advice = advise([step], blocks_per_stage=2)
    assert [each.what for each in advice.slow if "device" in each.what] == ["device of stages 0, 2 in pipeline 1"]
    placed_anew = next(each for each in advice.remedies if each.what.startswith("placed again"))
    assert placed_anew.what.startswith("placed again: 2 of 8 devices elsewhere (orders as run, in no pipelines")
    assert placed_anew.makespan_ns <= 0.6 * advice.replayed_ns
    assert placed_anew.makespan_ns <= 1.3 * placed_anew.lower_bound_ns


def test_a_heavy_last_stage_is_cut_anew():
    """Tests that blocks leave a last stage that takes longest, halves kept halves, and that the bound holds."""
    step = interleaved(lambda key: 8000 if key[1] == 3 else 2000, microbatches=4, is_split=True)
    advice = advise([step], blocks_per_stage=4)
    cut = advice.remedies[-1]
    assert cut.what.startswith("divided again: 0 of 4 blocks left on the last stage")
    assert cut.lower_bound_ns <= cut.makespan_ns < 0.95 * advice.replayed_ns


def test_noise_of_microbatches_is_no_slow_device():
    """Tests that a total that its microbatches' lengths explain is no factor, and that one they do not explain is."""
    rng = Random(1)
    lengths = [[rng.choice((1000, 9000)) for _ in range(4)] for _ in range(8)]
    lengths[2] = [9000] * 3 + [1000]
    step = interleaved(lambda key: lengths[key[0]][key[3]], microbatches=4, pipelines=8)
    assert set(device_factors([step], step).values()) == {1}
    slow = interleaved(
        lambda key: lengths[key[0]][key[3]] * (20 if key[0] == 2 and key[1] % 2 else 1), microbatches=4, pipelines=8
    )
    assert [seat for seat, by in device_factors([slow], slow).items() if by != 1] == [(2, 1)]
