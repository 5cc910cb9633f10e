"""What a second island brings: `python -m benchmarks.islands` (about 11 minutes on two cores).

One service with two workers of this machine. Every question is asked of one worker with one thread, of two workers
with one thread each (islands), and of one worker with two threads.
"""

import math
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from api.client import Client, ServerEvent
from api.service.serving import free_port
from benchmarks.chains import make_chains, make_one_by_one, parse_wishes
from benchmarks.report import Table, ms, percent
from benchmarks.service import processes, wait_ready
from planner.problem import Options, Problem
from planner.progress import Limits
from planner.verify import verify

HEADER = (
    "workload", "seed", "one worker ms", "gap", "two islands ms", "gap", "one worker, two threads ms", "gap",
    "islands / one", "threads / one", "islands as good after s", "threads as good after s", "verified",
)  # fmt: skip

FAMILIES = (
    *make_chains([(48, 8)], [("scarce", ("two-level", "equal")), ("tight", ("homogeneous", "equal"))]),
    *make_chains([(48, 8)], [("loose", ("random", "different"))]),
    *make_chains([(96, 16)], [("tight", ("two-level", "equal"))]),
    *make_chains([(24, 4)], [("scarce", ("random", "different"))]),
)
SEEDS = (0, 100)
"""Islands search with the seeds after these."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """One question answered."""

    makespan_ns: int
    gap: float
    found: tuple[tuple[float, int], ...]
    """Seconds after the submission, and the objective of the best plan from then on."""
    is_verified: bool

    def reached_s(self, makespan_ns: int) -> float | None:
        """When it had a plan as good; None: never."""
        return next((seconds for seconds, value in self.found if value <= makespan_ns), None)


@contextmanager
def two_workers() -> Iterator[Client]:
    """A service with two workers that is ready."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        command = ["serve", "--port", str(port), "--data", folder, "--workers", "2", "--threads", "2"]
        with processes(command):
            client = Client(f"http://127.0.0.1:{port}", num_tries=12)
            wait_ready(client)
            yield client


def ask(client: Client, problem: Problem, *, limits: Limits, islands: int) -> Answer:
    """The answer, and when what was found."""
    begin, found = time.monotonic(), list[tuple[float, int]]()

    def listen(event: ServerEvent) -> None:
        value = event["data"].get("incumbent_ns")
        if event["kind"] == "incumbent" and value is not None and (not found or value < found[-1][1]):
            found.append((time.monotonic() - begin, value))

    job = client.plan(problem, limits=limits, islands=islands, on_event=listen)
    plan = client.fetch_plan(job["id"])
    assert plan.evidence is not None
    makespan, seconds = plan.evidence.makespan_ns, time.monotonic() - begin
    client.delete(job["id"])
    return Answer(
        makespan_ns=makespan,
        gap=plan.evidence.gap,
        found=(*found, (seconds, makespan)),
        is_verified=verify(problem, plan).passed,
    )


def main() -> None:
    """Print the table, and write it where `-o` says."""
    wishes = parse_wishes(__doc__, time_limit=20.0, what="each of the three answers")
    seconds = 3.0 if wishes.quick else wishes.time_limit
    table = Table(preface=_preface(seconds), header=HEADER, output=wishes.output)
    rows = []
    with two_workers() as client:
        for family in FAMILIES[:1] if wishes.quick else FAMILIES:
            problem = replace(make_one_by_one(family), options=Options())
            for seed in SEEDS:
                answers = compare(client, problem, seconds=seconds, seed=seed)
                rows.append(answers)
                table.add([family.name, str(seed), *_cells(*answers)])
    table.close(*_verdict(rows))


def compare(client: Client, problem: Problem, *, seconds: float, seed: int) -> tuple[Answer, Answer, Answer]:
    """Of one worker, of two islands, of one worker with two threads."""
    single = Limits(time_limit_s=seconds, patience_s=seconds, threads=1, seed=seed)
    return (
        ask(client, problem, limits=single, islands=1),
        ask(client, problem, limits=single, islands=2),
        ask(client, problem, limits=replace(single, threads=2), islands=1),
    )


def _cells(one: Answer, islands: Answer, threads: Answer) -> list[str]:
    answers = (one, islands, threads)
    return [
        *(cell for each in answers for cell in (ms(each.makespan_ns), percent(each.gap))),
        *(f"{each.makespan_ns / one.makespan_ns:.4f}" for each in (islands, threads)),
        *(_seconds(each.reached_s(one.makespan_ns)) for each in (islands, threads)),
        "yes" if all(each.is_verified for each in answers) else "NO",
    ]


def _seconds(value: float | None) -> str:
    return "never" if value is None else f"{value:.1f}"


def _preface(seconds: float) -> list[str]:
    return [
        "# What a second island brings",
        "",
        f"Questions with all decisions open, asked of a service on two cores for {seconds:g} seconds: of one worker",
        "with one thread, of two workers with one thread each that search for one plan (`--islands 2`), and of one",
        "worker with two threads. *As good*: as the plan that the one worker had at its end; seconds count from the",
        "submission. Islands also count the seconds until the second worker takes part and both plans are joined.",
        "",
    ]


def _verdict(rows: Sequence[tuple[Answer, Answer, Answer]]) -> list[str]:
    remarks = []
    for name, column in (("two islands", 1), ("two threads", 2)):
        ratios = [row[column].makespan_ns / row[0].makespan_ns for row in rows]
        reached = [row[column].reached_s(row[0].makespan_ns) for row in rows]
        known = [each for each in reached if each is not None]
        at_end = [row[0].found[-1][0] if row[0].found else 0.0 for row in rows]
        first = [row[0].reached_s(row[0].makespan_ns) or end for row, end in zip(rows, at_end, strict=True)]
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        remarks.append(
            f"* {name}: {mean:.4f} of one worker's iteration on the geometric mean, {min(ratios):.4f} to "
            f"{max(ratios):.4f}; as good after {statistics.median(known):.1f} s on the median in {len(known)} of "
            f"{len(rows)} rows, where one worker took {statistics.median(first):.1f} s."
            if known
            else f"* {name}: {mean:.4f} of one worker's iteration on the geometric mean; never as good."
        )
    return remarks


if __name__ == "__main__":
    main()
