"""`pipeplan advise`: tests of api/cli/advise_command.py."""

import json
from pathlib import Path

from rich.console import Console

from api.running.advising import advise_on, describe_advice, summarise_advice
from planner.documents.embedded_problem import enclosed_problem
from planner.verify import verify
from tests.planner.replanning.slowed_runs import traces
from tests.profiles.importers.test_rank_steps import chunks_and_halves


def test_chunks_and_halves_are_advised_on(tmp_path: Path):
    """Tests that of two chunks per device, I and W apart, replay, other order and dealing and a plan are told."""
    problem, plan, step = chunks_and_halves()
    for rank, (_, text) in enumerate(sorted(traces(problem, plan))):
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(json.loads(text) | {"rank": rank}))
    said = advise_on(str(tmp_path), blocks_per_stage=2, time_limit_s=0.5, console=Console(quiet=True))
    lines = describe_advice(said)
    assert lines[0].startswith(f"measured  {step.measured_ns / 1e6:,.1f} ms (median step; pipelines: 1, stages: 6); ")
    assert lines[0].endswith("(+0.00%)")
    assert sum("another order within every pipeline (list scheduling" in line for line in lines) == 1
    assert sum("whole microbatches rebalanced (orders as run" in line for line in lines) == 1
    assert not any("other orders only" in line for line in lines)
    assert said.plan is not None
    question = enclosed_problem(said.plan)
    assert question is not None
    assert verify(question, said.plan).passed
    assert len(question.cluster.devices) == 3
    assert {layer.name for layer in question.profile.layers} >= {f"block{number}" for number in range(12)}
    assert json.loads(json.dumps(summarise_advice(said)))["is_plain"] is False
