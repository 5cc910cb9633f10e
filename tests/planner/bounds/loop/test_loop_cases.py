"""Cases of how the stages of a loop are filled: what playing them costs; `test_loop_cuts` looks at every cut."""

from dataclasses import replace
from random import Random

import pytest

from benchmarks.layouts import read_problem
from planner.bounds.loop.loop_cases import ActionsLeft, is_refuted
from planner.bounds.loop.loop_order import order_of
from planner.evidence.certificate import OtherRulesError, check_certificate, proves_anew
from planner.problem import Options
from tests.long_runs import shortened
from tests.planner.bounds.loop.test_loop_cuts import MUCH, any_cuts, every_cut, time_of, within
from tests.planner.evidence.test_certificate import make_chain


def test_little_effort_refutes_no_more():
    """Tests that with any effort only what is refuted with enough is refuted, and that little leaves some open."""
    rng, num_open = Random(11), 0
    for _ in range(shortened(60, whole=3000)):
        cuts, times = any_cuts(rng)
        least = min((time_of(cuts, times, numbers) for numbers in every_cut(cuts)), default=None)
        if least is None:
            continue
        late, timely = within(cuts, least - 1), within(cuts, least)
        few = len(cuts.order.steps)
        assert not any(is_refuted(timely, least, effort=ActionsLeft(effort)) for effort in (0, few, 10 * few, MUCH))
        num_open += not is_refuted(late, least - 1, effort=ActionsLeft(few))
    assert num_open


@pytest.mark.parametrize(("ranks", "count"), [(2, 2), (3, 3), (3, 12), (8, 64)])
def test_ranks_that_act_at_once_make_a_play_no_dearer(ranks: int, count: int):
    """Tests that a play takes no more of the effort than action by action, so that old certificates suffice."""
    cuts, _ = any_cuts(Random(1))
    cuts = replace(cuts, ranks=ranks, chunks=2, count=count)
    assert cuts.order is order_of(ranks=ranks, chunks=2, count=count)
    for cases in (0, 1, 255, 256, 600, 1_024, 1_025, 4_096):
        in_a_row, at_once = ActionsLeft(MUCH), ActionsLeft(MUCH)
        assert in_a_row.take(cuts.num_actions, cases=cases)
        assert at_once.take_play(cuts, cases=cases)
        assert at_once.left >= in_a_row.left
        assert at_once.left > in_a_row.left or ranks < 8 or cases > 255
        in_parts = ActionsLeft(MUCH)
        assert in_parts.take_play(cuts, cases=cases // 3)
        assert in_parts.take_play(cuts, cases=cases - cases // 3, before=cases // 3)
        assert in_parts.left == at_once.left or not cases


def test_what_the_interleaved_order_makes_idle():
    """Tests that what release 0.3.0 proved of a recipe by counting cases of units is proved anew, and no more."""
    problem, value = read_problem("deepseek-v3", ranks=16), 9_700 * 10**6
    way = {"width": 1, "replicas": 1, "unit": 30 * 10**6, "special": ["mtp", "head"]}
    with pytest.raises(OtherRulesError, match="had the effort of cases") as caught:
        check_certificate(problem, {"kind": "loop", "value_ns": value, "ways": [{**way, "effort": 40_000}]})
    assert caught.value.is_known
    assert proves_anew(problem, value)
    assert not proves_anew(problem, 9_950 * 10**6)
    with pytest.raises(ValueError, match="does not exclude"):
        check_certificate(problem, {"kind": "loop", "value_ns": value, "ways": [way]})


def test_no_value_is_too_large_to_be_asked_for():
    """Tests that what a made-up certificate of an older kind states is not proved anew, and ends in no error."""
    options = Options(order="looped", split_backward=False, max_stages_per_device=1)
    problem = make_chain([(10, 10, 10)] * 4, num_devices=16, num_microbatches=4, options=options)
    assert len(problem.allowed_replicas) > 1
    assert not any(proves_anew(problem, 1 << bits) for bits in (49, 50, 59, 70))
