"""The proof that a plan brings along: derived again from the document alone, refused wherever it was tampered with."""

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import pytest

from planner.baselines.registry import Baseline, make_baselines, play_baseline
from planner.document import parse_plan, render_plan
from planner.documents import embedded_document, embedded_problem
from planner.documents.embedded_problem import enclosed_problem
from planner.documents.schema import document_schema
from planner.evidence import check_evidence
from planner.evidence.check_evidence import HISTORY, rederive
from planner.layout.costs import CostModel
from planner.plan import NO_TIME, Stage
from planner.problem import Options, Problem
from planner.progress import Limits
from planner.release import RELEASE
from planner.verify import verify
from profiles.load import load_workload
from tests.long_runs import shortened
from tests.planner.hasty import make_plan


def make_question() -> Problem:
    workload = load_workload("demo:gpt-1.5b-zero-bubble")
    assert workload.cluster is not None
    # with any number of replicas and a third stage per device the bound is one whose certificate proves its value
    # and not a nanosecond more
    options = Options(max_stages_per_device=3)
    profile = replace(workload.profile, microbatch_size=None)
    return Problem(profile=profile, cluster=workload.cluster, num_microbatches=shortened(2, whole=8), options=options)


@pytest.fixture(scope="module")
def document() -> str:
    """A plan with an open gap, as a document."""
    return render_plan(make_plan(make_question(), limits=Limits(time_limit_s=60, max_rounds=1)))


@pytest.fixture(scope="module")
def played() -> dict[str, tuple[Baseline, Any]]:
    """The baselines of the question, and what came of each."""
    problem = make_question()
    costs = CostModel(problem)
    return {each.name: (each, play_baseline(problem, each, costs=costs)) for each in make_baselines(problem, costs)}


@pytest.fixture(scope="module")
def order_bounds() -> dict[tuple[object, int | None], int]:
    """Bounds on the orders of stages of the question, by the stages and what was reached."""
    return {}


@pytest.fixture
def _played_once(
    played: dict[str, tuple[Baseline, Any]],
    order_bounds: dict[tuple[object, int | None], int],
    monkeypatch: pytest.MonkeyPatch,
):
    """Whoever asks for the baselines of the question, or for a bound on its orders once more, gets those: they are most
    of the work."""
    question, asked = make_question(), list[Problem]()

    def make(problem: Problem, costs: CostModel) -> Iterable[Baseline]:
        if problem != question:
            return make_baselines(problem, costs)
        asked.append(problem)
        return [each for each, _ in played.values()]

    def play(problem: Problem, baseline: Baseline, *, costs: CostModel) -> Any:
        is_known = any(problem is each for each in asked)
        return played[baseline.name][1] if is_known else play_baseline(problem, baseline, costs=costs)

    bound_orders = check_evidence.schedule_bound

    def bound(problem: Problem, stages: tuple[Stage, ...], *, costs: CostModel, reached: int | None = None) -> int:
        if problem != question:
            return bound_orders(problem, stages, costs=costs, reached=reached)
        key = (stages, reached)
        if key not in order_bounds:
            order_bounds[key] = bound_orders(problem, stages, costs=costs, reached=reached)
        return order_bounds[key]

    monkeypatch.setattr(check_evidence, "schedule_bound", bound)
    monkeypatch.setattr(check_evidence, "make_baselines", make)
    monkeypatch.setattr(check_evidence, "play_baseline", play)


def check(text: str) -> dict[str, tuple[Any, Any]]:
    """What the plan of a document states otherwise than it follows from the document alone: (stated, derived)."""
    plan = parse_plan(text)
    problem = enclosed_problem(plan)
    assert problem is not None
    outcome = rederive(problem, plan)
    found = {each.field: (each.stated, each.derived) for each in outcome.differences}
    found |= {each.rule: (each.actual, each.expected) for each in outcome.verdict.violations}
    assert outcome.passed == (not found)
    return found


def test_a_plan_proves_itself(document: str):
    """Tests that everything a plan states follows from its document alone, and that its schema allows the enclosure."""
    assert check(document) == {}
    plan = parse_plan(document)
    assert plan.evidence is not None
    assert plan.evidence.gap > 0
    assert enclosed_problem(plan) == make_question()
    jsonschema.validate(json.loads(document), document_schema("plan"))


Spoil = Callable[[dict[str, Any]], None]


def shift(field: str, by: float) -> Spoil:
    """Adds to a figure of the evidence."""

    def spoil(evidence: dict[str, Any]) -> None:
        evidence[field] += by

    return spoil


def put(field: str, value: object) -> Spoil:
    """Replaces a piece of the evidence."""
    return lambda evidence: evidence.update({field: value})


def claim(evidence: dict[str, Any]) -> None:
    """States a bound that equals the makespan, consistently, with a certificate that says so."""
    evidence.update(lower_bound_ns=evidence["makespan_ns"], gap=0.0, solution_status="optimal", stopped_by="proof")
    evidence["certificate"]["value_ns"] = evidence["makespan_ns"]


def raise_certificate(evidence: dict[str, Any]) -> None:
    """States a bound one nanosecond above what is proved, consistently."""
    bound = evidence["lower_bound_ns"] + 1
    makespan = evidence["makespan_ns"]
    evidence.update(lower_bound_ns=bound, gap=(makespan - bound) / makespan)
    evidence["certificate"]["value_ns"] = bound


def spoil_baseline(field: str, value: object) -> Spoil:
    def spoil(evidence: dict[str, Any]) -> None:
        row = next(row for row in evidence["baselines"] if row["makespan_ns"])
        row[field] = value

    return spoil


def cheapen(evidence: dict[str, Any]) -> None:
    """Makes the first layer of the enclosed profile slower, so that a larger bound would hold."""
    evidence["certificate"]["enclosed"]["profile"]["layers"][0]["costs"][0]["forward_ns"] *= 2


def claim_completeness(evidence: dict[str, Any]) -> None:
    """A complete search that ended below the plan."""
    evidence.update(proved_by="complete search", solution_status="optimal", solver_bound_ns=evidence["makespan_ns"] - 1)


SPOILT: dict[str, tuple[Spoil, str]] = {
    "makespan": (shift("makespan_ns", -1), "evidence-makespan"),
    "span": (shift("span_ns", 1), "evidence-span"),
    "bubble": (shift("bubble", -0.001), "evidence-bubble"),
    "peaks": (put("peak_bytes", {}), "evidence-peaks"),
    "bound too high": (shift("lower_bound_ns", 1), "lower_bound_ns"),
    "bound too low": (shift("lower_bound_ns", -1), "lower_bound_ns"),
    "bound above the plan": (shift("lower_bound_ns", 10**12), "evidence-lower-bound"),
    "kind": (put("bound_kind", "layer"), "bound_kind"),
    "gap": (shift("gap", -0.0001), "gap"),
    "optimal": (put("solution_status", "optimal"), "solution_status"),
    "proof": (put("stopped_by", "proof"), "stopped_by"),
    "proved by its certificate": (put("proved_by", "certificate"), "proved_by"),
    "proved by a search that is open": (claim_completeness, "proved_by"),
    "all of it optimal": (claim, "certificate"),
    "one nanosecond": (raise_certificate, "certificate"),
    "kind of certificate": (lambda e: e["certificate"].update(kind="path"), "certificate"),
    "no certificate": (put("certificate", {}), "certificate"),
    "certificate of another form": (put("certificate", ["work"]), "certificate"),
    "certificate of no form": (put("certificate", None), "certificate"),
    "gap of no form": (put("gap", "0"), "gap"),
    "status of no form": (put("solution_status", []), "solution_status"),
    "schedule bound": (shift("schedule_bound_ns", 1), "schedule_bound_ns"),
    "claim of a solver": (put("solver_bound_ns", 10**15), "solver_bound_ns"),
    "end by a solver without its claim": (put("stopped_by", "solver"), "solver_bound_ns"),
    "assumed": (put("assumed_divisible", [7]), "assumed_divisible"),
    "interpolated": (put("interpolated_costs", ["1 layers on A100 at width 1: scaled"]), "interpolated_costs"),
    "timings": (put("timings", {"conditions": "busy"}), "timings"),
    "buckets": (put("bucket_bytes", 2**25), "bucket_bytes"),
    "verdict": (put("verdict", {"passed": False, "violations": []}), "verdict"),
    "baseline slower": (spoil_baseline("makespan_ns", 1), "baselines.data parallel.makespan_ns"),
    "baseline misfit": (spoil_baseline("fits_memory", None), "baselines.data parallel.fits_memory"),
    "profile": (cheapen, "profile-hash"),
}


UNREADABLE = ("certificate of another form", "certificate of no form", "gap of no form", "status of no form")
"""What is refused before anything is derived."""


@pytest.mark.parametrize("name", UNREADABLE)
def test_evidence_of_no_form_is_not_read(document: str, name: str):
    """Tests that a value of a wrong type is refused where the document is read, with its place."""
    spoil, _ = SPOILT[name]
    tree = json.loads(document)
    spoil(tree["evidence"])
    with pytest.raises(ValueError, match=rf"^plan: evidence\.{name.split()[0].replace('status', 'solution_status')}"):
        parse_plan(json.dumps(tree))


@pytest.mark.usefixtures("_played_once")
@pytest.mark.parametrize("name", [name for name in SPOILT if name not in UNREADABLE])
def test_tampered_evidence_is_found(document: str, name: str):
    """Tests that every figure that can be derived is: changed in the document, it is named with both values."""
    spoil, field = SPOILT[name]
    tree = json.loads(document)
    spoil(tree["evidence"])
    plan = parse_plan(json.dumps(tree))
    problem = enclosed_problem(plan) or make_question()
    outcome = rederive(problem, plan)
    found = {each.field for each in outcome.differences} | {each.rule for each in outcome.verdict.violations}
    assert not outcome.passed
    assert any(field in name for name in found), found
    for difference in outcome.differences:
        assert difference.message.endswith(".")


def with_rows(document: str, rows: list[dict[str, Any]], **evidence: object) -> str:
    """The document with another table of baselines, and other evidence."""
    tree = json.loads(document)
    tree["evidence"] |= {"baselines": rows, **evidence}
    return json.dumps(tree)


def notes_of(text: str) -> dict[str, tuple[str, ...]]:
    """Of a plan that passes its notes, each with the baselines that it is about."""
    plan = parse_plan(text)
    problem = enclosed_problem(plan)
    assert problem is not None
    outcome = rederive(problem, plan)
    assert outcome.passed, outcome.differences
    assert outcome.bound == "derived"
    assert all(note.message.endswith(".") for note in outcome.notes)
    return {note.message.partition(":")[0]: note.names for note in outcome.notes}


EXCUSES = ({"planner_version": "0.1.9"}, {"workers": 2, "threads": 2}, {"stopped_by": "internal_error"})
"""Evidence of plans that may lack rows."""


@pytest.mark.usefixtures("_played_once")
@pytest.mark.parametrize("seed", range(5))
def test_a_table_that_lacks_rows_is_noted_or_refused(document: str, seed: int):
    """Tests that rows may be missing where another release or late workers leave them out, and that all are named."""
    rng, rows = Random(seed), json.loads(document)["evidence"]["baselines"]
    names = [row["name"] for row in rows]
    kept = rng.sample(names, rng.choice([0, 1, len(names) // 2]) if seed else 0)
    late = [name for name in names if name not in kept and rng.random() < 0.3]
    lost = {name for name in names if name not in [*kept, *late] and not name.startswith(tuple(late))}
    table = [row for row in rows if row["name"] in kept]
    table += [{"name": name, "makespan_ns": None, "note": NO_TIME} for name in late]
    for excuse in EXCUSES:
        found = notes_of(with_rows(document, table, **excuse))
        # what follows a baseline without time is without time as well
        assert {name for about, known in found.items() if "no row" in about for name in known} == lost
        assert sorted(known for about, known in found.items() if "no time" in about) == ([tuple(late)] if late else [])
    for threads in (None, 2):
        refused = check(with_rows(document, table, threads=threads)).get("baselines", ((), None))[0]
        assert set(refused) == lost


@pytest.mark.usefixtures("_played_once")
@pytest.mark.parametrize("name", ["best of all", "GPipe, the best ever", "data parallel "])
def test_rows_that_the_release_does_not_know_are_refused(document: str, name: str):
    """Tests that a row with another name is refused of this release, and of others where it fits below the bound."""
    evidence = json.loads(document)["evidence"]
    rows = [*evidence["baselines"], {**evidence["baselines"][0], "name": name}]
    assert check(with_rows(document, rows)) == {"baselines": ((name,), None)}
    for excuse in EXCUSES[1:]:
        assert (name,) in {stated for stated, _ in check(with_rows(document, rows, **excuse)).values()}
    assert (name,) in notes_of(with_rows(document, rows, planner_version="0.1.9")).values()
    bound = evidence["lower_bound_ns"]
    for reached in (1, bound - 1):
        rows[-1] |= {"makespan_ns": reached, "fits_memory": True}
        assert check(with_rows(document, rows, planner_version="0.1.9")) == {f"baselines.{name}": (reached, bound)}
    for harmless in ({"makespan_ns": bound}, {"makespan_ns": 1, "fits_memory": False}):
        assert notes_of(with_rows(document, [*rows[:-1], rows[-1] | harmless], planner_version="0.1.9"))


@pytest.mark.usefixtures("_played_once")
def test_rows_of_a_baseline_that_differ_are_refused(document: str):
    """Tests that no row hides another one with its name, of any release; the same row again is none."""
    rows = json.loads(document)["evidence"]["baselines"]
    for version in (RELEASE, "0.1.9"):
        found = check(with_rows(document, [{**rows[0], "makespan_ns": 1}, *rows], planner_version=version))
        assert found == {"baselines": ((rows[0]["name"],), None)}
        late = {"name": rows[0]["name"], "makespan_ns": None, "note": NO_TIME}
        assert check(with_rows(document, [rows[0], *rows, late], planner_version=version)) == {}
    fake = [{**rows[0], "makespan_ns": 1}, *rows[1:], late]
    assert f"baselines.{rows[0]['name']}.makespan_ns" in check(with_rows(document, fake))


@pytest.mark.usefixtures("_played_once")
def test_a_row_of_another_release_stays_above_the_bound(document: str):
    """Tests that what a known baseline is said to have done elsewhere may differ, but not break the bound."""
    evidence = json.loads(document)["evidence"]
    rows, name = evidence["baselines"], evidence["baselines"][0]["name"]
    rows[0] |= {"makespan_ns": evidence["lower_bound_ns"] - 1, "fits_memory": True}
    found = check(with_rows(document, rows, planner_version="0.1.9"))
    assert found == {f"baselines.{name}": (evidence["lower_bound_ns"] - 1, evidence["lower_bound_ns"])}


@pytest.mark.usefixtures("_played_once")
def test_the_summary_says_which_rows_were_computed(document: str):
    """Tests that what was not played again, or does otherwise here, is counted and named."""
    rows = json.loads(document)["evidence"]["baselines"]
    plan = parse_plan(with_rows(document, [*rows[1:], {**rows[0], "name": "x"}], planner_version="0.1.9"))
    outcome = rederive(make_question(), plan)
    assert (outcome.num_computed, outcome.unchecked) == (len(rows) - 1, (rows[0]["name"], "x"))
    outcome = rederive(make_question(), plan, with_baselines=False)
    assert (outcome.num_computed, len(outcome.unchecked)) == (0, len(rows))
    outcome = rederive(make_question(), parse_plan(document))
    assert (outcome.num_computed, outcome.unchecked) == (len(rows), ())


@pytest.mark.usefixtures("_played_once")
def test_baselines_that_no_clock_kept_away_were_incumbents(document: str, monkeypatch: pytest.MonkeyPatch):
    """Tests that a faster baseline without a row is a fault where all were played, and else a note."""
    rows = json.loads(document)["evidence"]["baselines"]
    played = check_evidence.play_baseline

    def faster(*asked: Any, **how: Any) -> Any:
        row, made = played(*asked, **how)
        return (replace(row, makespan_ns=1), made) if row.name == "data parallel" else (row, made)

    monkeypatch.setattr(check_evidence, "play_baseline", faster)
    assert "baselines" in check(with_rows(document, rows[1:], workers=2))
    for evidence in EXCUSES[:2]:
        assert ("data parallel",) in notes_of(with_rows(document, rows[1:], **evidence)).values()


@pytest.mark.usefixtures("_played_once")
def test_plans_of_another_release_may_say_other_things(document: str):
    """Tests that a row that another release played otherwise is noted, and an order bound that got closer since."""
    evidence = json.loads(document)["evidence"]
    rows = [{**row, "makespan_ns": row["makespan_ns"] + 1} if not number else row
            for number, row in enumerate(evidence["baselines"])]  # fmt: skip
    assert check(with_rows(document, rows))
    assert (rows[0]["name"],) in notes_of(with_rows(document, rows, planner_version="0.1.9")).values()
    lower = with_rows(document, evidence["baselines"], schedule_bound_ns=evidence["lower_bound_ns"])
    assert any("No order of these stages" in about for about in notes_of(lower))
    higher = with_rows(document, evidence["baselines"], schedule_bound_ns=evidence["makespan_ns"] + 1)
    assert "schedule_bound_ns" in check(higher)


@pytest.mark.usefixtures("_played_once")
def test_a_certificate_of_an_unknown_kind_is_another_releases(document: str):
    """Tests that a kind that this release does not know is not rechecked if another release wrote it, else rejected."""
    tree = json.loads(document)
    certificate = tree["evidence"]["certificate"]
    tree["evidence"] |= {"bound_kind": "oracle", "planner_version": "99.0"}
    tree["evidence"]["certificate"] = {
        "kind": "oracle", "value_ns": certificate["value_ns"], "enclosed": certificate["enclosed"]
    }  # fmt: skip
    plan = parse_plan(json.dumps(tree))
    outcome = rederive(make_question(), plan)
    assert (outcome.passed, outcome.bound, outcome.lower_bound_ns) == (True, "not rechecked", None) or (
        outcome.bound == "derived"
    )
    tree["evidence"]["planner_version"] = RELEASE
    assert "certificate" in check(json.dumps(tree))


def test_parameters_that_are_no_more_are_kept(document: str):
    """Tests that what steered the search of an older release is read, kept and passed, whatever it was called."""
    params = {"multistart.round_ticks": 4, "gone.since_then": [1, [2, None]], "order_search.gone": None, "gone.v2": 0.5}
    tree = json.loads(document)
    tree["evidence"]["search_params"] = params
    plan = parse_plan(json.dumps(tree))
    assert plan.evidence is not None
    assert plan.evidence.search_params == params
    assert json.loads(render_plan(plan))["evidence"]["search_params"] == params
    assert verify(make_question(), plan).passed
    jsonschema.validate(tree, document_schema("plan"))
    for wrong in ({"no group": 1}, {"a.b": "text"}, {"a.b": []}):
        tree["evidence"]["search_params"] = wrong
        with pytest.raises(ValueError, match="search_params"):
            parse_plan(json.dumps(tree))


@pytest.mark.usefixtures("_played_once")
def test_weights_of_a_dual_are_checked(document: str):
    """Tests that the dual numbers of a certificate decide: other numbers prove another value, or none."""
    tree = json.loads(document)
    certificate = tree["evidence"]["certificate"]
    weights = certificate["price"]["weights"] if certificate["kind"] == "pipeline" else certificate["weights"]
    weights.update(dict.fromkeys(weights, -1))
    assert "certificate" in check(json.dumps(tree))


def test_every_field_is_derived_or_history(document: str):
    """Tests that no field of the evidence is neither derived, tampered with above, nor declared history."""
    checked = {
        *("makespan_ns", "span_ns", "bubble", "peak_bytes", "lower_bound_ns", "bound_kind", "certificate", "gap"),
        *("schedule_bound_ns", "solution_status", "stopped_by", "baselines", "interpolated_costs", "verdict"),
        "proved_by",
        "assumed_divisible",
        "timings",
    }
    assert set(json.loads(document)["evidence"]) | {
        "proved_by",
        "search_params",
        "workers",
        "worker_tasks",
    } == checked | set(HISTORY)


@pytest.mark.usefixtures("_played_once")
def test_a_long_question_is_deflated(document: str, monkeypatch: pytest.MonkeyPatch):
    """Tests that a question above the limit is enclosed deflated, is the same, and that a broken stream is refused."""
    monkeypatch.setattr(embedded_problem, "MAX_PLAIN", 1000)
    plan = parse_plan(document)
    assert plan.evidence is not None
    kept = {key: value for key, value in plan.evidence.certificate.items() if key != embedded_problem.KEY}

    def with_enclosure(answer: dict[str, Any]) -> str:
        assert plan.evidence is not None
        return render_plan(replace(plan, evidence=replace(plan.evidence, certificate=kept | answer)))

    text = with_enclosure(embedded_problem.enclose(make_question()))
    assert len(text) < len(document)
    assert check(text) == {}
    for broken in (
        "",
        "AAAA",
        "é",
        None,
        embedded_problem.enclose(make_question())[embedded_problem.KEY]["deflated"][:100],
    ):
        with pytest.raises(ValueError, match=r"certificate\.enclosed"):
            enclosed_problem(parse_plan(with_enclosure({embedded_problem.KEY: {"deflated": broken}})))
    monkeypatch.setattr(embedded_document, "MAX_INFLATED", 100)
    with pytest.raises(ValueError, match="too large"):
        enclosed_problem(parse_plan(text))


def test_no_solver_is_loaded(document: str, tmp_path: Path, repository_root: Path):
    """Tests that `verify --certificate PLAN` loads no solver, and needs nothing but the plan."""
    (tmp_path / "plan.json").write_text(document, encoding="utf-8")
    code = (
        "import sys\nfrom api.cli import main\n"
        f"code = main(['verify', '--certificate', {str(tmp_path / 'plan.json')!r}])\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'ortools', 'pulp', 'highspy'}, loaded\n"
        "sys.exit(code)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=repository_root, capture_output=True, text=True, timeout=120
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "computed again, equal" in " ".join(done.stdout.split())
