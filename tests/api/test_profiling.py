"""A profile that does not agree with a short run of its own is taken again."""

import io
import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest
from rich.console import Console

from api import profiling
from api.profiling import (
    WIDE,
    ProfilingReporter,
    _leave_sizes_open,
    _measure_again_where_wide,
    _ProfilingRun,
    _told_cut,
    _told_sizes,
)
from profiles.measure.record import Journal
from profiles.model_profile import ProbeRun
from profiles.workload import Workload
from tests.api.worlds import Shell
from tests.planner.builders import make_layer, make_link, make_problem

FIRST = Journal()


def workload_of(error: float | None) -> Workload:
    """A workload whose figures are so far from a short run; None: there was no run."""
    problem = make_problem([make_layer("x")], [make_link("a b")])
    probe = None if error is None else ProbeRun(predicted_ns=round(1_000_000 * (1 + error)), measured_ns=1_000_000)
    return Workload(profile=replace(problem.profile, probe=probe), cluster=problem.cluster, num_microbatches=1)


def measure(errors: list[float | None], *, attempts: int = 3) -> tuple[Workload, list[Journal], str]:
    """What is kept of attempts that are so far off, which journals they had, and what was said."""
    journals: list[Journal] = []

    def attempt(journal: Journal) -> Any:
        journals.append(journal)
        return f"findings {len(journals)}", workload_of(errors[len(journals) - 1])

    screen = io.StringIO()
    with ProfilingReporter(Console(file=screen, width=200), "lines") as telling:
        findings, workload = _measure_again_where_wide(attempt, FIRST, attempts=attempts, reporter=telling)
    kept = int(cast(str, findings).removeprefix("findings ")) - 1
    assert workload.profile.probe == workload_of(errors[kept]).profile.probe
    return workload, journals, screen.getvalue()


@pytest.mark.parametrize("error", [None, 0.0, WIDE - 0.001, -0.09])
def test_what_agrees_is_taken_once(error: float | None):
    """Tests that figures close to their short run, or without one, are as they were measured first."""
    workload, journals, said = measure([error])
    assert journals == [FIRST]
    assert journals[0] is FIRST
    assert not said
    assert "Timed" not in workload.profile.provenance


def test_what_disagrees_is_timed_again():
    """Tests that all is timed anew, from no journal, until a run agrees, and that screen and profile say so."""
    workload, journals, said = measure([0.62, 0.04, 0.0])
    assert len(journals) == 2
    assert journals[0] is FIRST
    assert journals[1] is not FIRST
    assert workload.profile.probe is not None
    assert workload.profile.probe.error == pytest.approx(0.04)
    assert said == "timed again: a short run and these figures are 62 % apart\n"
    assert "Timed 2 times" in workload.profile.provenance


@pytest.mark.parametrize(("attempts", "expected"), [(1, 0.62), (2, -0.3), (3, -0.3), (4, 0.2)])
def test_the_closest_is_kept(attempts: int, expected: float):
    """Tests that after as many attempts as are wanted the one counts that is closest to its run, whichever it was."""
    workload, journals, _ = measure([0.62, -0.3, 0.5, 0.2], attempts=attempts)
    assert len(journals) == attempts
    assert workload.profile.probe is not None
    assert workload.profile.probe.error == pytest.approx(expected)


@pytest.mark.parametrize(
    ("attempts", "remedy"), [(0, "greater than or equal to 1"), (101, "less than or equal to 100")]
)
def test_numbers_of_attempts_that_make_no_sense(shell: Shell, attempts: int, remedy: str):
    """Tests that they are refused with the option and the remedy."""
    outcome = shell.run("profile", "gpt", "--attempts", str(attempts))
    assert outcome.code == 2
    assert f"'--attempts': Input should be {remedy}" in outcome.err


@pytest.mark.parametrize(
    ("found", "sizes", "note"),
    [
        ({}, None, ""),
        ({"batch_norm": "BatchNorm2d"}, (8,), "Pinned to one microbatch of 8: BatchNorm2d takes statistics"),
        ({"uneven_loss": True}, (8,), "of 8: its loss is no mean of samples; plan -b N"),
        ({"cut_dependence": "layer 'a' remembers microbatches"}, (8,), "of 8: layer 'a' remembers microbatches; plan"),
    ],
)
def test_a_batch_stays_whole_where_its_cut_matters(found: dict[str, str], sizes: tuple[int, ...] | None, note: str):
    """Tests that the sizes are open unless a layer's results depend on them, and that the profile says why not."""
    given = {"batch_norm": "", "cut_dependence": "", "uneven_loss": False, "interpolated": (), "off_line": 0.0} | found
    findings: Any = SimpleNamespace(survey=SimpleNamespace(microbatch_sizes=(4, 2, 8)), **given)
    problem = make_problem([make_layer("a")], [make_link("a b")])
    workload = Workload(profile=replace(problem.profile, microbatch_size=4), num_microbatches=2)
    opened = _leave_sizes_open(workload, findings, sizes=(8, 4, 2))
    assert (opened.global_batch_size, opened.microbatch_sizes) == (8, sizes)
    assert note in (opened.profile.provenance or "")
    assert _told_sizes(opened) == f"{8 if sizes else 4} (costs at 4; global batch of 8)"


@pytest.mark.parametrize("count", [None, 4])
def test_a_loss_that_is_no_mean_is_told_however_the_batch_is_cut(monkeypatch: pytest.MonkeyPatch, count: int | None):
    """Tests that a pinned number of microbatches is told to train as one process that adds up, and gets no replicas."""
    found = {"batch_norm": "", "cut_dependence": "", "uneven_loss": True, "conditions": "alone"}
    findings: Any = SimpleNamespace(
        **found, survey=SimpleNamespace(dtype=None, sheet=None), takes={}, records={}, machine="", tied=()
    )
    problem = make_problem([make_layer("a")], [make_link("a b")])
    monkeypatch.setattr("profiles.measure.assemble.make_profile", lambda *_, **__: problem.profile)
    loaded = SimpleNamespace(kind="training", model=SimpleNamespace(not_compared=()))
    run: Any = SimpleNamespace(
        wanted=SimpleNamespace(model="m:f", no_split=False), loaded=loaded, num_microbatches=count
    )
    made = _ProfilingRun.assemble(run, findings, cluster=None)
    assert made.options["max_replicas"] == 1
    (told,) = _told_cut(made.profile.provenance)
    assert told.startswith(
        "  no replicas: the loss of several samples is no mean of theirs, so microbatches train as one"
    )
    assert told.endswith("count its tokens (loss_is_sum, num_tokens)")


@pytest.mark.parametrize("is_long", [True, False])
def test_a_model_that_loads_for_long_is_told(is_long: bool, monkeypatch: pytest.MonkeyPatch):
    """Tests that only a load that goes on for longer than a limit is told, and then its end as well."""
    monkeypatch.setattr(profiling, "_LONG_S", 0.0 if is_long else 1e6)
    heard, is_heard = list[tuple[Any, ...]](), threading.Event()

    def hear(what: str, done: int, *, total: int, label: str) -> None:
        heard.append((what, done, total, label))
        is_heard.set()

    reporter = cast(ProfilingReporter, SimpleNamespace(hear=hear))
    with profiling._telling_if_long(reporter, "loading the model", label="a:b"):
        assert is_heard.wait(60 if is_long else 0) is is_long
    assert heard == ([("loading the model", done, 1, "a:b") for done in (0, 1)] if is_long else [])
