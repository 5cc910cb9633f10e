"""`pipeplan tune`: the loop with recorded runs, and a tiny model for real."""

from api.tuning.tuning_loop import TuningLimits, TuningLoop, TuningResult
from tests.api.tuning_records import RecordedBench
from tests.api.worlds import make_workload


def follow(bench: RecordedBench, *, time_limit_s: float = 1000, runs: int = 2, within: float = 0.03) -> TuningResult:
    limits = TuningLimits(time_limit_s=time_limit_s, runs=runs, within=within)
    return TuningLoop(make_workload(), bench, limits=limits, hear=lambda line: None).follow()


def test_the_clock_decides():
    """Tests that the plan that ran fastest is kept, whatever was predicted, and that plans are run in turns."""
    bench = RecordedBench(
        proposals=[["replicated", "pipeline"]],
        predictions=[{"replicated": 100, "pipeline": 110}],
        times={"replicated": [200], "pipeline": [150]},
    )
    result = follow(bench, time_limit_s=5)
    assert result.chosen.candidate.name == "pipeline"
    assert result.preferred.candidate.name == "replicated"
    assert result.stopped_by == "time limit"
    assert bench.ran == ["replicated", "pipeline", "replicated", "pipeline"]
    assert result.chosen.measured_ns == 150_000_000


def test_it_ends_when_prediction_and_run_agree():
    """Tests that the second profile's choice, run as predicted and fastest, ends the loop by agreement."""
    bench = RecordedBench(
        proposals=[["replicated", "pipeline"], ["pipeline", "replicated"]],
        predictions=[{"replicated": 100, "pipeline": 110}, {"replicated": 202, "pipeline": 148}],
        times={"replicated": [200], "pipeline": [150]},
    )
    result = follow(bench)
    assert (result.stopped_by, result.rounds) == ("agreement", 2)
    assert result.chosen is result.preferred
    assert bench.calibrated_with == [["replicated", "pipeline"]]  # the fastest last: its figures count
    assert len(bench.ran) == 4


def test_it_does_not_agree_while_another_plan_is_faster():
    """Tests that a choice that takes what is predicted is no end while a plan beside it ran faster."""
    bench = RecordedBench(
        proposals=[["a", "b"], ["b", "a"]],
        predictions=[{"a": 200, "b": 300}, {"a": 200, "b": 150}],
        times={"a": [200], "b": [150]},
    )
    assert follow(bench).rounds == 2


def test_it_ends_at_the_time_limit():
    """Tests that no run is begun that the limit leaves no time for, and the best so far is kept."""
    bench = RecordedBench(
        proposals=[["a", "b"]], predictions=[{"a": 100, "b": 90}], times={"a": [200], "b": [210]}, run_s=10
    )
    result = follow(bench, time_limit_s=35)
    assert bench.ran == ["a", "b", "a"]
    assert result.stopped_by == "time limit"
    assert result.chosen.candidate.name == "a"


def test_without_time_for_a_run_the_choice_is_kept():
    """Tests that a limit that profiling has used up gives the planner's choice, not measured."""
    bench = RecordedBench(proposals=[["a", "b"]], predictions=[{"a": 1, "b": 2}], times={}, clock=50)
    result = follow(bench, time_limit_s=40)
    assert (result.chosen.candidate.name, result.chosen.measured_ns, bench.ran) == ("a", None, [])


def test_an_interrupt_keeps_the_best():
    """Tests that Ctrl+C during a run ends the loop with the fastest plan so far."""
    bench = RecordedBench(
        proposals=[["a", "b"]], predictions=[{"a": 1, "b": 2}], times={"a": [9], "b": [8]}, interrupt_at=2.5
    )
    result = follow(bench, runs=5)
    assert (result.stopped_by, result.chosen.candidate.name) == ("interrupt", "b")


def test_a_plan_that_fails_is_left_out():
    """Tests that a plan that the executor refuses is named, never chosen and not run again."""
    bench = RecordedBench(
        proposals=[["a", "b"]], predictions=[{"a": 5, "b": 9}], times={"a": "rank 0 refuses", "b": [9]}
    )
    result = follow(bench, time_limit_s=20)
    assert result.chosen.candidate.name == "b"
    assert [trial.failure for trial in result.trials] == ["rank 0 refuses", ""]
    assert bench.ran.count("a") == 1


def test_the_same_plans_again_are_an_end():
    """Tests that disagreement without a new plan ends after a few rounds more, long before the limit."""
    bench = RecordedBench(proposals=[["a"]], predictions=[{"a": 5}], times={"a": [9]})
    result = follow(bench)
    assert result.stopped_by == "nothing new"
    assert 2 <= result.rounds <= 5
