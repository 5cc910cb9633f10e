"""A few iterations of a plan, in fresh processes of this host, as torchrun starts them."""

import os
import re
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from planner.plan import Plan

WARM_UP = 1
"""Iterations at the begin of a run that do not count."""

LEAST_STEPS, MOST_STEPS, RUN_S = 6, 30, 3.0
"""Iterations of a run: as many as are predicted to take so many seconds, within these limits."""

PATIENCE_S, SLOWDOWN = 90.0, 20
"""A run is ended after so many seconds and so many times what its iterations are predicted to take."""


OWN_PREFIX, RAISED = "planner.execute: ", re.compile(r"(\[rank\d+\]: )?(?P<said>\w+Error: .*)")
"""How the lines of a log begin that say what went wrong."""


class ShortRunError(Exception):
    """The run gave no times; the message is the executor's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShortRun:
    """The times of one run."""

    folder: str
    """Folder of its trace."""
    durations_ns: tuple[int, ...]
    """Of its iterations, in order, the warm-up left out."""
    wall_s: float
    """From the start of the processes to their end."""

    @property
    def median_ns(self) -> int:
        """Of its iterations."""
        return round(statistics.median(self.durations_ns))


def choose_num_steps(predicted_ns: int) -> int:
    """Iterations of a run, the warm-up included."""
    wanted = -(-round(RUN_S * 10**9) // max(1, predicted_ns))
    return WARM_UP + min(MOST_STEPS, max(LEAST_STEPS, wanted))


def count_processes(plan: Plan) -> int:
    """Devices that the plan uses; each is a process."""
    return sum(bool(order) for order in plan.schedule.values())


def run_plan_shortly(
    path: Path, plan: Plan, *, model: str, steps: int, folder: Path, should_stop: Callable[[], bool]
) -> ShortRun:
    """Run the plan of the document at `path`; raises ShortRunError, or KeyboardInterrupt if it shall stop."""
    begin = time.monotonic()
    predicted_s = 0 if plan.evidence is None else plan.evidence.makespan_ns / 10**9
    command = (
        sys.executable, "-m", "planner.execute.run.agent", "--standalone", f"--nproc-per-node={count_processes(plan)}",
        "-m", "planner.execute", str(path), "--model", model, "--steps", str(steps), "--trace", str(folder),
    )  # fmt: skip
    run_command(
        command, log=folder.with_suffix(".log"), timeout_s=PATIENCE_S + SLOWDOWN * steps * predicted_s, stop=should_stop
    )
    wall_s = time.monotonic() - begin
    return ShortRun(folder=str(folder), durations_ns=_read_durations(folder, plan), wall_s=wall_s)


def run_command(command: tuple[str, ...], *, log: Path, timeout_s: float, stop: Callable[[], bool]) -> None:
    """Run a command and its children to their end; raises as `run_plan_shortly` does, and then none of them is left."""
    deadline = time.monotonic() + timeout_s
    environment = {"OMP_NUM_THREADS": "1"} | os.environ  # as torchrun sets it, for a single process as well
    with open(log, "wb") as out:
        process = subprocess.Popen(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True
        )
        try:
            while process.poll() is None:
                if stop():
                    raise KeyboardInterrupt
                if time.monotonic() > deadline:
                    raise ShortRunError(f"was not done after {timeout_s:.0f} s; {last_lines(log)}")
                time.sleep(0.05)
        finally:
            _end(process)
    if process.returncode:
        raise ShortRunError(last_lines(log))


def _end(process: subprocess.Popen[bytes]) -> None:
    """The process, and whatever it started: it leads a session of its own."""
    if process.poll() is None:
        process.terminate()
        try:
            process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def last_lines(log: Path) -> str:
    """What the executor said when it refused or broke off, else the first error that was raised, else the last line."""
    lines = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    own = [line.removeprefix(OWN_PREFIX) for line in lines if line.startswith(OWN_PREFIX)]
    raised = [found["said"] for line in lines if (found := RAISED.fullmatch(line))]
    return (own[-1:] or raised[:1] or lines[-1:] or ["it said nothing"])[0][:300]


def _read_durations(folder: Path, plan: Plan) -> tuple[int, ...]:
    """Nanoseconds of every iteration of a run but the warm-up; raises ShortRunError if they cannot be read."""
    from planner.fidelity.executed_run import read_run

    try:
        iterations = read_run(folder, plan)
    except (ValueError, OSError) as error:
        raise ShortRunError(str(error)) from None
    return tuple(iteration.duration_ns for iteration in iterations[min(WARM_UP, len(iterations) - 1) :])
