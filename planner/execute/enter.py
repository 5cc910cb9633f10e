"""`python -m planner.execute.enter PLAN --sha256 HASH -- train.py ...`: one process of a job takes its place.

Whatever launcher started it, it checks the plan's content hash and this host against the plan, finds out which rank of
the plan it is, says so in the variables that torch.distributed reads (RANK, LOCAL_RANK, WORLD_SIZE), names the plan in
PIPEPLAN_PLAN, and then becomes the program. Needs nothing but the standard library.
"""

import argparse
import gzip
import os
import runpy
import sys
import tempfile
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from planner.document import parse_plan, plan_sha256
from planner.documents.embedded_document import enclosed_tree
from planner.execute.record.rank_record import keep_record
from planner.execute.record.resumption_record import RECORD_VARIABLE
from planner.execute.run.host_check import expect_world, find_world_differences, look_around
from planner.execute.run.kept_memory import restart_uncached
from planner.execute.table.last_words import say_last
from planner.execute.table.layout import make_layout
from planner.execute.table.placement import DevicePosition, find_position, hosts_of, load_cluster_tree, read_host_names
from planner.plan import Plan

PLAN_VARIABLE = "PIPEPLAN_PLAN"
"""Where the program finds the path of the plan."""
_DEVICE_VARIABLE = "PIPEPLAN_DEVICE"
"""Where the program finds the name of the device that it drives."""
CHECKPOINTS_VARIABLE = "PIPEPLAN_CHECKPOINTS"
"""Where the program finds the folder of the job's checkpoints, if the launcher named one."""
COPIES_VARIABLE = "PIPEPLAN_COPIES"
"""Where the program finds the folder in memory for copies of its state, if the launcher named one."""
RECIPE_VARIABLE = "PIPEPLAN_RECIPE"
"""Where the program finds the recipe by which it continues, if there is one."""
_BAD_WORLD = 2
"""Exit code when the program was not started because something does not fit."""
_SLURM = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID", "WORLD_SIZE": "SLURM_NTASKS"}


def main(arguments: Sequence[str] | None = None) -> None:
    """Take the place and become the program; exit with 2 and one message if the world is not the plan's."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    options, program = _parse(given)
    try:
        position, devices, path = _enter(options, _counted_by_slurm(os.environ))
    except (ValueError, OSError) as error:
        _refuse(str(error))
    told = {
        "RANK": position.rank,
        "LOCAL_RANK": position.index,
        "WORLD_SIZE": len(devices),
        PLAN_VARIABLE: path,
        _DEVICE_VARIABLE: devices[position.rank],
        CHECKPOINTS_VARIABLE: options.checkpoints,
        COPIES_VARIABLE: options.copies,
        RECIPE_VARIABLE: options.recipe,
        RECORD_VARIABLE: options.record,
    }
    os.environ.update({name: str(value) for name, value in told.items() if value not in (None, "")})
    if options.record:
        keep_record(options.record, rank=position.rank, device=devices[position.rank], host=position.host)
    _become(program)


def _parse(given: Sequence[str]) -> tuple[argparse.Namespace, list[str]]:
    parser = argparse.ArgumentParser(prog="planner.execute.enter", description="Start one process of a planned job.")
    parser.add_argument("plan", help="path or http(s) address of the plan, plain or gzipped")
    parser.add_argument("--sha256", required=True, help="content hash that the plan must have")
    parser.add_argument("--cluster", type=Path, help="cluster or workload document, for plans without a cluster")
    parser.add_argument("--host", action="append", default=[], metavar="PLANNED=REAL", help="another name of a host")
    parser.add_argument("--here", action="store_true", help="all of the plan's devices are on this host")
    parser.add_argument(
        "--processors", action="store_true", help="run on processors, even where there are accelerators"
    )
    parser.add_argument("--record", type=Path, help="write into this folder how the process ended")
    parser.add_argument("--checkpoints", help="folder of the job's checkpoints")
    parser.add_argument("--copies", help="folder in memory for copies of the job's state")
    parser.add_argument("--recipe", help="recipe by which the program goes on")
    cut = given.index("--") if "--" in given else len(given)
    if cut + 1 >= len(given):
        parser.error("what to run is missing; add -- and the program")
    return parser.parse_args(given[:cut]), list(given[cut + 1 :])


def _counted_by_slurm(environment: Mapping[str, str]) -> dict[str, str]:
    """Slurm's own numbers under the names that torchrun gives them, where torchrun has not."""
    missing = {name: environment[slurm] for name, slurm in _SLURM.items() if slurm in environment}
    return missing | dict(environment) if "RANK" not in environment else dict(environment)


def _enter(options: argparse.Namespace, environment: Mapping[str, str]) -> tuple[DevicePosition, tuple[str, ...], Path]:
    """This process's place, the device of every rank, and the plan as a file of this host."""
    path = _fetch(options.plan)
    data = path.read_bytes()
    if data[:2] == b"\x1f\x8b":
        data = gzip.decompress(data)
        path = _keep(data)
    plan = parse_plan(data, source=str(options.plan))
    if (actual := plan_sha256(plan)) != options.sha256:
        raise ValueError(
            f"{options.plan} is not the plan that was submitted: its content hash is {actual[:16]}…, not "
            f"{options.sha256[:16]}…; submit the job again"
        )
    devices = make_layout(plan).devices
    cluster = _cluster(plan, options)
    hosts = None if options.here else _rename_hosts(hosts_of(cluster, source=str(options.plan)), options.host)
    position = find_position(devices, environment, hosts=hosts)
    if differences := _world_differences(plan, cluster, options=options, position=position, hosts=hosts):
        raise ValueError(
            f"rank {position.rank} on host {position.host!r}: the job does not match the plan: {'; '.join(differences)}"
            "; start it as planned, or plan again for these hosts"
        )
    return position, devices, path


def _cluster(plan: Plan, options: argparse.Namespace) -> Any:
    if options.cluster is not None:
        return load_cluster_tree(options.cluster.read_text(encoding="utf-8"), source=str(options.cluster))
    tree = enclosed_tree(plan, source=str(options.plan))
    if tree is None and not options.here:
        raise ValueError(f"{options.plan}: contains no cluster; add --cluster FILE")
    return None if tree is None else tree["cluster"]


def _rename_hosts(hosts: Mapping[str, tuple[str, int]], names: Sequence[str]) -> dict[str, tuple[str, int]]:
    """Hosts under the names that they really have, from `PLANNED=REAL` pairs; raises ValueError for unknown ones."""
    renamed = read_host_names(names)
    known = {host for host, _ in hosts.values()}
    if unknown := sorted(set(renamed) - known):
        raise ValueError(f"--host {unknown[0]}: no host of the plan; give one of {', '.join(sorted(known))}")
    if len({renamed.get(host, host) for host in known}) < len(known):
        raise ValueError("--host: two hosts of the plan have one name; give each its own, or run with --here")
    return {device: (renamed.get(host, host), index) for device, (host, index) in hosts.items()}


def _world_differences(
    plan: Plan,
    cluster: Any,
    *,
    options: argparse.Namespace,
    position: DevicePosition,
    hosts: Mapping[str, tuple[str, int]] | None,
) -> tuple[str, ...]:
    devices = make_layout(plan).devices
    peaks = {} if plan.evidence is None else plan.evidence.peak_bytes
    if hosts is None:  # everything is here: rank r drives the r-th device
        hosts = {device: (position.host, rank) for rank, device in enumerate(devices)}
        cluster = {"devices": [{"name": device} for device in devices]}
    world = expect_world(cluster, position.host, hosts=hosts, used=devices, peak_bytes=peaks or {})
    return find_world_differences(world, look_around(os.environ), on_processors=options.processors)


def _fetch(source: str) -> Path:
    """The plan as a file of this host."""
    if not source.startswith(("http://", "https://")):
        return Path(source)
    with urllib.request.urlopen(source, timeout=60) as answer:
        return _keep(answer.read())


def _keep(data: bytes) -> Path:
    with tempfile.NamedTemporaryFile(prefix="plan-", suffix=".json", delete=False) as file:
        file.write(data)
    return Path(file.name)


def _become(program: list[str]) -> None:
    if program[0] == "-m":
        if len(program) < 2:
            _refuse("-m: which module is missing")
        sys.argv = program[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(program[1], run_name="__main__", alter_sys=True)
        return
    sys.argv = program
    sys.path.insert(0, str(Path(program[0]).resolve().parent))
    runpy.run_path(program[0], run_name="__main__")


def _refuse(message: str) -> NoReturn:
    say_last(f"planner.execute: {message}\n")
    sys.exit(_BAD_WORLD)


if __name__ == "__main__":
    restart_uncached("planner.execute.enter")
    main()
