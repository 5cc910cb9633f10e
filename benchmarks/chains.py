"""What the tables on random chains share: their switches, their families, and the problem that each family poses."""

import argparse
from collections.abc import Iterable
from itertools import product

from benchmarks.generate import Family, Links, Memory, Speeds, make_workload
from benchmarks.report import make_parser
from planner.problem import Options, Problem

Condition = tuple[Memory, tuple[Links, Speeds]]
"""Memory, links and speeds."""


def parse_wishes(description: str | None, *, time_limit: float, what: str) -> argparse.Namespace:
    """The switches; `what` gets so many seconds where nothing else is said."""
    parser = make_parser(description)
    parser.add_argument("--time-limit", type=float, default=time_limit, help=f"seconds for {what}")
    return parser.parse_args()


def make_chains(sizes: Iterable[tuple[int, int]], conditions: Iterable[Condition]) -> list[Family]:
    """Chains in every size (layers and devices) under every condition; twice as many microbatches as devices."""
    return [
        Family(
            shape="chain",
            num_layers=num_layers,
            num_devices=num_devices,
            num_microbatches=2 * num_devices,
            memory=memory,
            links=links,
            speeds=speeds,
        )
        for (num_layers, num_devices), (memory, (links, speeds)) in product(sizes, conditions)
    ]


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
