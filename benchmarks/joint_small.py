"""Small joint problems, to be proved optimal: `python -m benchmarks.joint_small [--quick] [-o TABLE.md]`.

64 random problems of at most 12 layers, 4 devices, 8 microbatches; a quarter each with all default options, with
replicas but one stage per device, with two stages per device but no replicas, and with neither. Proved by
`certificate`: the bound that is derived again equals the makespan; only that counts. By `complete search`: all was
closed by trees, enumeration or branch and bound, not by CP-SAT's word. `two-level`: two hosts of two devices.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from random import Random
from typing import Literal

from benchmarks.generate import Family, make_workload
from benchmarks.report import Planned, Table, make_parser, ms, percent, plan_and_check
from planner.planning import Limits
from planner.problem import Options, Problem
from profiles.cluster import Cluster

HEADER = (
    "problem", "layers", "micro-batches", "options", "makespan ms", "certified bound ms", "gap", "claimed bound ms",
    "proved by", "stages x replicas", "verified", "certificate", "s",
)  # fmt: skip

SECONDS, MARGIN, SEED, TARGET, COUNT = 10.0, 0.5, 7, 63, 64

OPTIONS = {
    "all": Options(),
    "replicas": Options(max_stages_per_device=1),
    "chunks": Options(max_replicas=1),
    "one stage": Options(max_stages_per_device=1, max_replicas=1),
}
"""`all`: what the planner decides by default; the others leave out chunks, or replicas, or both."""


def problems(seed: int = SEED) -> Iterator[tuple[str, str, Problem]]:
    """Name, options and problem: memory x links x speeds in turn, every third a graph; other seeds, other profiles."""
    rng = Random(seed)
    kinds = list(
        product(("loose", "mid", "tight"), ("homogeneous", "two-level", "random"), ("equal", "classes", "different"))
    )
    for number in range(COUNT):
        memory, links, speeds = kinds[number % len(kinds)]
        family = Family(
            shape="dag" if number % 3 == 2 else "chain",
            num_layers=rng.randint(6, 12),
            num_devices=4,
            num_microbatches=rng.randint(4, 8),
            memory=memory,
            links=links,
            speeds=speeds,
            seed=number + (seed - SEED) * COUNT,
        )
        workload = make_workload(family)
        assert workload.cluster is not None
        cluster = in_pairs(workload.cluster) if links == "two-level" else workload.cluster
        options = tuple(OPTIONS)[number % len(OPTIONS)]
        problem = Problem(
            profile=workload.profile,
            cluster=cluster,
            num_microbatches=family.num_microbatches,
            options=OPTIONS[options],
        )
        yield family.name, options, problem


def in_pairs(cluster: Cluster) -> Cluster:
    """Two hosts of two devices each: 12 GB/s inside a host, 3 GB/s and five times the latency between them."""
    host_of = {device.name: f"host{number // 2}" for number, device in enumerate(cluster.devices)}
    speeds = {True: (12_000_000_000, 10_000), False: (3_000_000_000, 50_000)}
    devices = tuple(replace(device, host=host_of[device.name]) for device in cluster.devices)
    links = []
    for link in cluster.links:
        bandwidth, latency = speeds[host_of[link.a] == host_of[link.b]]
        links.append(replace(link, bandwidth_bytes_per_s=bandwidth, latency_ns=latency))
    return replace(cluster, devices=devices, links=tuple(links))


Proof = Literal["certificate", "complete search", "open"]


def proof_of(planned: Planned) -> Proof:
    """How the plan is known to be optimal, if it is."""
    evidence = planned.evidence
    if not (planned.is_verified and planned.is_certified):
        return "open"
    if evidence.lower_bound_ns >= evidence.makespan_ns:
        return "certificate"
    return "complete search" if evidence.solver_bound_ns == evidence.makespan_ns else "open"


def cells(name: str, options: str, problem: Problem, planned: Planned) -> list[str]:
    """A row of the table."""
    evidence, claimed = planned.evidence, planned.evidence.solver_bound_ns
    return [
        name,
        str(len(problem.profile.layers)),
        str(problem.num_microbatches),
        options,
        ms(evidence.makespan_ns),
        ms(evidence.lower_bound_ns),
        percent(planned.gap),
        "–" if claimed is None else ms(claimed),
        proof_of(planned),
        " ".join(str(len(stage.replicas)) for stage in planned.plan.stages),
        "yes" if planned.is_verified else "NO",
        "derived" if planned.is_certified else "REFUSED",
        f"{planned.total_s:.1f}",
    ]


def main() -> None:
    """Plan all problems, a row each, and say how many are proved."""
    parser = make_parser(__doc__)
    parser.add_argument("--seed", type=int, default=SEED, help="other problems of the same kinds")
    given = parser.parse_args()
    table = Table.about("# Small joint problems", __doc__, header=HEADER, output=given.output)
    results: list[tuple[str, Planned]] = []
    rows = list(problems(given.seed))
    for name, options, problem in rows[3::11][:6] if given.quick else rows:
        limits = Limits(time_limit_s=SECONDS - MARGIN, patience_s=SECONDS)
        results.append((options, plan_and_check(problem, limits)))
        table.add(cells(name, options, problem, results[-1][1]))
    table.close(*remarks(results))


def remarks(results: list[tuple[str, Planned]]) -> Iterator[str]:
    """How many are proved in all and with the options of each kind; only what was back within `SECONDS` counts."""
    kept = [(options, proof_of(planned) if planned.total_s <= SECONDS else "late") for options, planned in results]
    for kind in OPTIONS:
        found = Counter(proof for options, proof in kept if options == kind)
        yield (
            f"* Options `{kind}`: {found['certificate']} of {found.total()} proved by certificate, "
            f"{found['complete search']} by complete search, {found['open']} open, {found['late']} late"
        )
    proved = sum(proof == "certificate" for _, proof in kept)
    slowest = max(planned.total_s for _, planned in results)
    verdict = "met" if proved >= TARGET else "missed"
    yield ""
    yield (
        f"Proved by certificate: {proved} of {len(kept)}. Slowest: {slowest:.1f} s from the call to the plan. "
        f"Target: at least {TARGET} of {COUNT} within {SECONDS:g} s each: "
        f"{verdict if len(kept) == COUNT else 'not judged by a few rows'}."
    )


if __name__ == "__main__":
    main()
