"""Families of `benchmarks.generate` as problems."""

from benchmarks.generate import Family, make_workload
from planner.problem import Options, Problem


def make_one_by_one(family: Family) -> Problem:
    """The problem of a family with one stage per device and no replicas."""
    workload = make_workload(family)
    assert workload.cluster is not None
    assert workload.num_microbatches is not None
    return Problem(
        profile=workload.profile,
        cluster=workload.cluster,
        num_microbatches=workload.num_microbatches,
        options=Options(max_replicas=1, max_stages_per_device=1),
    )
