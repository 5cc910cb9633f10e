"""A global batch: which sizes of microbatches there are, what they cost, and the best plan over all of them."""

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from random import Random
from typing import Any

import pytest

from planner.batch_problem import BatchProblem, problem_for, question_of_workload, workload_of_question
from planner.document import parse_plan, render_plan
from planner.documents.embedded_problem import enclosed_problem
from planner.errors import InfeasibleProblemError
from planner.evidence.certificate import check_certificate
from planner.evidence.check_evidence import rederive
from planner.export.megatron import make_megatron_job, render_megatron
from planner.export.targets import TARGETS, restrict_question
from planner.judge.batch import profile_run
from planner.layout.costs import CostModel
from planner.plan import Plan, SizeResult
from planner.plan_kind import describe_kind, differences, kind_of
from planner.planning import Limits
from planner.problem import Options
from planner.verify import verify
from profiles.cluster import Cluster, Device, Link
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile
from tests.long_runs import shortened
from tests.planner.hasty import make_plan, make_plans

ROUND = Limits(time_limit_s=120, max_rounds=2)


def make_layer(name: str, times: dict[int | None, int], **fields: Any) -> Layer:
    """A layer whose F, I and W take so many nanoseconds each at so many samples."""
    costs = tuple(
        LayerCost(device_type="gpu", microbatch_size=size, forward_ns=t, input_grad_ns=t, weight_grad_ns=t)
        for size, t in times.items()
    )
    return Layer(**{"name": name, "costs": costs, "parameter_bytes": 4, "state_bytes": 10, "stash_bytes": 8} | fields)


def make_batch(
    layers: list[Layer],
    *,
    global_batch_size: int = 8,
    microbatch_sizes: tuple[int, ...] | None = None,
    memory_bytes: int = 1000,
    own: int | None = 4,
    scaling: Any = "measured",
    **options: Any,
) -> BatchProblem:
    """A chain on two devices."""
    edges = tuple(Edge(producer=a.name, consumer=b.name, bytes=5) for a, b in pairwise(layers))
    return BatchProblem(
        profile=ModelProfile(
            name="p", layers=tuple(layers), edges=edges, microbatch_size=own, scaling=scaling, optimizer_ns=3
        ),
        cluster=Cluster(
            name="c",
            devices=tuple(Device(name=name, type="gpu", memory_bytes=memory_bytes) for name in "ab"),
            links=(Link(a="a", b="b", bandwidth_bytes_per_s=10**9),),
        ),
        global_batch_size=global_batch_size,
        microbatch_sizes=microbatch_sizes,
        options=Options(**{"receive_buffers": 1, **options}),
    )


STEPS = {1: 10, 2: 14, 4: 24}
"""Larger microbatches cost less per sample."""


def two_layers(times: dict[int | None, int] = STEPS, **fields: Any) -> list[Layer]:  # type: ignore[assignment]
    return [make_layer("x", times, **fields), make_layer("y", times, **fields)]


def rows_of(plan: Plan) -> dict[int, SizeResult]:
    assert plan.evidence is not None
    return {row.microbatch_size: row for row in plan.evidence.sizes}


def test_every_measured_size_that_divides_is_a_candidate():
    """Tests that sizes come from the measurements, that others are left out, and that number and size are the batch."""
    question = make_batch(two_layers(), global_batch_size=12)
    assert question.sizes == (1, 2, 4)
    assert [(p.profile.microbatch_size, p.num_microbatches) for p in question.candidates] == [(1, 12), (2, 6), (4, 3)]
    assert make_batch(two_layers(), global_batch_size=6).sizes == (1, 2)
    assert make_batch(two_layers(), global_batch_size=8, microbatch_sizes=(4, 2)).sizes == (2, 4)
    assert make_batch(two_layers(), global_batch_size=9, microbatch_sizes=(3,)).sizes == (3,)


def test_a_size_that_one_layer_lacks_is_interpolated_or_left_out():
    """Tests that a size counts where every layer has a cost for it: measured, or between two measured sizes."""
    between, beyond = make_layer("y", {1: 5, 4: 20}), make_layer("y", {1: 5, 2: 8})
    assert make_batch([make_layer("x", STEPS), between]).sizes == (1, 2, 4)
    assert make_batch([make_layer("x", STEPS), beyond]).sizes == (1, 2)
    assert make_batch([make_layer("x", STEPS), beyond], scaling="linear").sizes == (1, 2, 4)


def test_replicas_of_a_given_placement_have_whole_samples():
    """Tests that a size which the given replicas cannot share is left out, or refused where it was asked for."""
    given = {"partition": (("x",), ("y",)), "placement": ((("a",),), (("a",), ("b",)))}
    assert make_batch(two_layers(), **given).sizes == (2, 4)
    with pytest.raises(ValueError, match=r"placement gives stage 1 2 replicas.*microbatch_size = 1 samples"):
        make_batch(two_layers(), microbatch_sizes=(1, 2), **given)


REFUSED: dict[str, tuple[Callable[[], BatchProblem], str]] = {
    "no divisor": (
        lambda: make_batch(two_layers({2: 5, 4: 9}), global_batch_size=7),
        r"global_batch_size = 7 is not a multiple of any measured microbatch size \(measured on all devices: 2, 4\)",
    ),
    "indivisible": (lambda: make_batch(two_layers(), microbatch_sizes=(3,)), "names 3, which does not divide"),
    "unmeasured": (
        lambda: make_batch(two_layers(), microbatch_sizes=(8,)),
        "names 8, but layer 'x' was measured on 'gpu' at 1, 2, 4 only; leave it out, measure it",
    ),
    "unknown size": (lambda: make_batch(two_layers({None: 5}), own=None), "needs a profile that states its microbatch"),
    "no sizes": (lambda: make_batch(two_layers(), microbatch_sizes=()), "has 0 entries; give 1 to 64"),
    "twice": (lambda: make_batch(two_layers(), microbatch_sizes=(2, 2)), "size '2' occurs twice"),
    "no number": (lambda: make_batch(two_layers(), microbatch_sizes=(0,)), "microbatch_sizes = 0 is out of range"),
    "no batch": (lambda: make_batch(two_layers(), global_batch_size=0), "global_batch_size = 0 is out of range"),
    "too many actions": (
        lambda: make_batch(two_layers(), global_batch_size=2**20),
        "num_microbatches = 1048576 needs",
    ),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_cut_is_refused(what: str):
    """Tests that field, value and remedy are named."""
    make, message = REFUSED[what]
    with pytest.raises(ValueError, match=message):
        make()


def test_another_size_than_the_candidates_is_refused():
    """Tests that a problem is made at candidates only, and that a problem's microbatches must be its batch."""
    question = make_batch(two_layers())
    with pytest.raises(ValueError, match="microbatch_size = 8 is none of 1, 2, 4"):
        question.at(8)
    with pytest.raises(ValueError, match="3 microbatches of 2 samples are not global_batch_size = 8"):
        replace(question.at(2), num_microbatches=3)
    with pytest.raises(ValueError, match=r"microbatch_size is missing"):
        problem_for(question, Plan(problem=question.at(2).at_its_size().reference(), stages=(), schedule={}))


def test_scaling_that_was_not_stated_stays_what_it_meant():
    """Tests that a profile of one size scales linearly at another, and one of several sizes does not."""
    once = make_batch(two_layers({None: 9}), scaling=None, microbatch_sizes=(2, 4))
    assert once.at(2).profile.scaling == "linear"
    assert CostModel(once.at(2)).layer_work("x", "gpu", width=1, replicas=1).forward_ns == 5  # type: ignore[union-attr]
    assert make_batch(two_layers(), scaling=None).at(2).profile.scaling == "measured"


@pytest.mark.parametrize("seed", range(30))
def test_the_judge_reads_the_same_profile_on_its_own(seed: int):
    """Tests that the judge's reading of a profile at another size is the core's, for every size."""
    question = random_batch(Random(seed))
    for problem in question.candidates:
        plan = Plan(problem=problem.reference(), stages=(), schedule={})
        assert profile_run(problem, plan) == problem.profile
    assert profile_run(problem.at_its_size(), plan) is problem.profile


def test_a_workload_states_the_question():
    """Tests that a workload with a global batch and its question are each other's inverse."""
    question = make_batch(two_layers(), microbatch_sizes=(1, 2))
    workload = workload_of_question(question)
    assert question_of_workload(workload, question.options) == question
    assert workload_of_question(question.at(2)) == workload
    plain = question.at(2).at_its_size()
    assert question_of_workload(workload_of_question(plain), plain.options) == plain


def random_batch(rng: Random) -> BatchProblem:
    """One to three layers measured at two or three sizes, a batch of two or four samples, at times little memory."""
    sizes: list[int | None] = [1, 2, *([4] if rng.random() < 0.5 else [])]  # type: ignore[list-item]
    layers = []
    for number in range(rng.randint(1, 3)):
        first, step = rng.randint(1, 6), rng.randint(1, 4)
        times = {size: first + step * (size or 1) for size in sizes}
        layers.append(make_layer(f"l{number}", times, stash_bytes=rng.randint(0, 9), workspace_bytes=rng.randint(0, 3)))
    own = rng.choice([1, 2])
    return make_batch(
        layers,
        own=own,
        global_batch_size=rng.choice([2, 2, 4]) if len(layers) < 3 else 2,
        memory_bytes=rng.choice([1000, 1000, rng.randint(15, 60)]),
        max_stages_per_device=1,
        max_replicas=rng.choice([1, None]),
    )


def assert_proved(question: BatchProblem, plan: Plan) -> None:
    """The plan passes judge and certificate, as read from its document alone, and is no worse than any baseline."""
    evidence = plan.evidence
    assert evidence is not None
    assert [row.microbatch_size for row in evidence.sizes] == list(question.sizes)
    problem = problem_for(question, plan)
    read = parse_plan(render_plan(plan))
    assert read == plan
    assert enclosed_problem(read) == problem
    outcome = rederive(problem, read)
    assert (outcome.passed, outcome.differences, outcome.verdict.violations) == (True, (), ())
    for row in evidence.sizes:
        assert row.baseline_ns is None or row.baseline_ns >= evidence.makespan_ns
        assert row.objective_ns is None or row.objective_ns >= evidence.makespan_ns


@pytest.mark.slow
@pytest.mark.parametrize("seed", shortened(range(2, 6), whole=range(16)))
def test_the_plan_is_the_best_of_all_sizes(seed: int):
    """Tests that the optimum is found and proved, as trying every plan of every size shows; no bound is above it."""
    from tests.planner.brute_force import brute_force

    question = random_batch(Random(seed))
    best = {p.profile.microbatch_size: brute_force(p.at_its_size()) for p in question.candidates}
    known = [value for value in best.values() if value is not None]
    if not known:
        with pytest.raises(InfeasibleProblemError):
            make_plan(question, limits=replace(ROUND, max_rounds=8))
        return
    plan = make_plan(question, limits=replace(ROUND, max_rounds=8))
    assert_proved(question, plan)
    assert plan.evidence is not None
    assert (plan.evidence.makespan_ns, plan.evidence.proved_by is not None) == (min(known), True)
    for size, row in rows_of(plan).items():
        exact = best[size]
        assert exact is None or row.lower_bound_ns is None or row.lower_bound_ns <= exact
        assert exact is None or row.state != "infeasible"
        assert row.objective_ns is None or (exact is not None and row.objective_ns >= exact)


def test_kinds_over_all_sizes():
    """Tests that plans of other kinds come from every size, each with its size and true words of the others."""
    question = make_batch([make_layer(name, STEPS) for name in "xyz"])
    limits = Limits(time_limit_s=60, max_rounds=1)
    best, *others = make_plans(question, top=6, limits=limits)
    assert best == make_plans(question, top=1, limits=limits)[0]
    assert len({kind_of(plan) for plan in (best, *others)}) == 6
    assert len({plan.problem.microbatch_size for plan in (best, *others)}) > 1
    times = [plan.evidence.makespan_ns for plan in (best, *others)]
    assert times == sorted(times)
    for plan in others:
        outcome = rederive(problem_for(question, plan), parse_plan(render_plan(plan)))
        assert (outcome.passed, outcome.differences) == (True, ())
        size, rows = plan.problem.microbatch_size, rows_of(plan)
        assert (rows[size].state, rows[size].objective_ns) == ("best", plan.evidence.makespan_ns)
        assert f"microbatches of {size}, " in describe_kind(kind_of(plan))
    slower = next(plan for plan in others if plan.problem.microbatch_size != best.problem.microbatch_size)
    size = best.problem.microbatch_size
    assert (rows_of(slower)[size].state, rows_of(slower)[size].objective_ns) == ("better", times[0])
    said = next(differences(kind_of(best), kind_of(slower)))
    assert said == f"microbatches of {slower.problem.microbatch_size}"


@pytest.mark.slow
def test_larger_microbatches_win_until_memory_forbids_them():
    """Tests that the size is decided by costs and memory, and that sizes that cannot fit say why."""
    ample, less = make_batch(two_layers()), make_batch(two_layers(), memory_bytes=23)
    assert [make_plan(each, limits=ROUND).problem.microbatch_size for each in (ample, less)] == [4, 2]
    plan = make_plan(make_batch(two_layers(), memory_bytes=13, receive_buffers=0), limits=ROUND)
    assert plan.problem.microbatch_size == 1
    rows = rows_of(plan)
    assert rows[4].state == "infeasible"
    assert "needs 14 bytes on a device" in rows[4].note
    with pytest.raises(InfeasibleProblemError, match=r"no plan fits at any size\. microbatches of 1: "):
        make_plan(make_batch(two_layers(), memory_bytes=9), limits=ROUND)


@pytest.fixture(scope="module")
def made() -> tuple[BatchProblem, Plan]:
    """Seven unlike layers in little memory: of three sizes one is chosen, one closed, and one left open."""
    layers = [
        make_layer(f"l{i}", {1: 30 + 5 * i % 9, 2: 59 + 10 * i % 18, 4: 116 + 20 * i % 36}, weight_stash_bytes=2)
        for i in range(7)
    ]
    question = make_batch(layers, global_batch_size=16, memory_bytes=90, max_replicas=1)
    return question, make_plan(question, limits=ROUND)


@pytest.mark.slow
def test_a_plan_is_proved_and_repeated(made: tuple[BatchProblem, Plan]):
    """Tests that plan and certificate hold, the same seed gives the same document, and rounds go to the best size."""
    question, plan = made
    assert_proved(question, plan)
    assert render_plan(make_plan(question, limits=ROUND)) == render_plan(plan)
    rows = rows_of(plan)
    assert {row.seconds for row in rows.values()} == {None}
    assert max(row.rounds for row in rows.values()) == ROUND.max_rounds
    assert [row.state for row in rows.values()] == ["closed", "best", "closed"]
    assert "" not in {row.baseline for row in rows.values()}


@pytest.mark.slow
def test_the_time_is_dealt(made: tuple[BatchProblem, Plan]):
    """Tests that a time limit holds for all sizes together, and that what was said on the way was true."""
    question, _ = made
    heard = []
    plan = make_plan(question, limits=Limits(time_limit_s=2, threads=1), on_progress=heard.append)
    assert_proved(question, plan)
    rows = rows_of(plan)
    assert all(row.seconds for row in rows.values())
    assert sum(row.seconds or 0 for row in rows.values()) < 9
    bounds = [each.lower_bound_ns for each in heard if each.lower_bound_ns is not None]
    assert plan.evidence is not None
    assert bounds[-1] == plan.evidence.lower_bound_ns
    incumbents = [each.incumbent_ns for each in heard if each.incumbent_ns is not None]
    assert incumbents == sorted(incumbents, reverse=True)
    assert incumbents[-1] == plan.evidence.makespan_ns


@pytest.mark.slow
def test_a_run_that_is_stopped_gives_its_best_plan(made: tuple[BatchProblem, Plan]):
    """Tests that a stop before the search leaves a plan that is proved like any other."""
    question, _ = made
    plan = make_plan(question, limits=Limits(time_limit_s=60), should_stop=lambda: True)
    assert_proved(question, plan)
    assert plan.evidence is not None
    assert plan.evidence.stopped_by == "user"


Spoil = Callable[[dict[str, Any]], None]

SPOILED: dict[str, tuple[Spoil, str]] = {
    "a size left out": (lambda c: c["sizes"].pop(), "it has entries for"),
    "a size twice": (lambda c: c["sizes"].append(c["sizes"][0]), "it has entries for"),
    "a larger bound": (lambda c: c.update(value_ns=c["value_ns"] + 1), "but proves"),
    "one entry larger": (
        lambda c: min(c["sizes"], key=lambda row: row["certificate"]["value_ns"])["certificate"].update(
            value_ns=c["value_ns"] + 10**9
        ),
        "certificate: it ",
    ),
    "called infeasible": (
        lambda c: c["sizes"].__setitem__(0, {"microbatch_size": 1, "infeasible": "no room"}),
        "has neither a bound nor",
    ),
    "of one size only": (lambda c: c.update(c.pop("sizes")[0]["certificate"]), "needs one of kind 'sizes'"),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", SPOILED)
def test_a_certificate_that_was_tampered_with_is_refused(what: str, made: tuple[BatchProblem, Plan]):
    """Tests that every size needs an entry that proves what it states."""
    from copy import deepcopy

    question, plan = made
    assert plan.evidence is not None
    certificate: dict[str, Any] = deepcopy(dict(plan.evidence.certificate))
    assert check_certificate(problem_for(question, plan), certificate) == plan.evidence.lower_bound_ns
    spoil, message = SPOILED[what]
    spoil(certificate)
    with pytest.raises(ValueError, match=message):
        check_certificate(problem_for(question, plan), certificate)


@pytest.mark.slow
def test_rows_that_were_tampered_with_are_told(made: tuple[BatchProblem, Plan]):
    """Tests that bounds, states and objectives of the sizes are held against certificate and plan."""
    question, plan = made
    assert plan.evidence is not None
    problem, evidence = problem_for(question, plan), plan.evidence
    other = next(row for row in evidence.sizes if row.state != "best")

    def told(row: SizeResult) -> set[str]:
        rows = tuple(row if each.microbatch_size == row.microbatch_size else each for each in evidence.sizes)
        spoiled = replace(plan, evidence=replace(evidence, sizes=rows))
        outcome = rederive(problem, spoiled, with_baselines=False)
        return {each.field.rpartition(".")[2] for each in outcome.differences}

    assert told(other) == set()
    assert told(replace(other, lower_bound_ns=1)) >= {"lower_bound_ns"}
    assert told(replace(other, state="infeasible")) == {"state"}
    assert told(replace(other, objective_ns=1)) == {"objective_ns", "state"}
    assert told(replace(other, objective_ns=1, state="better")) == {"objective_ns"}
    assert told(replace(other, num_microbatches=1)) == {"num_microbatches"}
    bare = replace(plan, evidence=replace(evidence, sizes=()))
    assert {each.field for each in rederive(problem, bare, with_baselines=False).differences} == {
        "sizes.lower_bound_ns"
    }


@pytest.mark.slow
def test_a_looped_program_gets_a_plan_of_its_own():
    """Tests that a global batch is planned for Megatron, whose flags then say batch and microbatches as decided."""
    question = make_batch([make_layer(f"l{i}", {1: 9, 2: 15, 4: 27}) for i in range(4)], own=2)
    program = TARGETS["megatron"]
    plan = make_plan(restrict_question(question, program), limits=ROUND, target=program)
    problem = problem_for(restrict_question(question, program), plan)
    assert verify(problem, plan).passed
    replicas = len(plan.stages[0].replicas)
    assert plan.problem.microbatch_size is not None
    text = render_megatron(make_megatron_job(problem, plan))
    assert "--global-batch-size 8" in text
    assert f"--micro-batch-size {plan.problem.microbatch_size // replicas}" in text
