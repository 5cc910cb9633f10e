"""What `python -m planner.execute` does: reads its options, and trains exactly as planned."""

import argparse
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from torch import distributed

from planner.document import parse_plan
from planner.execute.enter import CHECKPOINTS_VARIABLE, COPIES_VARIABLE, PLAN_VARIABLE, RECIPE_VARIABLE
from planner.execute.model.cut.whole_model import BatchReader
from planner.execute.model.not_compared import tell_not_compared
from planner.execute.model.user_code import OwnCodeError
from planner.execute.parallel.process_groups import gather
from planner.execute.record.executed_timeline import MemoryUsed, render_executed_trace, render_rank
from planner.execute.record.put_whole import put_whole
from planner.execute.record.recipe import RecipeOrder, read_recipe, require_fit
from planner.execute.record.resumption_record import Resumption, record_resumption
from planner.execute.record.run_time import describe_time
from planner.execute.run.execution import CHECK_EVERY, Execution, Iteration
from planner.execute.run.preparation import prepare
from planner.execute.session import Choices, join, refuse
from planner.execute.state.checkpoint import (
    CountingReader,
    find_newest,
    load_checkpoint,
    save_checkpoint,
    write_numbered,
)
from planner.execute.state.live_copies import clear_copies, keep_copy, restore_copies
from planner.execute.state.state_dict import load_weights, require_savable, save_weights
from planner.execute.training import Training, load_training, require_numbered


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one process of the plan."""
    options = _parser().parse_args(arguments)
    try:
        _require_sense(options)
        if options.check:
            check(options)
            return
        with join(options.plan, lambda: _load(options), choices=_choices(options)) as execution:
            _run(execution, options)
    except (ValueError, OSError, OwnCodeError) as error:
        refuse(str(error))


def check(options: argparse.Namespace) -> None:
    """Say whether the layers of a model train as the model does, and fit the plan if there is one; trains nothing."""
    training = _load(options)
    if options.plan is not None:
        plan = parse_plan(options.plan.read_bytes(), source=str(options.plan))
        prepare(plan, training, fully_shard=options.fully_shard)
    if isinstance(training.batch, BatchReader):
        said = "trained beside the model as it is for two updates: losses, gradients, weights and buffers are the same"
    else:
        said = "layers are given one by one, so there is no model as it is to compare them with"
    sys.stderr.write(f"{options.model}: {len(training.layers)} layers; {said}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="planner.execute",
        description="Train a model exactly as planned. Start it with torchrun, one process per device of the plan.",
    )
    path, switch = partial(parser.add_argument, type=Path), partial(parser.add_argument, action="store_true")
    path("plan", nargs="?", default=os.environ.get(PLAN_VARIABLE), help="plan document")
    parser.add_argument("--model", required=True, help="module:factory; the factory gives a planner.execute Training")
    parser.add_argument("--steps", type=int, default=1, help="number of iterations (default 1)")
    path("--cluster", help="cluster or workload document: gives every device its host")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--groups",
        choices=("tensor", "threads"),
        default="tensor",
        help="a group of devices: as many tensor-parallel processes (default), or one with a thread on each core",
    )
    sharded = "replicas of stages that shard the optimizer's state shard weights and gradients, too (FSDP2)"
    switch("--fully-shard", help=sharded)
    unpinned = "leave all cores of a host to all of its processes (default: torchrun's get an equal part each)"
    switch("--no-pin", help=unpinned)
    parser.add_argument("--timeout", type=float, help="seconds without progress until all is broken off")
    path("--losses", help="write the losses of every iteration here, as JSON lines")
    path("--trace", help="write the executed timeline into this folder")
    _add_states(parser)
    parser.add_argument("--evaluate-every", type=int, default=0, metavar="N", help="evaluate after every N iterations")
    _add_checks(parser)
    return parser


def _add_checks(parser: argparse.ArgumentParser) -> None:
    """What is looked at before and while it trains."""
    parser.add_argument(
        "--check",
        action="store_true",
        help="train nothing, in one process: compare the layers of a model with the model as it is, for two updates, "
        "and see whether they fit the plan, if one is given",
    )
    compared = f"compare batches and replicas between processes every N iterations; 0: never (default {CHECK_EVERY})"
    parser.add_argument("--check-every", type=int, default=CHECK_EVERY, metavar="N", help=compared)
    parser.add_argument(
        "--on-nonfinite",
        choices=("stop", "skip", "ignore"),
        help="when a loss or gradient is nan or infinite: stop all (default), leave out the step, or look away",
    )


def _add_states(parser: argparse.ArgumentParser) -> None:
    """Where the training continues from, and what it leaves behind."""
    path, every = partial(parser.add_argument, type=Path), partial(parser.add_argument, type=int, metavar="N")
    path("--load", help="continue from the checkpoint in this folder, or the newest of several")
    path("--save", help="write a checkpoint into this folder after the last iteration")
    path("--weights", help="start with the weights in this file or folder (safetensors, torch)")
    path("--save-weights", help="write the weights into this folder, by the model's own names")
    kept = "write checkpoints into folders of this folder on the way"
    path("--checkpoint", default=os.environ.get(CHECKPOINTS_VARIABLE), help=kept)
    recipe = "go on as this recipe says: every layer from its checkpoint; --steps then counts all iterations"
    path("--recipe", default=os.environ.get(RECIPE_VARIABLE), help=recipe)
    every("--checkpoint-every", default=0, help="after every N iterations")
    copies = "keep copies of the state in this folder, which every host has in its memory (/dev/shm)"
    path("--copies", default=os.environ.get(COPIES_VARIABLE), help=copies)
    every("--copy-every", default=0, help="after every N iterations")
    every("--keep", default=2, help="keep the newest N checkpoints (default 2)")
    resumed = "continue from the newest checkpoint in --checkpoint, if there is one; --steps then counts all iterations"
    parser.add_argument("--resume", action="store_true", help=resumed)


def _require_sense(options: argparse.Namespace) -> None:
    if options.plan is None and not options.check:
        raise ValueError("no plan is given; name its document first, or give --check")
    if options.steps < 1:
        raise ValueError(f"--steps {options.steps} is not positive; give 1 or more")
    for name in ("checkpoint_every", "copy_every", "evaluate_every", "check_every"):
        if getattr(options, name) < 0:
            raise ValueError(
                f"--{name.replace('_', '-')} {getattr(options, name)} is negative; give 0 for never, or more"
            )
    if options.keep < 1:
        raise ValueError(f"--keep {options.keep} is not positive; give 1 or more")
    if (options.checkpoint_every > 0 or options.resume) and options.checkpoint is None:
        raise ValueError("--checkpoint-every and --resume need a folder; add --checkpoint FOLDER")
    if options.copy_every > 0 and options.copies is None:
        raise ValueError("--copy-every needs a folder; add --copies FOLDER, one in memory")
    if options.resume and options.load is not None:
        raise ValueError("--resume and --load both state where to continue; give one of them")
    order = _order(options)
    leads_nowhere = order is not None and order.checkpoint is None and order.copies is None
    if leads_nowhere and not options.resume and options.load is None:
        raise ValueError(f"{options.recipe}: names no checkpoint; add --load FOLDER")


def _order(options: argparse.Namespace) -> RecipeOrder | None:
    return None if options.recipe is None else read_recipe(options.recipe)


def _choices(options: argparse.Namespace) -> Choices:
    more = {"number of steps": str(options.steps), "checkpoints": f"every {options.checkpoint_every}"}
    more |= {"copies": f"every {options.copy_every}"}
    more |= {"evaluation": f"every {options.evaluate_every}", "on_nonfinite": str(options.on_nonfinite)}
    order = _order(options)
    more["recipe"] = "none" if order is None else order.sha256
    return Choices(
        groups=options.groups,
        pins=not options.no_pin,
        device=options.device,
        cluster=options.cluster,
        timeout_s=options.timeout,
        check_every=options.check_every,
        fully_shard=options.fully_shard,
        more=more,
    )


def _load(options: argparse.Namespace) -> Training:
    training = load_training(options.model)
    if training.not_compared:
        sys.stderr.write(f"planner.execute: {tell_not_compared(training.not_compared)}\n")
    require_numbered(training.batch, steps=options.steps)
    return training if options.on_nonfinite is None else replace(training, on_nonfinite=options.on_nonfinite)


def _run(execution: Execution, options: argparse.Namespace) -> None:
    if options.weights is not None:
        load_weights(execution, options.weights)
    if options.save_weights is not None:
        require_savable(execution, options.save_weights)
    copies = options.copies if options.copy_every else None
    resumption = _go_on(execution, options)
    first = resumption.iteration
    if copies is not None:
        if resumption.source != "live copies":
            clear_copies(copies)
        keep_copy(execution, copies, iteration=first)
    end = options.steps if options.resume or options.recipe is not None else first + options.steps
    losses, iterations = _Losses(options.losses, first=first), []
    for number in range(first, end):
        iteration = execution.step(number)
        iterations.append(iteration)
        if execution.is_speaker:
            losses.note(number, iteration)
        if copies is not None and (number + 1) % options.copy_every == 0:
            keep_copy(execution, copies, iteration=number + 1)
        if options.evaluate_every and (number + 1) % options.evaluate_every == 0:
            _evaluate(execution, number=number, losses=losses)
        if options.checkpoint_every and (number + 1) % options.checkpoint_every == 0:
            write_numbered(execution, options.checkpoint, iteration=number + 1, num_kept=options.keep)
    if options.save is not None:
        save_checkpoint(execution, options.save, iteration=max(end, first))
    if options.save_weights is not None:
        save_weights(execution, options.save_weights)
    memory = execution.memory.read()
    if execution.is_speaker and iterations:
        planned = None if execution.plan.evidence is None else execution.plan.evidence.makespan_ns
        durations = [iteration.duration_ns for iteration in iterations]
        sys.stderr.write(f"{describe_time(durations, planned_ns=planned)}\n")
    _tell_memory(execution, memory)
    if copies is not None:
        clear_copies(copies)
    if options.trace is not None:
        _write_timeline(execution, options.trace, iterations=iterations, memory=memory)


def _go_on(execution: Execution, options: argparse.Namespace) -> Resumption:
    """Where it continues, the first iteration among it."""
    resumption = _resume(
        execution,
        order=_order(options),
        folder=options.checkpoint if options.resume else options.load,
        copies=options.copies,
        is_named=options.load is not None,
    )
    if execution.rank == 0:
        record_resumption(resumption)
    return resumption


class _Losses:
    """What is told of every iteration."""

    def __init__(self, path: Path | None, *, first: int) -> None:
        self.path, self.first = path, first
        self._file: TextIO | None = None

    def note(self, number: int, iteration: Iteration) -> None:
        left_out = "" if iteration.is_updated else ", no step"
        sys.stderr.write(
            f"iteration {number}: loss {iteration.loss:.6g}, {iteration.duration_ns / 1e6:.1f} ms{left_out}\n"
        )
        self.write({"iteration": number, "losses": iteration.losses, "duration_ns": iteration.duration_ns})

    def write(self, line: dict[str, Any]) -> None:
        """Add a line; what an earlier run wrote of iterations to come is taken away first."""
        if self.path is None:
            return
        if self._file is None:
            if has_earlier := self.first > 0 and self.path.is_file():
                put_whole(self.path, self._earlier(self.path))
            # Who reads a pipe reads to its end: it is opened once.
            self._file = self.path.open("a" if has_earlier else "w", encoding="utf-8", buffering=1)
        self._file.write(json.dumps(line) + "\n")

    def _earlier(self, path: Path) -> str:
        """Lines of the iterations before the first; the last one of a run that was killed may be cut off."""
        lines = path.read_text(encoding="utf-8").split("\n")[:-1]
        try:
            return "".join(f"{line}\n" for line in lines if json.loads(line)["iteration"] < self.first)
        except (ValueError, KeyError, TypeError):
            raise ValueError(f"{path}: holds other lines than losses; name another file with --losses") from None


def _evaluate(execution: Execution, *, number: int, losses: _Losses) -> None:
    execution.log.note("the evaluation of all ranks")
    found = execution.evaluate(number)
    execution.log.note("")
    if execution.is_speaker:
        sys.stderr.write(f"iteration {number}: evaluated, loss {sum(found) / len(found):.6g}\n")
        losses.write({"iteration": number, "evaluation": found})


def _tell_memory(execution: Execution, used: MemoryUsed | None) -> None:
    """Peak memory of every device beside the plan's; a collective call."""
    devices, evidence = execution.layout.devices, execution.plan.evidence
    whole = {number for number, stage in enumerate(execution.plan.stages) if stage.shard == "optimizer"}
    fully = ", ".join(map(str, sorted(execution.preparation.fully_sharded & whole)))
    execution.log.note("the peaks of memory")
    everyone: list[MemoryUsed | None] = gather(used)
    execution.log.note("")
    if not execution.is_speaker:
        return
    for device, found in zip(devices, everyone, strict=True):
        if found is not None:
            planned = "" if evidence is None else f", planned {evidence.peak_bytes.get(device, 0) / 2**20:,.1f} MiB"
            planned += " beside the device's reserve" if planned and found.source == "resident set" else ""
            sys.stderr.write(f"{device}: peak memory {found.peak_bytes / 2**20:,.1f} MiB ({found.source}){planned}\n")
    if fully:
        sys.stderr.write(
            f"fully sharded stages ({fully}): the plan counts their weights and gradients whole on every replica, and "
            "no time for gathering and reducing in F and B\n"
        )


def _write_timeline(
    execution: Execution, folder: Path, *, iterations: Sequence[Iteration], memory: MemoryUsed | None
) -> None:
    """A file per rank, and from rank 0 the merged trace."""
    rank, devices = execution.rank, execution.layout.devices
    folder.mkdir(parents=True, exist_ok=True)
    mine = [iteration.actions for iteration in iterations]
    times = [iteration.times for iteration in iterations]
    size = len(begins := gather(times[0].begin_ns if times else 0))
    of_run = {"run": begins[0], "world_size": size, "num_stages": len(execution.plan.stages)}
    document = render_rank(rank, devices[rank], iterations=mine, times=times, memory=memory, of_run=of_run)
    put_whole(folder / f"rank{rank}.json", document)
    everyone: list[Any] | None = [None] * len(devices) if rank == 0 else None
    execution.log.note("the merging of timelines")
    distributed.gather_object(mine, everyone)
    execution.log.note("")
    if everyone is not None:
        merged = [dict(zip(devices, rows, strict=True)) for rows in zip(*everyone, strict=True)]
        put_whole(folder / "timeline.json", render_executed_trace(merged))
        for old in folder.glob("rank*.json"):
            if (number := old.stem.removeprefix("rank")).isdecimal() and int(number) >= size:
                old.unlink()  # of an earlier run


def _resume(
    execution: Execution, *, order: RecipeOrder | None, folder: Path | None, copies: Path | None, is_named: bool
) -> Resumption:
    """Continue as a recipe orders, or from the newest checkpoint in a folder; a collective call.

    `copies`: folder of the live copies; `is_named`: that the folder has a checkpoint is not in doubt. Raises ValueError
    if the recipe is for another plan, or wants another iteration than its checkpoint has.
    """
    if order is not None:
        require_fit(order, execution.plan)
        if order.copies is not None and copies is not None:
            number = restore_copies(execution, copies, order=order.copies, since=order.iteration or 0)
            if number is not None:
                return Resumption(iteration=number, source="live copies", storage_bytes=0)
        folder, is_named = order.checkpoint or folder, is_named or order.checkpoint is not None
    found: list[Any] = [None if folder is None else find_newest(folder)]  # as rank 0 sees it
    distributed.broadcast_object_list(found)
    place = found[0] or (folder if is_named else None)
    if place is None:
        return Resumption(iteration=0, source="beginning", storage_bytes=0)
    reader = CountingReader(place)
    number = load_checkpoint(execution, place, reader=reader)
    if order is not None and order.iteration not in (None, number):
        raise ValueError(
            f"{place}: was written after {number} iterations, but the recipe needs {order.iteration}; "
            "give the checkpoint it was made for"
        )
    return Resumption(iteration=number, source="checkpoint", storage_bytes=sum(gather(reader.num_bytes)))
