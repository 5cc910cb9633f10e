"""One process of a planned run: it takes its place, meets the others, and may train in a loop of its own.

    with join("plan.json", training) as execution:
        for batch in loader:
            iteration = execution.step(batch)

What goes wrong between `with` and its end stops all processes with one message, as in `python -m planner.execute`.
"""

import os
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Literal, NoReturn

import torch
from torch import distributed

from planner.document import parse_plan, plan_sha256
from planner.errors import ExecutionError
from planner.execute.model.user_code import OwnCodeError
from planner.execute.parallel.process_groups import gather
from planner.execute.record.action_log import ActionLog
from planner.execute.run.core_groups import as_processes, cores_of, pick_cores, pin_threads
from planner.execute.run.execution import CHECK_EVERY, Execution, make_log
from planner.execute.run.host_check import host_memory_bytes
from planner.execute.run.host_process import settle_on_host
from planner.execute.run.preparation import Preparation, prepare
from planner.execute.run.process_agreement import Facts, find_disagreements
from planner.execute.stage.stage_module import fingerprint
from planner.execute.table.last_words import say_last
from planner.execute.table.layout import Layout, make_layout
from planner.execute.table.placement import DevicePosition, find_position, hosts_of, load_cluster_tree
from planner.execute.table.watch import Watch, connect, make_timeout_s
from planner.execute.torch_versions.supported import require_supported
from planner.execute.training import Training
from planner.plan import DeviceGroup, Plan

_BAD_INPUT = 2
"""Exit code when nothing was trained because something does not fit; 1 means that a run was broken off."""


@dataclass(frozen=True, kw_only=True)
class Choices:
    """How a plan is run, as far as the plan leaves that open; the same on every process."""

    device: str = "auto"
    """cpu, cuda, or what there is."""
    cluster: Path | None = None
    """Cluster or workload document: gives every device its host."""
    timeout_s: float | None = None
    """Seconds without progress until all is broken off; None: as the plan's makespan suggests."""
    groups: Literal["tensor", "threads"] = "tensor"
    """What a group of devices is: processes that run layers tensor-parallel, or one process with threads on as many of
    its host's cores (which also pins processes of one core)."""
    check_every: int = CHECK_EVERY
    """Iterations between two comparisons of contents; 0: never."""
    fully_shard: bool = False
    """Whether replicas that shard the optimizer's state hold no more than their parts of weights and gradients, too."""
    pins: bool = True
    """Whether processes that share a host each take an equal part of its cores (`host_process.own_cores`)."""
    more: Mapping[str, str] = field(default_factory=dict)
    """What else all processes have to agree on, by what it is called."""


@dataclass(frozen=True, kw_only=True)
class _ProcessJob:
    """What one process is to do, settled before it meets the others."""

    choices: Choices
    plan: Plan
    layout: Layout
    place: DevicePosition
    device: torch.device
    timeout_s: float
    log: ActionLog


@contextmanager
def join(
    plan: Path | str, training: Training | Callable[[], Training], *, choices: Choices | None = None
) -> Iterator[Execution]:
    """This process's part of a plan; `training`: or what makes it. Started by torchrun or its like.

    Raises ValueError or OSError if it cannot take its place. Whatever goes wrong later ends all processes, with exit
    code 2 if nothing was trained before, and with 1 otherwise.
    """
    job = make_job(Path(plan), choices or Choices())
    try:
        _meet(job)
    except (RuntimeError, ValueError) as error:
        refuse(f"rank {job.place.rank} does not find the others: {str(error).splitlines()[0]}")
    store = connect(os.environ, timeout_s=job.timeout_s)
    watch = Watch(store, job.log, layout=job.layout, rank=job.place.rank, timeout_s=job.timeout_s)
    watch.start()
    execution = None
    try:
        job.log.note("the agreement of all ranks")
        preparation = _agree(job, training)
        job.log.note("")
        execution = Execution(preparation, device=job.device, log=job.log, check_every=job.choices.check_every)
        yield execution
        job.log.note("the end of all ranks")
        distributed.barrier()
        job.log.note("")
    except ExecutionError as error:
        watch.stop()
        if execution is None or not execution.has_trained:
            refuse(str(error))
        refuse(f"the plan was not run to its end: {error}", code=1)
    except Exception as error:
        if job.log.state()[1] or _find_own(error) is not None:
            traceback.print_exc()  # it is the model's own: what the others say about it is not enough to mend it
        watch.end(_describe_failure(error, job))
    watch.stop()
    distributed.barrier()  # nobody asks the store any more when the process goes that has it
    distributed.destroy_process_group()


def make_job(path: Path, choices: Choices) -> _ProcessJob:
    """Read the plan and find this process's place; raises ValueError or OSError."""
    require_supported()
    plan = parse_plan(path.read_bytes(), source=str(path))
    hosts, cluster, groups = None, None, dict[str, DeviceGroup]()
    if choices.cluster is not None:
        cluster = load_cluster_tree(choices.cluster.read_text(encoding="utf-8"), source=str(choices.cluster))
        hosts = hosts_of(cluster, source=str(choices.cluster))
    if choices.groups == "threads":
        plan, groups = as_processes(plan)
    layout = make_layout(plan)
    place = find_position(layout.devices, os.environ, hosts=hosts)
    device = _device("cpu" if groups else choices.device, place)
    if groups:
        cores = cores_of(cluster, sorted(member for group in groups.values() for member in group))
        pin_threads(pick_cores(groups[layout.devices[place.rank]], cores, usable=sorted(os.sched_getaffinity(0))))
    elif device.type == "cpu" and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # as layers were timed: threads that spin for each other beside others took 240 times
    if device.type == "cpu":
        settle_on_host(pins=choices.pins, keeps=not choices.fully_shard and not plan.shards_weights)
    planned = None if plan.evidence is None else plan.evidence.makespan_ns
    return _ProcessJob(
        choices=choices,
        plan=plan,
        layout=layout,
        place=place,
        device=device,
        timeout_s=choices.timeout_s or make_timeout_s(planned),
        log=make_log(device),
    )


def _meet(job: _ProcessJob) -> None:
    """Processes that are stuck are found by the watch; the group's own limit only comes after it."""
    distributed.init_process_group(
        "cpu:gloo,cuda:nccl" if job.device.type == "cuda" else "gloo",
        rank=job.place.rank,
        world_size=job.layout.world_size,
        timeout=timedelta(seconds=2 * job.timeout_s + 30),
    )  # without device_id: with it, NCCL would put all messages of a process into one queue


def _device(name: str, place: DevicePosition) -> torch.device:
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    count = torch.cuda.device_count()
    if place.index >= count:
        raise ValueError(
            f"rank {place.rank} is to drive accelerator {place.index} of host {place.host!r}, which shows {count}; "
            "make them visible, or use --device cpu"
        )
    torch.cuda.set_device(place.index)
    return torch.device("cuda", place.index)


def _agree(job: _ProcessJob, training: Training | Callable[[], Training]) -> Preparation:
    """Raises ExecutionError with one message for all ranks if anything keeps them from running together."""
    preparation, error, trace = None, "", ""
    choices = job.choices
    try:
        made = training if isinstance(training, Training) else training()
        preparation = prepare(job.plan, made, fully_shard=choices.fully_shard)
    except Exception as failure:
        is_told = isinstance(failure, ValueError | OwnCodeError)
        error = str(failure) if is_told else f"{type(failure).__name__}: {failure}"
        trace = "" if isinstance(failure, ValueError) else traceback.format_exc()
    facts: list[Facts] = gather(_facts(job, preparation, error=error))
    failed = [fact.rank for fact in facts if fact.error]
    if failed and failed[0] == job.place.rank:
        sys.stderr.write(trace)
    peaks = {} if job.plan.evidence is None else job.plan.evidence.peak_bytes
    if found := find_disagreements(facts, devices=job.layout.devices, peak_bytes=peaks):
        raise ExecutionError("; ".join(found))
    assert preparation is not None
    return preparation


def _facts(job: _ProcessJob, preparation: Preparation | None, *, error: str) -> Facts:
    choices = job.choices
    chosen = [choices.groups, str(choices.check_every), job.device.type]
    same = {"torch": torch.__version__, "options": ", ".join(chosen), "fully_shard": str(choices.fully_shard)}
    same |= dict(choices.more)
    if preparation is not None:
        same |= {"plan": plan_sha256(preparation.plan), "model": fingerprint(preparation.shapes)}
    return Facts(
        rank=job.place.rank,
        host=job.place.host,
        accelerator=job.place.index if job.device.type == "cuda" else None,
        memory_bytes=int(torch.cuda.get_device_properties(job.device).total_memory)
        if job.device.type == "cuda"
        else host_memory_bytes(),
        same=same,
        error=error,
    )


def _find_own(error: BaseException) -> OwnCodeError | None:
    """What the user's own code raised, if that is behind an error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OwnCodeError):
            return cause
        cause = cause.__cause__
    return None


def _describe_failure(error: Exception, job: _ProcessJob) -> str:
    """Which rank failed in what, and how; running out of memory is told with what the plan expected."""
    device, cell = job.layout.devices[job.place.rank], job.log.state()[0]
    where = f"rank {job.place.rank} ({device}) failed{f' in {cell}' if cell else ''}"
    root: BaseException = error
    while root.__cause__ is not None:
        root = root.__cause__
    lines = str(root).strip().splitlines() or [type(root).__name__]
    if isinstance(root, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in lines[0]:
        peak = None if job.plan.evidence is None else job.plan.evidence.peak_bytes.get(device)
        expected = "" if peak is None else f" (the plan expects at most {peak:,} bytes)"
        return f"{where}: out of memory{expected}: {lines[0]}"
    if (own := _find_own(error)) is not None:
        return f"{where}: {own}"
    return f"{where}: {type(root).__name__}: {lines[0]}"


def refuse(message: str, *, code: int = _BAD_INPUT) -> NoReturn:
    """Say it and end this process."""
    say_last(f"planner.execute: {message}\n")
    os._exit(code)  # other processes may be waiting for a goodbye that nobody needs
