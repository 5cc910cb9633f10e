"""Jobs whose processes are killed: `pipeplan launch ... --heal` under torchrun and under a Slurm of this machine.

`python -m benchmarks.recovery --kills 30` makes docs/benchmarks/recovery.md. A job of `examples/train.py` begins on
four devices; at random moments a random process of it is killed (every third time its parent with it, so that nobody
writes down how it ended), until one device is left, which trains to the end. Every job is run once more by hand:
stopped where the job went on from, resumed under the same plans.
"""

import argparse
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.report import describe_commit, describe_machine, line
from planner.document import parse_plan, render_plan
from planner.execute.record.rank_record import RankRecord, read_records
from planner.planning import make_plan
from planner.problem import Options, Problem
from planner.progress import Limits
from profiles.cluster import Cluster, Device, Link
from profiles.load import load_workload
from tests.integration.slurm_cluster import slurm_cluster

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "docs" / "benchmarks" / "recovery.md"
NUM_DEVICES = 4
STEPS = 60
MOST_BETWEEN = 12
"""Iterations at most between a start and the next kill."""
EVERY = 5
"""Iterations between checkpoints."""
LIMIT_S = 300.0
"""For everything that is waited for."""
PROGRAM = ("examples/train.py", "--steps", str(STEPS), "--checkpoint-every", str(EVERY), "--copy-every", "1")


@dataclass(frozen=True, kw_only=True)
class Kill:
    """One killed process and what came after."""

    noticed_s: float
    """From the signal until the loss was seen."""
    planned_s: float
    """From then until there was a new plan."""
    started_s: float
    """From the signal until the launcher was started anew."""
    good_s: float
    """From the signal until the end of the first iteration under the new plan."""
    again_s: float
    """From the signal until as many iterations were done as when it came."""
    repeated: int
    """Iterations that were done twice."""
    source: str
    """Where the state came from: `live copies`, `checkpoint` or `beginning`."""
    storage_bytes: int
    """What all processes together read of it from storage, as they counted."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """One job."""

    kills: tuple[Kill, ...]
    """Those it survived."""
    attempted: int
    """All of them."""
    is_equal: bool | None
    """Whether its losses are to the bit those of the run by hand; None if that was not run."""
    is_done: bool
    """Whether it came to its end with every iteration told once."""


def make_problem(*, max_replicas: int) -> Problem:
    """The example's layers on four hosts of one device each."""
    workload = load_workload(ROOT / "examples" / "two-ranks-workload.json")
    names = [f"d{number}" for number in range(NUM_DEVICES)]
    devices = tuple(Device(name=name, type="core", memory_bytes=2**30, host=f"n{name[1:]}") for name in names)
    links = tuple(Link(a=a, b=b, bandwidth_bytes_per_s=10**9, latency_ns=50_000) for a in names for b in names if a < b)
    return Problem(
        profile=workload.profile,
        cluster=Cluster(name="four hosts", devices=devices, links=links),
        num_microbatches=4,
        options=Options(max_replicas=max_replicas, uneven_replication=False, skip_edges=False, idle_devices=False),
    )


class Job:
    """One job that loses processes until one device is left."""

    def __init__(self, folder: Path, *, launcher: Sequence[str], environment: Mapping[str, str], search_s: float):
        self.folder, self.environment = folder, dict(environment)
        words = ["-m", "api", "launch", launcher[0], str(folder / "plan.json"), *launcher[1:], "--processors"]
        words += ["--heal", "--heals", str(NUM_DEVICES), "--heal-time-limit", str(search_s), "--json"]
        words += ["--folder", str(folder / "job"), "--python", sys.executable, "--", *PROGRAM]
        self.losses = folder / "losses"
        with (folder / "said").open("w") as said, (folder / "report.json").open("w") as report:
            self.process = subprocess.Popen(
                [sys.executable, *words, "--losses", str(self.losses)],
                cwd=ROOT, env=self.environment, stdout=report, stderr=said,
            )  # fmt: skip

    def num_iterations(self) -> int:
        """How many stand in the file."""
        return len(self.losses.read_text(encoding="utf-8").splitlines()) if self.losses.exists() else 0

    def wait_for(self, attempt: int, *, iterations: int) -> int:
        """Until an attempt has done so many iterations; when, in nanoseconds by the wall clock."""
        until = time.monotonic() + LIMIT_S
        place = self.folder / "job" / f"attempt-{attempt}"
        while time.monotonic() < until:
            if place.exists() and self.num_iterations() >= iterations:
                changed = self.losses.stat().st_mtime_ns
                if changed > place.stat().st_ctime_ns:
                    return changed
            if self.process.poll() is not None:
                break
            time.sleep(0.01)
        raise RuntimeError(f"attempt {attempt} did not come to {iterations} iterations; see {self.folder / 'said'}")

    def kill(self, attempt: int, *, chance: random.Random, with_parent: bool) -> int:
        """Kill one process of an attempt; when, in nanoseconds by the wall clock."""
        victim = chance.choice(read_records(self.folder / "job" / f"attempt-{attempt}"))
        process = victim.process if with_parent else _child(victim)
        now = time.time_ns()
        os.kill(process, signal.SIGKILL)
        return now

    def finish(self) -> dict[str, Any]:
        """The report of the command."""
        self.process.wait(LIMIT_S)
        found: dict[str, Any] = json.loads((self.folder / "report.json").read_text(encoding="utf-8"))
        return found


def _child(record: RankRecord) -> int:
    return int(Path(f"/proc/{record.process}/task/{record.process}/children").read_text().split()[0])


def run_job(
    folder: Path,
    *,
    launcher: Sequence[str],
    environment: Mapping[str, str],
    search_s: float,
    number: int,
    num_by_hand: int,
) -> Outcome:
    """One job, with its kills, and, of the first jobs, its run by hand."""
    chance = random.Random(number)
    problem = make_problem(max_replicas=1 if number % 2 else NUM_DEVICES)
    plan = make_plan(problem, limits=Limits(time_limit_s=10, max_rounds=1))
    (folder / "plan.json").write_text(render_plan(plan), encoding="utf-8")
    job = Job(folder, launcher=launcher, environment=environment, search_s=search_s)
    seen: list[tuple[int, int, int, int]] = []
    attempted = 0
    try:
        job.wait_for(0, iterations=1)
        for attempt in range(NUM_DEVICES - 1):
            job.wait_for(attempt, iterations=job.num_iterations() + chance.randint(1, MOST_BETWEEN))
            done, attempted = job.num_iterations(), attempted + 1
            killed = job.kill(attempt, chance=chance, with_parent=attempt == number % 3)
            good = job.wait_for(attempt + 1, iterations=1)
            seen.append((killed, done, good, job.wait_for(attempt + 1, iterations=done)))
        report = job.finish()
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        sys.stderr.write(f"{error}\n")
        job.process.terminate()
        return Outcome(kills=(), attempted=attempted, is_equal=None, is_done=False)
    kills = tuple(_kill(*each, heal=heal) for each, heal in zip(seen, report["heals"], strict=True))
    found = read_losses(job.losses)
    is_equal = None
    if number < num_by_hand:
        is_equal = found == by_hand(folder, [heal["iteration"] for heal in report["heals"]], environment=environment)
    is_done = report["exit_code"] == 0 and len(found) == STEPS
    return Outcome(kills=kills, attempted=attempted, is_equal=is_equal, is_done=is_done)


def _kill(killed: int, done: int, good: int, again: int, *, heal: Mapping[str, Any]) -> Kill:
    noticed = (heal["noticed_ns"] - killed) / 1e9
    return Kill(
        noticed_s=noticed,
        planned_s=heal["planned_s"],
        started_s=noticed + heal["started_s"],
        good_s=(good - killed) / 1e9,
        again_s=(again - killed) / 1e9,
        repeated=max(0, done - heal["iteration"]),
        source=heal["source"],
        storage_bytes=heal["storage_bytes"],
    )


def by_hand(folder: Path, ends: Sequence[int], *, environment: Mapping[str, str]) -> list[list[float]]:
    """The losses of a run that is stopped after so many iterations and resumed under the next plan."""
    before, parts = 0, []
    for number, end in enumerate([*ends, STEPS]):
        plan = folder / "job" / (f"plan-{number}.json" if number else "plan.json")
        size = len(parse_plan(plan.read_bytes()).devices)
        if end == before:
            continue
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={size}"]
        words = [PROGRAM[0], str(plan), "--steps", str(end - before), "--save", str(folder / f"by-hand-{end}")]
        words += ["--load", str(folder / f"by-hand-{before}")] if before else []
        parts.append(folder / f"losses-{number}")
        words += ["--losses", str(parts[-1])]
        subprocess.run([*command, *words], cwd=ROOT, env=environment, capture_output=True, timeout=LIMIT_S, check=True)
        before = end
    return [row for part in parts for row in read_losses(part)]


def read_losses(path: Path) -> list[list[float]]:
    """Of every iteration, in order; RuntimeError if one is missing or there twice."""
    rows = [json.loads(text) for text in path.read_text(encoding="utf-8").splitlines()]
    numbers = [row["iteration"] for row in rows]
    if numbers != list(range(numbers[0], numbers[0] + len(numbers))):
        raise RuntimeError(f"{path}: iterations {numbers}")
    return [row["losses"] for row in rows]


@contextmanager
def launcher_of(name: str, folder: Path) -> Iterator[tuple[tuple[str, ...], dict[str, str]]]:
    """How jobs are launched, and their variables."""
    common = {"GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    if name == "torchrun":
        with nullcontext():
            yield ("torchrun", "--here"), os.environ | common
        return
    with slurm_cluster(folder / "slurm", num_nodes=NUM_DEVICES) as variables:
        yield ("slurm", "--master-addr", "127.0.0.1"), dict(variables) | common


def run_all(name: str, *, num_kills: int, search_s: float, num_by_hand: int) -> Iterator[Outcome]:
    """So many kills under one launcher, job by job."""
    with tempfile.TemporaryDirectory() as place, launcher_of(name, Path(place)) as (launcher, environment):
        for number in range(-(-num_kills // (NUM_DEVICES - 1))):
            folder = Path(place) / f"job-{number}"
            folder.mkdir()
            outcome = run_job(
                folder,
                launcher=launcher,
                environment=environment,
                search_s=search_s,
                number=number,
                num_by_hand=num_by_hand,
            )
            sys.stderr.write(f"{name}, job {number}: {outcome}\n")
            yield outcome


def render(found: Mapping[str, Sequence[Outcome]], *, command: str, search_s: float) -> str:
    """The page."""
    head = ["launcher", "jobs", "kills", "lost", "jobs done", "losses as by hand"]
    times = ["launcher", "state from", "kills", "noticed", "new plan", "started anew", "next good iteration"]
    times += ["where it was", "iterations done twice", "bytes read from storage"]
    lines = [
        "# From a killed process to the next good iteration",
        "",
        f"`{command}` makes this page.",
        "Jobs of `examples/train.py` on four devices lose one process after the other (SIGKILL at random moments;",
        "every third time with the parent that writes its record) and go on with",
        f"`pipeplan launch ... --heal --heal-time-limit {search_s:g}`, a checkpoint every {EVERY} iterations and a",
        "live copy every iteration; every other job has plans without replicas, whose layers only the checkpoint has.",
        "Bytes are what the processes counted of weights and states that they read, at most per kill. Seconds",
        "count from the signal, median / worst. *New plan* is planning alone; *where it was*: as many iterations",
        "done as at the signal. *As by hand*: of the jobs that were run once more, those whose losses are, to the bit,",
        "those of a run that is stopped at the same iterations and resumed under the same plans.",
        "",
        "Every process imports torch anew, which takes two seconds of a core: on two cores that is most of the time",
        "after *started anew*, and more where others use them as well: the load of the machine over",
        f"the last quarter of an hour, these jobs included, was {os.getloadavg()[2]:.0f}.",
        "",
        f"Machine: {describe_machine()}. Commit: {describe_commit()}.",
        "",
        line(head),
        line(["---"] * len(head)),
    ]
    rows = []
    for name, outcomes in found.items():
        kills = [kill for outcome in outcomes for kill in outcome.kills]
        attempted = sum(outcome.attempted for outcome in outcomes)
        cells = [name, str(len(outcomes)), str(attempted), str(attempted - len(kills))]
        compared = [outcome.is_equal for outcome in outcomes if outcome.is_equal is not None]
        cells.append(f"{sum(outcome.is_done for outcome in outcomes)} of {len(outcomes)}")
        cells.append(f"{sum(compared)} of {len(compared)}")
        lines.append(line(cells))
        for source in sorted({kill.source for kill in kills}, reverse=True):
            some = [kill for kill in kills if kill.source == source]
            cells = [name, source, str(len(some)), *(_spread([getattr(k, field) for k in some]) for field in FIELDS)]
            cells.append(_spread([float(kill.repeated) for kill in some], digits=0))
            rows.append(line([*cells, f"{max(kill.storage_bytes for kill in some):,}"]))
    lines += ["", line(times), line(["---"] * len(times)), *rows]
    return "\n".join(lines) + "\n"


FIELDS = ("noticed_s", "planned_s", "started_s", "good_s", "again_s")


def _spread(values: Sequence[float], *, digits: int = 1) -> str:
    return f"{statistics.median(values):.{digits}f} / {max(values):.{digits}f}" if values else "-"


def main() -> None:
    """Run under every launcher asked for and write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30, help="under each launcher (default 30)")
    parser.add_argument("--launcher", choices=("torchrun", "slurm"), action="append", help="default: both")
    parser.add_argument("--search", type=float, default=2.0, help="seconds for each new plan (default 2)")
    parser.add_argument("--by-hand", type=int, default=1000, metavar="N", help="only of the first N jobs; default: all")
    parser.add_argument("-o", "--output", type=Path, default=TARGET)
    options = parser.parse_args()
    names = options.launcher or ["torchrun", "slurm"]
    command = f"python -m benchmarks.recovery {' '.join(sys.argv[1:])}".strip()
    found: dict[str, list[Outcome]] = {name: [] for name in names}
    for name in names:
        how = {"num_kills": options.kills, "search_s": options.search, "num_by_hand": options.by_hand}
        for outcome in run_all(name, **how):
            found[name].append(outcome)  # a run that is cut off leaves what it has
            options.output.write_text(render(found, command=command, search_s=options.search), encoding="utf-8")


if __name__ == "__main__":
    main()
