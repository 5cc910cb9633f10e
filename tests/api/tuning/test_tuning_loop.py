"""`pipeplan tune`: the loop with recorded runs, and a tiny model for real."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from api.tuning import short_run, workbench
from api.tuning.calibrating import calibrate_with
from api.tuning.short_run import ShortRun, choose_num_steps, count_processes, last_lines
from api.tuning.tuning_candidates import make_candidates
from api.tuning.tuning_loop import TuningLimits, TuningLoop, TuningResult
from api.tuning.tuning_report import describe_stages, summarise_result
from planner.document import parse_plan
from planner.execute.record.executed_timeline import IterationTimes, render_rank
from planner.problem import Problem
from planner.simulation.simulate import simulate
from profiles.load import load_workload
from profiles.workload import Workload, dump_workload
from tests.api.tuning_records import RecordedBench
from tests.api.worlds import Shell, make_plan, make_workload
from tests.long_runs import IS_LONG, long_only, shortened
from tests.planner.execute.test_enter import start_ranks

ROOT = Path(__file__).resolve().parents[3]


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


def test_spread_and_error_are_those_of_the_runs():
    """Tests that a plan's figure is the median over runs, with what lies between them, and both errors."""
    bench = RecordedBench(proposals=[["a"]], predictions=[{"a": 90}], times={"a": [100, 110, 90]})
    result = follow(bench, runs=3, time_limit_s=3.5)
    (row,) = summarise_result(result, files={}, elapsed_s=1.0)["plans"]
    assert (row["measured_ns"], row["spread"], row["error"]) == (100_000_000, 0.2, -0.1)


def test_steps_and_processes():
    """Tests that short iterations are run more often than long ones, and that idle devices have no process."""
    assert choose_num_steps(10**6) > choose_num_steps(10**9) >= 3
    plan = make_plan(Problem(profile=make_workload().profile, cluster=make_workload().cluster, num_microbatches=3))
    assert count_processes(plan) == 2
    assert count_processes(replace(plan, schedule={**plan.schedule, "gpu1": ()})) == 1
    assert describe_stages(plan) == "2 x 1 (2-2)"


def test_the_executors_own_words_are_told(tmp_path: Path):
    """Tests that of a failed run's log the executor's message is taken, not torchrun's summary of it."""
    log = tmp_path / "log"
    log.write_text("W torchrun\nplanner.execute: layer 'l0' is compiled\nSystemExit\n")
    assert last_lines(log) == "layer 'l0' is compiled"
    log.write_text("[rank1]: RuntimeError: twice\n[rank0]: RuntimeError: peer is gone\nChildFailedError\n====\n")
    assert last_lines(log) == "RuntimeError: twice"
    log.write_text("")
    assert last_lines(log) == "it said nothing"


def test_candidates_are_of_several_kinds():
    """Tests that what is predicted to be fastest comes first, and plans with and without replicas are among them."""
    workload = replace(make_workload(), options={"uneven_replication": False})
    found = make_candidates(workload, seconds=1, should_stop=lambda: False, hear=lambda name: None)
    assert "unrestricted" in {candidate.name for candidate in found}
    counts = {max(len(stage.replicas) for stage in candidate.plan.stages) for candidate in found}
    assert counts == {1, 2}
    assert len({candidate.key for candidate in found}) == len(found)
    assert found[0].predicted_ns == min(candidate.predicted_ns for candidate in found)


def test_calibrating_keeps_what_other_sizes_took(tmp_path: Path):
    """Tests that a run sets the sizes that it ran, and leaves those alone that an earlier run has set."""
    workload = make_workload()
    layers = tuple(
        replace(layer, costs=(layer.costs[0], replace(layer.costs[0], microbatch_size=4)))
        for layer in workload.profile.layers
    )
    workload = replace(workload, profile=replace(workload.profile, layers=layers))
    problem = Problem(profile=workload.profile, cluster=workload.cluster, num_microbatches=3)
    plan = make_plan(problem)
    run = _record_run(problem, tmp_path / "run", factor=2)
    calibrated, settled, causes = calibrate_with(workload, plan, run=run, settled=frozenset({("embed", 4)}))
    assert _forward(calibrated, "embed") == pytest.approx((2_000_000, 1_000_000), rel=0.01)
    assert _forward(calibrated, "head") == pytest.approx((4_000_000, 4_000_000), rel=0.01)
    assert {("embed", 4), ("embed", 8), ("head", 8)} <= settled
    assert causes == "difference by cause: host 0.000 ms, card +30.00 ms, messages +1.000 ms; memory not measured"


def _forward(workload: Workload, name: str) -> tuple[int, ...]:
    return tuple(cost.forward_ns for cost in workload.profile.by_name[name].costs)


def _record_run(problem: Problem, folder: Path, *, factor: int) -> ShortRun:
    """The plan of the small world, run `factor` times slower than planned."""
    folder.mkdir()
    timeline = simulate(problem, make_plan(problem))
    for rank, (device, order) in enumerate(timeline.actions.items()):
        row = [(str(action), factor * start, factor * end) for action, start, end in order]
        asked = (0, *(end for _, _, end in row[:-1]))
        times = IterationTimes(asked, begin_ns=0, reduced_ns=row[-1][2], end_ns=row[-1][2])
        (folder / f"rank{rank}.json").write_text(render_rank(rank, device, iterations=[row] * 3, times=[times] * 3))
    return ShortRun(folder=str(folder), durations_ns=(1, 1), wall_s=1.0)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("examples.train:make_training", "--runs", "0"), "--runs 0 is out of range"),
        (("examples.train:make_training", "--steps", "1"), "--steps 1 is out of range"),
        (("examples.train:make_training", "--within", "0"), "--within 0 is out of range"),
        (("examples.train:make_training", "--time-limit", "-1"), "--time-limit -1"),
        (("examples.train:make_training", "-w", "workload.json", "-m", "2"), "-m 2: --workload workload.json states"),
        (("examples.train:make_training", "-m", "2", "--devices", "1"), "--devices 1"),
        (("gpt:layers=2,width=48", "-m", "2"), "not run; give module:factory"),
        (("examples.train:make_training", "-o", "nowhere/plan.json"), "the folder nowhere does not exist"),
    ],
)
def test_mistakes_have_one_message(shell: Shell, arguments: tuple[str, ...], message: str):
    """Tests that what means nothing is refused before anything is measured, with what to do."""
    outcome = shell.run("tune", *arguments)
    assert outcome.code == 2
    assert message in outcome.err


class FewLaunches:
    """Starts the first run with torchrun, and the ranks of others as forks."""

    def __init__(self) -> None:
        self.num_started = 0
        self._launch = short_run.run_command

    def __call__(self, command: tuple[str, ...], **how: Any) -> None:
        self.num_started += 1
        if IS_LONG or self.num_started == 1:
            self._launch(command, **how)
            return
        (count,) = (int(word.partition("=")[2]) for word in command if word.startswith("--nproc-per-node="))
        answers = start_ranks([command[command.index("planner.execute") + 1 :]] * count)
        how["log"].write_text("".join(said for _, said in answers))
        assert [code for code, _ in answers] == [0] * count, answers


@long_only
def test_a_tiny_model_for_real(shell: Shell, monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Tests that plans of a small model are run in two processes, the fastest is kept, and the profile learns.

    `make test` starts only the first of them with torchrun.
    """
    monkeypatch.setattr(workbench, "PLANNING_S", 1.0)
    monkeypatch.setattr(short_run, "run_command", launches := FewLaunches())
    monkeypatch.setenv("PYTHONPATH", str(ROOT))  # for the processes that run the plans
    workload = load_workload(str(ROOT / "examples" / "two-ranks-workload.json"))
    options = {key: value for key, value in workload.options.items() if key != "max_replicas"}
    options |= shortened({"split_backward": False, "max_stages_per_device": 1}, whole={})  # two kinds of plans, or more
    shell.write("guessed.json", dump_workload(replace(workload, options=options)))
    arguments = ("--workload", "guessed.json", "--runs", "1", "--steps", "4", "--within", "40", "-t", "100")
    done = shell.run("tune", "examples.train:make_training", *arguments, "-o", "best.json", "--json")
    assert done.code == 0, done.err
    said = json.loads(done.err.splitlines()[-1])
    measured = {row["key"]: row["measured_ns"] for row in said["plans"] if row["measured_ns"] is not None}
    assert launches.num_started >= len(measured) >= 2
    assert measured[said["chosen"]] == min(measured.values())
    assert {max(row["replicas"]) for row in said["plans"]} == {1, 2}
    plan = parse_plan((tmp_path / "best.json").read_bytes(), source="best.json")
    assert plan.evidence is not None
    calibrated = load_workload(str(tmp_path / "best.workload.json"))
    assert any(entry.what == "duration" for entry in calibrated.profile.measurements)
