"""The complete model: one programme with everything open, for CP-SAT and for integer programming solvers."""

import json
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from random import Random

import highspy
import pulp
import pytest
from ortools.sat.python import cp_model

from planner.baselines.registry import make_baselines, play_baseline
from planner.errors import InfeasibleProblemError, NoPlanFoundError
from planner.layout.costs import CostModel
from planner.plan import Plan
from planner.planning import make_plan
from planner.planning.complete.complete_files import read_solution, write_model
from planner.planning.complete.complete_search import MODEL, ask, longest
from planner.planning.runs import candidate_run
from planner.problem import Options, Problem
from planner.progress import Limits
from planner.simulation.simulate import simulate
from planner.verify import verify
from solver_models.complete.with_cp_sat import solve_with_cp_sat
from solver_models.complete.with_pulp import linear, solve_with_pulp
from tests.long_runs import shortened
from tests.planner.brute_force import brute_force
from tests.planner.evidence.test_certificate import make_chain
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
def test_cp_sat_agrees_with_brute_force(kind: str):
    """Tests that the optimum of the model, from no plan at all, is that of brute force, and a plan of that length."""
    for seed in range(1000, 1000 + shortened(12, whole=200)):
        problem = problem_of(kind, seed)
        question = ask(problem, CostModel(problem))
        outcome = solve_with_cp_sat(question.model.programme, time_limit_s=60, seed=0, threads=1)
        best = brute_force(problem)
        if best is None:
            assert outcome.status == "infeasible", f"seed {seed}"
            continue
        assert (outcome.status, outcome.bound) == ("optimal", best), f"seed {seed}"
        assert outcome.values is not None
        verdict = verify(problem, question.plan(outcome.values))
        assert verdict.passed, f"seed {seed}: {verdict.violations}"
        assert verdict.timeline is not None
        assert verdict.timeline.makespan_ns == best, f"seed {seed}"


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


def test_given_stages_have_receive_buffers_on_every_device():
    """Tests that the model counts what d0 receives for its last stage, which no stage on d0 sends."""
    for memory, status in ((59, "infeasible"), (60, "optimal")):
        problem = two_stages_on_a_device(memory=memory)
        outcome = solve_with_cp_sat(
            ask(problem, CostModel(problem)).model.programme, time_limit_s=60, seed=0, threads=1
        )
        assert outcome.status == status


@pytest.mark.parametrize("method", ["cp-sat", "ilp"])
def test_what_cannot_fit_is_said_with_its_limit(method: str):
    """Tests that a device that its given stages overfill is named, whoever is asked for a plan."""
    with pytest.raises(InfeasibleProblemError, match=r"device 'd0' needs 60 bytes when stage 2 .* but it has 59"):
        make_plan(two_stages_on_a_device(memory=59), limits=Limits(time_limit_s=60, method=method))  # type: ignore[arg-type]


@pytest.mark.parametrize("method", ["cp-sat", "ilp"])
def test_a_claim_that_nothing_fits_is_called_one(method: str, monkeypatch: pytest.MonkeyPatch):
    """Tests that where no limit of ours is proved, what the solver claims is said, and nothing of a rejected plan."""
    monkeypatch.setattr(candidate_run, "prove_infeasible", lambda *_: None)
    with pytest.raises(NoPlanFoundError, match=r"claims that no plan fits into memory"):
        make_plan(two_stages_on_a_device(memory=59), limits=Limits(time_limit_s=60, method=method))  # type: ignore[arg-type]


def open_problem() -> Problem:
    """A chain whose best plan no baseline finds, and no certificate proves."""
    return chain_of("one stage", 1003)


def test_a_solvers_word_is_no_proof_of_ours():
    """Tests that what CP-SAT claims is labelled as its claim, and the plan is not called optimal for it."""
    evidence = make_plan(open_problem(), limits=Limits(time_limit_s=60, method="cp-sat")).evidence
    assert evidence is not None
    assert evidence.lower_bound_ns < evidence.makespan_ns == evidence.solver_bound_ns == 74
    assert (evidence.solution_status, evidence.proved_by, evidence.stopped_by) == ("feasible", None, "solver")
    assert evidence.solver_versions[MODEL].startswith("CP-SAT ")
    assert evidence.source == MODEL


@pytest.mark.parametrize("method", ["cp-sat", "ilp"])
def test_the_incumbent_is_a_solution_to_start_from(method: str):
    """Tests that the best plan, completed to values of all variables, is feasible at exactly its makespan."""
    problem = open_problem()
    plan = make_plan(problem, limits=Limits(time_limit_s=60))
    costs, makespan_ns = CostModel(problem), simulate(problem, plan).makespan_ns
    question = ask(problem, costs, horizon=makespan_ns)
    programme = question.model.programme if method == "cp-sat" else linear(question.model.programme)
    fixed = programme.fixed(question.decisions(plan, costs))
    outcome = solve_with_cp_sat(fixed, time_limit_s=60, seed=0, threads=1)
    assert (outcome.status, outcome.bound) == ("optimal", makespan_ns)


def test_a_hint_survives_a_limit_that_is_too_short():
    """Tests that HiGHS hands back at least the solution that it starts from."""
    problem = open_problem()
    plan, costs = make_plan(problem, limits=Limits(time_limit_s=60)), CostModel(problem)
    question = ask(problem, costs, horizon=2 * simulate(problem, plan).makespan_ns, is_coarse=True)
    rows = linear(question.model.programme)
    start = solve_with_cp_sat(rows.fixed(question.decisions(plan, costs)), time_limit_s=60, seed=0, threads=1)
    outcome = solve_with_pulp(rows, hint=start.values, time_limit_s=0.2, threads=1)
    assert outcome.values is not None
    assert outcome.values[rows.objective] <= simulate(problem, plan).makespan_ns


def baseline_of(problem: Problem) -> Plan:
    """The worst baseline that fits."""
    costs, fitting = CostModel(problem), list[tuple[int, Plan]]()
    for baseline in make_baselines(problem, costs):
        row, timeline = play_baseline(problem, baseline, costs=costs)
        if row.fits_memory and timeline is not None and baseline.plan is not None:
            fitting.append((timeline.makespan_ns, baseline.plan))
    return max(fitting, key=lambda each: each[0])[1]


def solve_file(path: Path, answer: Path, *, solver: str) -> None:
    """What a person does with the file."""
    if solver == "HiGHS":
        highs = highspy.Highs()
        highs.setOptionValue("output_flag", False)
        highs.readModel(str(path))
        highs.run()
        highs.writeSolution(str(answer), 0)
    elif solver == "CBC":
        cbc = pulp.PULP_CBC_CMD.pulp_cbc_path
        subprocess.run([cbc, path, "-log", "0", "solve", "solu", answer], check=True, capture_output=True)
    else:
        model = cp_model.CpModel()
        model.proto.parse_text_format(path.read_text(encoding="utf-8"))
        cp_solver = cp_model.CpSolver()
        cp_solver.solve(model)
        answer.write_text(json.dumps(list(cp_solver.response_proto.solution)), encoding="utf-8")


@pytest.mark.parametrize(
    ("form", "solver"),
    [("mps", "HiGHS"), ("lp", "HiGHS"), ("cp-sat", "CP-SAT"), *shortened([], whole=[("mps", "CBC")])],
)
def test_a_model_goes_out_and_its_answer_comes_back(tmp_path: Path, form: str, solver: str):
    """Tests that the file solved elsewhere gives the best plan, and that it passes the verifier."""
    problem = open_problem()
    timeline = simulate(problem, baseline_of(problem))
    assert timeline.makespan_ns > 74
    model, answer = tmp_path / f"model.{form}", tmp_path / "answer.sol"
    assert write_model(problem, timeline, path=model, form=form) == 1  # type: ignore[arg-type]
    solve_file(model, answer, solver=solver)
    plan = read_solution(problem, timeline, text=answer.read_text(encoding="utf-8"), source="answer.sol")
    verdict = verify(problem, plan)
    assert verdict.passed
    assert verdict.timeline is not None
    assert verdict.timeline.makespan_ns == 74


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "names no variable"),
        ("x 1\ny 2", "names no variable"),
        ("[1, 2]", "2 values for"),
        ("{", "is not JSON"),
        ('{"makespan": "long"}', "'long' in place of a number"),
        ('{"makespan": 3}', "not a solution of the model"),
    ],
)
def test_answers_to_something_else_are_refused(text: str, message: str):
    """Tests that what is no answer to the model of the plan is called that."""
    problem = open_problem()
    with pytest.raises(ValueError, match=message):
        read_solution(problem, simulate(problem, baseline_of(problem)), text=text, source="answer")


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
    with pytest.raises(ValueError, match="solver = 'HiGHS' is for method = ilp"):
        Limits(solver="HiGHS")
    with pytest.raises(ValueError, match=r"solver 'NONE' is not available here; choose one of .*HiGHS"):
        make_plan(open_problem(), limits=Limits(method="ilp", solver="NONE"))


def test_search_leaves_the_complete_search_out():
    """Tests that `search` claims nothing, and never asks the exact search or CP-SAT."""
    evidence = make_plan(open_problem(), limits=Limits(time_limit_s=60, method="search", max_rounds=8)).evidence
    assert evidence is not None
    assert evidence.solver_bound_ns is None
    assert not {"exact search", "CP-SAT order"} & {each.name for each in evidence.improvers}


def test_nothing_takes_longer_than_everything_in_turn():
    """Tests that the horizon without a plan is above the makespan of plans."""
    for seed in range(shortened(20, whole=200)):
        problem = random_chain(Random(seed), sizes=(5, 3, 3), tight=False)
        assert simulate(problem, baseline_of(problem)).makespan_ns <= longest(problem)
