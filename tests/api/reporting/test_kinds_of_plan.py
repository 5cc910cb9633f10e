"""The line that says why a plan is (not) a pipeline, and what is said of kinds that nobody can take."""

from dataclasses import replace
from typing import Any

import pytest

from api.reporting.kinds_of_plan import render_kinds, summarise_kinds, why_this_kind
from planner.baselines.best_of_kinds import Kind, KindResult
from planner.plan import BaselineResult, Plan
from planner.planning import Limits, make_plan
from planner.problem import GlobalBatch
from tests.api.reporting.test_screen import text_of
from tests.planner.builders import make_layer, make_link, make_problem

PROBLEM = make_problem(
    [make_layer("x", (40, 40, 40)), make_layer("y", (40, 40, 40))],
    [make_link("a b")],
    num_microbatches=4,
    microbatch_size=2,
    scaling="linear",
)

PLAN = Plan(problem=PROBLEM.reference(), stages=(), schedule={})


def found(kind: Kind, ms: int, *, peak: float = 0.5, **given: Any) -> KindResult:
    row = BaselineResult(
        name=kind, makespan_ns=ms * 10**6, span_ns=ms * 10**6 - 10**6, bubble=0.25, peak_fraction=peak,
        fits_memory=peak <= 1,
    )  # fmt: skip
    return KindResult(kind=kind, row=row, problem=PROBLEM, plan=PLAN, **given)


@pytest.mark.parametrize(
    ("ours", "others", "said"),
    [
        (
            found("data parallel at once", 10),
            [found("pipeline", 15)],
            "data parallel, no pipeline: gradients and the optimizer's step add 1.000 ms; the best pipeline found "
            "takes 15.00 ms (1.50×), idle for 25.0 % of it",
        ),
        (
            found("data parallel, accumulating", 10),
            [found("pipeline", 5, peak=2)],
            "data parallel, no pipeline: gradients and the optimizer's step add 1.000 ms; no pipeline was found that "
            "fits into memory",
        ),
        (
            found("one process", 10),
            [found("data parallel at once", 12), found("pipeline", 15)],
            "one process, no pipeline: the best use of several devices found takes 12.00 ms (1.20×)",
        ),
        (
            found("pipeline", 10),
            [found("data parallel at once", 5, peak=1.75)],
            "a pipeline: a copy of the whole model needs 1.75 × the memory of a device",
        ),
        (
            found("mixed", 10),
            [found("data parallel, accumulating", 12)],
            "a pipeline: data parallelism takes 12.00 ms (1.20×), 1.000 of them for gradients and the optimizer's step",
        ),
        (
            found("pipeline", 10),
            [found("data parallel at once", 5, breaks="leaves 1 of 2 devices idle")],
            "a pipeline: data parallelism leaves 1 of 2 devices idle",
        ),
    ],
)
def test_why_a_plan_is_a_pipeline_or_none(ours: KindResult, others: list[KindResult], said: str):
    """Tests that one line names the nearest other way to share the work, and what it costs or lacks."""
    best = {each.kind: each for each in [*others, ours]}
    assert why_this_kind(best, ours.kind) == said


def test_what_a_program_cannot_run_is_said_in_words():
    """Tests that every kind has a row, with the reason where there is none or where the target does not run it."""
    plan = make_plan(PROBLEM, limits=Limits(time_limit_s=30, max_rounds=0))
    rows = summarise_kinds(PROBLEM, plan, program="torch")
    notes = {row["kind"]: row["note"] for row in rows}
    assert notes["fully sharded"].startswith("torch cannot run it: ")
    assert notes["data parallel, accumulating"].startswith("torch cannot run it: ")
    rows = {row["kind"]: row["note"] for row in summarise_kinds(PROBLEM, plan, program="executor")}
    assert set(rows) == set(notes)
    assert rows["fully sharded"] == "excluded by an option: needs --fully-shard"
    text = "\n".join(text_of(each, width=200) for each in render_kinds(PROBLEM, plan, program="executor"))
    assert "pinned to 4 microbatches; --global-batch opens this" in text
    assert [line.split("  ")[0] for line in text.splitlines()[-7:] if line][-6:] == [
        "one process", "DDP, the batch at once", "DDP, accumulating", "FSDP2 (fully sharded)", "pipeline",
        "pipeline with replicas",
    ]  # fmt: skip


def test_a_model_pinned_to_one_microbatch_says_so():
    """Tests that where no other cut may be chosen, accumulation is not just absent."""
    batch = GlobalBatch(profile=PROBLEM.profile, global_batch_size=2, microbatch_sizes=(2,))
    pinned = replace(PROBLEM, num_microbatches=1, batch=batch)
    plan = make_plan(pinned, limits=Limits(time_limit_s=30, max_rounds=0))
    text = "\n".join(text_of(each) for each in render_kinds(pinned, plan, program="executor"))
    assert "pinned to one microbatch of 2; -b N pins another size" in text


def test_microbatches_that_differ_have_no_such_rows():
    """Tests that nothing is said where simple methods do not apply."""
    plan = make_plan(PROBLEM, limits=Limits(time_limit_s=30, max_rounds=0))
    listed = replace(PROBLEM, microbatches=(2, 2, 2, 2))
    assert list(render_kinds(listed, plan, program="executor")) == []


def test_one_process_of_unknown_threads_is_an_estimate():
    """Tests that times of one thread, taken while a host's other cores were at work, are called so, and how to know."""
    devices = tuple(replace(device, host="h") for device in PROBLEM.cluster.devices)
    cluster = replace(PROBLEM.cluster, devices=devices)
    for conditions, is_told in (("busy", True), ("alone", False)):
        problem = replace(PROBLEM, cluster=cluster, profile=replace(PROBLEM.profile, conditions=conditions))
        plan = make_plan(problem, limits=Limits(time_limit_s=30, max_rounds=0))
        notes = {row["kind"]: row["note"] for row in summarise_kinds(problem, plan, program="executor")}
        assert notes["one process"] == "one process" + is_told * (
            " of one thread, an estimate; profile --widths 1,2 measures all cores"
        )
