"""Graphs of a thousand layers and more, planned as a user would plan them."""

import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.generate import Family, make_workload
from planner.document import parse_plan
from planner.problem import Options, Problem
from planner.verify import verify
from profiles.load import load_workload
from profiles.workload import dump_workload
from tests.long_runs import long_only, shortened


def children_worked_s() -> float:
    """Processor time of the processes that have ended: what a busy machine adds is not counted."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


@long_only
@pytest.mark.parametrize(("num_layers", "num_devices"), shortened([(1000, 8)], whole=[(1000, 8), (1500, 4)]))
def test_graph_of_a_thousand_layers(tmp_path: Path, num_layers: int, num_devices: int):
    """Tests that a graph of 1,000 layers and more gets a verified plan in 20 s of every core, no baseline better."""
    family = Family(
        shape="dag", num_layers=num_layers, num_devices=num_devices, num_microbatches=16,
        memory="mid", links="two-level", speeds="classes", seed=1,
    )  # fmt: skip
    source, target = tmp_path / "workload.json", tmp_path / "plan.json"
    source.write_text(dump_workload(make_workload(family)), encoding="utf-8")
    before_s = children_worked_s()
    limits = ["--time-limit", "10", *shortened(["--threads", "1"], whole=[])]
    command = [sys.executable, "-m", "api", "plan", str(source), *limits, "-o", str(target), "--json"]
    subprocess.run(command, check=True, capture_output=True, timeout=180)
    assert children_worked_s() - before_s < 20 * len(os.sched_getaffinity(0))
    workload = load_workload(str(source))
    assert workload.cluster is not None
    assert workload.num_microbatches is not None
    problem = Problem(
        profile=workload.profile,
        cluster=workload.cluster,
        num_microbatches=workload.num_microbatches,
        options=Options(),
    )
    plan = parse_plan(target.read_text(encoding="utf-8"))
    assert verify(problem, plan).violations == ()
    assert plan.evidence is not None
    fitting = [row.makespan_ns for row in plan.evidence.baselines if row.fits_memory and row.makespan_ns is not None]
    assert plan.evidence.makespan_ns <= min(fitting, default=plan.evidence.makespan_ns)


def test_generated_workloads_are_reproducible():
    """Tests that equal families give equal documents, and that the committed ones are those of the generator."""
    from benchmarks.generate import STANDARD, parse_family

    folder = Path(__file__).parents[2] / "benchmarks" / "workloads"
    for family in map(parse_family, STANDARD):
        text = dump_workload(make_workload(family))
        assert text == dump_workload(make_workload(family))
        assert text == (folder / f"{family.name}.json").read_text(encoding="utf-8")
