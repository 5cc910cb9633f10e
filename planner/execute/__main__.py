"""`torchrun --nproc-per-node N -m planner.execute plan.json --model module:factory`: train exactly as planned."""

import argparse
import json
import os
import sys
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import distributed

from planner.document import parse_plan
from planner.errors import ExecutionError
from planner.execute.action_log import ActionLog
from planner.execute.agreement import Facts, find_disagreements
from planner.execute.checkpoint import load_checkpoint, save_checkpoint
from planner.execute.executed_timeline import render_executed_trace, render_rank
from planner.execute.execution import Execution, Iteration, Preparation, make_log, prepare
from planner.execute.layout import Layout, make_layout
from planner.execute.placement import Seat, find_seat, parse_hosts
from planner.execute.runtime import SUPPORTED_TORCH
from planner.execute.training import load_training
from planner.execute.watch import Watch, connect, make_timeout_s
from planner.plan import Plan

BAD_INPUT = 2
"""Exit code when nothing was started because something does not fit; 1 means that a run was broken off."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one process of the plan."""
    options = _parser().parse_args(arguments)
    try:
        job = _make_job(options)
    except (ValueError, OSError) as error:
        _refuse(str(error))
    try:
        _meet(job)
    except (RuntimeError, ValueError) as error:
        _refuse(f"rank {job.seat.rank} does not find the others: {str(error).splitlines()[0]}")
    watch = Watch(
        connect(os.environ, timeout_s=job.timeout_s),
        job.log,
        layout=job.layout,
        rank=job.seat.rank,
        timeout_s=job.timeout_s,
    )
    watch.start()
    try:
        _run(job)
    except ExecutionError as error:
        watch.stop()
        _refuse(str(error))
    except Exception as error:
        if job.log.state()[1]:
            traceback.print_exc()  # it is the model's own: what the others say about it is not enough to mend it
        watch.end(_describe_failure(error, job))
    watch.stop()
    distributed.destroy_process_group()


def _meet(job: "_Job") -> None:
    """Processes that are stuck are found by the watch; the group's own limit only comes after it."""
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if job.device.type == "cuda" else "gloo",
        rank=job.seat.rank,
        world_size=job.layout.world_size,
        timeout=timedelta(seconds=2 * job.timeout_s + 30),
        device_id=job.device if job.device.type == "cuda" else None,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="planner.execute",
        description="Train a model exactly as planned. Start it with torchrun, one process per device of the plan.",
    )
    planned = os.environ.get("PIPEPLAN_PLAN")  # set by planner.execute.enter
    parser.add_argument("plan", type=Path, nargs="?" if planned else None, default=planned, help="plan document")
    parser.add_argument("--model", required=True, help="module:factory; the factory gives a planner.execute Training")
    parser.add_argument("--steps", type=int, default=1, help="number of iterations (default 1)")
    parser.add_argument("--cluster", type=Path, help="cluster or workload document: gives every device its host")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument("--split", choices=("deferred", "native"), default="deferred", help="how I and W are split")
    parser.add_argument(
        "--skip",
        choices=("direct", "relay"),
        default="direct",
        help="tensors that skip stages: straight to their stage, or handed on by those between (default direct)",
    )
    parser.add_argument(
        "--messages", choices=("auto", "own"), default="auto", help="own: never leave sends and receives to torch"
    )
    parser.add_argument("--timeout", type=float, help="seconds without progress until all is broken off")
    parser.add_argument("--losses", type=Path, help="write the losses of every iteration here, as JSON lines")
    parser.add_argument("--trace", type=Path, help="write the executed timeline into this folder")
    parser.add_argument("--load", type=Path, help="go on from the checkpoint in this folder")
    parser.add_argument("--save", type=Path, help="write a checkpoint into this folder after the last iteration")
    return parser


@dataclass(frozen=True, kw_only=True)
class _Job:
    """What one process is to do, settled before it meets the others."""

    options: argparse.Namespace
    plan: Plan
    layout: Layout
    seat: Seat
    device: torch.device
    timeout_s: float
    log: ActionLog


def _make_job(options: argparse.Namespace) -> _Job:
    if not torch.__version__.startswith(f"{SUPPORTED_TORCH}."):
        raise ValueError(f"torch {torch.__version__} is installed, but the executor is made for {SUPPORTED_TORCH}")
    if options.steps < 1:
        raise ValueError(f"--steps {options.steps} is not positive")
    plan = parse_plan(options.plan.read_bytes(), source=str(options.plan))
    layout = make_layout(plan)
    hosts = None
    if options.cluster is not None:
        hosts = parse_hosts(options.cluster.read_text(encoding="utf-8"), source=str(options.cluster))
    seat = find_seat(layout.devices, os.environ, hosts=hosts)
    device = _device(options.device, seat)
    planned = None if plan.evidence is None else plan.evidence.makespan_ns
    return _Job(
        options=options,
        plan=plan,
        layout=layout,
        seat=seat,
        device=device,
        timeout_s=options.timeout or make_timeout_s(planned),
        log=make_log(device),
    )


def _device(name: str, seat: Seat) -> torch.device:
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if seat.index >= count:
        raise ValueError(
            f"rank {seat.rank} is to drive accelerator {seat.index} of host {seat.host!r}, which shows {count}; "
            "make them visible, or use --device cpu"
        )
    torch.cuda.set_device(seat.index)
    return torch.device("cuda", seat.index)


def _run(job: _Job) -> None:
    job.log.note("the agreement of all ranks")
    preparation = _agree(job)
    job.log.note("")
    execution = Execution(preparation, device=job.device, log=job.log)
    iterations = []
    first = 0 if job.options.load is None else load_checkpoint(execution, job.options.load)
    for number in range(first, first + job.options.steps):
        iteration = execution.step(number)
        iterations.append(iteration)
        if execution.is_speaker:
            _note_losses(job, iteration, number=number, is_first=number == first)
    if job.options.save is not None:
        save_checkpoint(execution, job.options.save, iteration=first + job.options.steps)
    if job.options.trace is not None:
        _write_timeline(job, iterations)
    job.log.note("the end of all ranks")
    distributed.barrier()
    job.log.note("")


def _agree(job: _Job) -> Preparation:
    """Raises ExecutionError with one message for all ranks if anything keeps them from running together."""
    preparation, error = None, ""
    try:
        preparation = prepare(
            job.plan, load_training(job.options.model), split=job.options.split, skip=job.options.skip
        )
    except Exception as failure:
        error = str(failure) if isinstance(failure, ValueError) else f"{type(failure).__name__}: {failure}"
    facts: list[Any] = [None] * job.layout.world_size
    distributed.all_gather_object(facts, _facts(job, preparation, error=error))
    peaks = {} if job.plan.evidence is None else job.plan.evidence.peak_bytes
    if found := find_disagreements(facts, devices=job.layout.devices, peak_bytes=peaks):
        raise ExecutionError("; ".join(found))
    assert preparation is not None
    return preparation


def _facts(job: _Job, preparation: Preparation | None, *, error: str) -> Facts:
    options = job.options
    chosen = [options.split, options.skip, options.messages, f"{options.steps} steps", job.device.type]
    same = {"torch": torch.__version__, "options": ", ".join(chosen)}
    if preparation is not None:
        same |= {"plan": preparation.plan_sha256, "model": preparation.model_sha256}
    return Facts(
        rank=job.seat.rank,
        host=job.seat.host,
        accelerator=job.seat.index if job.device.type == "cuda" else None,
        memory_bytes=_memory_bytes(job.device),
        same=same,
        error=error,
    )


def _memory_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _note_losses(job: _Job, iteration: Iteration, *, number: int, is_first: bool) -> None:
    mean = sum(iteration.losses) / len(iteration.losses)
    sys.stderr.write(f"iteration {number}: loss {mean:.6g}, {iteration.duration_ns / 1e6:.1f} ms\n")
    if job.options.losses is not None:
        line = {"iteration": number, "losses": iteration.losses, "duration_ns": iteration.duration_ns}
        with job.options.losses.open("w" if is_first else "a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


def _write_timeline(job: _Job, iterations: Sequence[Iteration]) -> None:
    """A file per rank, and from rank 0 the merged trace."""
    folder, rank = job.options.trace, job.seat.rank
    folder.mkdir(parents=True, exist_ok=True)
    mine = [iteration.actions for iteration in iterations]
    times = [iteration.times for iteration in iterations]
    document = render_rank(rank, job.layout.devices[rank], iterations=mine, times=times)
    (folder / f"rank{rank}.json").write_text(document)
    everyone: list[Any] | None = [None] * job.layout.world_size if rank == 0 else None
    job.log.note("the merging of timelines")
    distributed.gather_object(mine, everyone)
    if everyone is not None:
        merged = [dict(zip(job.layout.devices, rows, strict=True)) for rows in zip(*everyone, strict=True)]
        (folder / "timeline.json").write_text(render_executed_trace(merged))


def _describe_failure(error: Exception, job: _Job) -> str:
    """Which rank failed in what, and how; running out of memory is told with what the plan expected."""
    device, cell = job.layout.devices[job.seat.rank], job.log.state()[0]
    where = f"rank {job.seat.rank} ({device}) failed{f' in {cell}' if cell else ''}"
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    lines = str(root).strip().splitlines() or [type(root).__name__]
    if isinstance(root, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in lines[0]:
        peak = None if job.plan.evidence is None else job.plan.evidence.peak_bytes.get(device)
        expected = "" if peak is None else f" (the plan expects at most {peak:,} bytes)"
        return f"{where}: out of memory{expected}: {lines[0]}"
    return f"{where}: {type(root).__name__}: {lines[0]}"


def _refuse(message: str) -> NoReturn:
    sys.stderr.write(f"planner.execute: {message}\n")
    sys.stderr.flush()
    os._exit(BAD_INPUT)  # other processes may be waiting for a goodbye that nobody needs


if __name__ == "__main__":
    main()
