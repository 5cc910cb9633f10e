"""Advice from a trace alone."""

from hypothesis import given
from hypothesis import strategies as st

from planner.dealing import Durations
from planner.fidelity.advice import advise, make_block_workload, recut
from planner.fidelity.balance_advice import durations_of
from tests.planner.test_dealing import make_step


def test_what_is_slow_is_named_with_its_factor():
    """Tests that the one slow device of four pipelines, and the heavy last stage, are named with factor and effect."""
    usual = Durations(forward_ns=(1000, 2000), backward_ns=(2000, 4000))
    slow = Durations(forward_ns=(3000, 2000), backward_ns=(6000, 4000))
    advice = advise([make_step([[usual] * 4, [usual] * 4, [slow] * 4, [usual] * 4])], blocks_per_stage=4)
    named = {each.what: each for each in advice.slow}
    assert named["device of stage 0 in pipeline 2"].factor == 3
    assert named["device of stage 0 in pipeline 2"].effect_ns > 0
    assert set(named) == {"device of stage 0 in pipeline 2", "stage 1"}
    assert advice.busiest_stage == 0


ROW = st.lists(st.integers(0, 10**6), min_size=3, max_size=3).map(tuple)


@given(forward=ROW, backward=ROW, kept=st.integers(0, 8))
def test_cutting_anew_keeps_the_work(forward: tuple[int, ...], backward: tuple[int, ...], kept: int):
    """Tests that no work is lost or added by another cut, but for rounding, and that the present cut is itself."""
    cut = recut(Durations(forward_ns=forward, backward_ns=backward), kept=kept, blocks_per_stage=8)
    for before, after in ((forward, cut.forward_ns), (backward, cut.backward_ns)):
        assert abs(sum(before) - sum(after)) <= len(before)
        assert min(after) >= 0


def test_blocks_have_the_means_of_the_trace():
    """Tests that the chain of blocks takes what the stages take, and that the rest of the last stage is one layer."""
    one = Durations(forward_ns=(800, 800, 1000), backward_ns=(1600, 1600, 1700))
    step = make_step([[one] * 4])
    workload = make_block_workload([step], blocks_per_stage=2, name="t")
    forward = [layer.costs[0].forward_ns for layer in workload.profile.layers]
    assert forward == [400] * 6 + [200]
    assert workload.num_microbatches == 4
    assert list(durations_of(step)[0].values()) == [one] * 4
    assert "assuming that each of its 3 stages is 2 equal blocks" in workload.profile.provenance
