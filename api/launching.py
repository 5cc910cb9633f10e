"""From what was typed to a job that a launcher takes, and everything that is done with it afterwards."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TextIO

from api.failures import Exit, InputError
from api.inputs import read_plan, reading
from planner.document import plan_sha256, render_plan
from planner.launch.job_commands import Submitted, cancel_command, logs_command, status_command
from planner.launch.kubernetes import Kind, PodNeeds, plan_path, render_kubernetes
from planner.launch.launch_job import Command, LaunchJob, LaunchSubmission, make_job_name
from planner.launch.rank_mapping import place_ranks
from planner.plan import Plan

FOLDERS = "pipeplan-jobs"
"""Where the folders of jobs are made unless they are named."""
RECORD = "launch.json"
"""The file of a job's folder that says what was submitted."""
_KEEPER = 'trap : TERM; folder=$1; number=$2; shift 2; "$@" >>"$folder/log" 2>&1; echo $? >"$folder/exit-$number"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A job with its documents and its folder."""

    job: LaunchJob
    """What is launched."""
    plan_text: str
    """The plan, as it travels."""
    cluster_text: str | None
    """The cluster, where the plan brings none along."""
    folder: Path
    """Where everything about the job stands, as an absolute path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Whereabouts:
    """Where a job finds its documents and its machines, as typed."""

    cluster: str | None
    """File of the cluster, for a plan that brings none along."""
    folder: str | None
    """The job's folder; None: one of its name below `pipeplan-jobs`."""
    hosts: Sequence[str]
    """`PLANNED=REAL`, for hosts with another name than in the plan."""
    plan_url: str | None
    """Where the processes fetch the plan, if not from the folder."""


def make_launch(
    source: str,
    program: Sequence[str],
    *,
    name: str | None,
    where: Whereabouts,
    python: str | None,
    on_processors: bool,
) -> Launch:
    """Read the plan, seat its ranks and name the job; every mistake is an InputError."""
    plan = read_plan(source)
    digest = plan_sha256(plan)
    name = name or make_job_name(f"{'plan' if source == '-' else Path(source).stem} {digest[:8]}")
    place = Path(where.folder or f"{FOLDERS}/{name}").absolute()
    names = _host_names(where.hosts)
    with reading():
        cluster_text = None if where.cluster is None else Path(where.cluster).read_text(encoding="utf-8")
        job = LaunchJob(
            name=name,
            placement=place_ranks(plan, _places(plan, cluster_text, source=source)),
            program=tuple(program),
            plan_at=where.plan_url or str(place / "plan.json"),
            plan_sha256=digest,
            cluster_at=None if cluster_text is None else str(place / "cluster.json"),
            host_names=names,
            python=python or "python3",
            on_processors=on_processors,
        )
        if unknown := sorted(set(names) - set(job.placement.hosts)):
            raise ValueError(f"--host {unknown[0]}: the plan uses the hosts {', '.join(job.placement.hosts)}")
    return Launch(job=job, plan_text=render_plan(plan), cluster_text=cluster_text, folder=place)


def _host_names(pairs: Sequence[str]) -> dict[str, str]:
    names = {}
    for pair in pairs:
        planned, equals, real = pair.partition("=")
        if not (planned and equals and real):
            raise InputError(f"--host {pair}: write PLANNED=REAL, e.g. --host h0=node17")
        names[planned] = real
    return names


def _places(plan: Plan, cluster_text: str | None, *, source: str) -> dict[str, tuple[str, int]]:
    """Host, and index there, of every device; without any cluster all devices are on one host."""
    from planner.embedded_document import enclosed_tree
    from planner.execute.placement import hosts_of, parse_hosts

    if cluster_text is not None:
        return parse_hosts(cluster_text)
    tree = enclosed_tree(plan, source=source)
    if tree is None:
        raise InputError(f"{source}: brings no cluster along; add --cluster FILE")
    return hosts_of(tree["cluster"], source=source)


def write_files(launch: Launch, submission: LaunchSubmission) -> None:
    """Fill the job's folder; refuses one whose job may still be running."""
    folder = launch.folder
    if (folder / RECORD).exists():
        state = describe_status(read_submitted(folder), folder)
        if not state.startswith(("ended", "gone")):
            raise InputError(f"{folder}: has a job ({state}); cancel it, or name another folder with --folder")
    with reading():
        folder.mkdir(parents=True, exist_ok=True)
        for old in [*folder.glob("exit*"), folder / "log"]:
            old.unlink(missing_ok=True)
        (folder / "plan.json").write_text(launch.plan_text, encoding="utf-8")
        if launch.cluster_text is not None:
            (folder / "cluster.json").write_text(launch.cluster_text, encoding="utf-8")
        for name, text in submission.files.items():
            (folder / name).write_text(text, encoding="utf-8")


def start_locally(launch: Launch, submission: LaunchSubmission) -> tuple[Command, ...]:
    """Write the job's files; returns the commands as they run from here: those of other hosts through ssh."""
    from planner.launch.torchrun import over_ssh

    write_files(launch, submission)
    here = os.getcwd()
    return tuple(
        command if command.host in (None, socket.gethostname(), "localhost") else over_ssh(command, folder=here)
        for command in submission.commands
    )


def render_pods(launch: Launch, *, kind: Kind, needs: PodNeeds, is_fetched: bool) -> tuple[Launch, LaunchSubmission]:
    """The Kubernetes job, and the launch with the plan where the pods find it."""
    if launch.cluster_text is not None:
        raise InputError("--cluster: a pod knows the plan alone; plan again, so that the plan brings its cluster along")
    text = None if is_fetched else launch.plan_text
    with reading():
        if text is not None:
            launch = replace(launch, job=replace(launch.job, plan_at=plan_path(text)))
        return launch, render_kubernetes(launch.job, kind=kind, needs=needs, plan_text=text, folder=str(launch.folder))


def describe_start(submitted: Submitted, folder: Path) -> str:
    """What is said when a job has been handed over."""
    number = f" {submitted.number}" if submitted.number else ""
    return f"{submitted.launcher} has {submitted.name}{number}; see `pipeplan job status {folder}`"


def _remember(submitted: Submitted, folder: Path) -> None:
    (folder / RECORD).write_text(json.dumps(asdict(submitted), indent=1) + "\n", encoding="utf-8")


def read_submitted(folder: Path) -> Submitted:
    """What stands in the folder of a job; InputError if nothing does."""
    from profiles.validation import validate

    if not (folder / RECORD).exists():
        raise InputError(f"{folder}: no job was launched from here; `pipeplan launch` names the folder")
    with reading():
        return validate(Submitted, json.loads((folder / RECORD).read_text(encoding="utf-8")), source=str(folder))


def submit(submission: LaunchSubmission, *, submitted: Submitted, folder: Path) -> Submitted:
    """Hand the job to Slurm or Kubernetes."""
    from planner.launch.slurm import find_job_id

    (command,) = submission.commands
    answer = _ask(command)
    if submitted.launcher == "slurm":
        with reading():
            submitted = replace(submitted, number=find_job_id(answer))
    _remember(submitted, folder)
    return submitted


def _ask(command: Command) -> str:
    """Run a command of the launcher; its refusal is the user's to read."""
    try:
        done = subprocess.run(
            command.arguments,
            env=os.environ | dict(command.environment),
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
    except FileNotFoundError:
        raise InputError(f"{command.arguments[0]} is not installed here; print the job with --dry-run") from None
    if done.returncode:
        raise InputError(f"{command.arguments[0]}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def run_agents(commands: Sequence[Command]) -> int:
    """Run torchrun's agents until all have ended; one that fails ends the others. Returns the first bad exit code."""
    agents = [_start(command) for command in commands]
    code = 0
    try:
        while any(agent.poll() is None for agent in agents):
            code = code or next((agent.returncode for agent in agents if agent.returncode), 0)
            if code:
                break
            time.sleep(0.05)
    finally:
        for agent in agents:
            if agent.poll() is None:
                agent.terminate()
        for agent in agents:
            agent.wait()
    return code or next((agent.returncode for agent in agents if agent.returncode), 0)


def detach_agents(commands: Sequence[Command], *, submitted: Submitted, folder: Path) -> Submitted:
    """Leave torchrun's agents running; what they say goes to the folder's log, their exit codes beside it."""
    processes = []
    for number, command in enumerate(commands):
        kept = ("/bin/sh", "-c", _KEEPER, "sh", str(folder), str(number), *command.arguments)
        agent = _leave(kept, os.environ | dict(command.environment))
        processes.append((agent, _start_time(agent) or 0))
    submitted = replace(submitted, processes=tuple(processes))
    _remember(submitted, folder)
    return submitted


def _start(command: Command) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(command.arguments, env=os.environ | dict(command.environment), stdin=subprocess.DEVNULL)


def _leave(arguments: tuple[str, ...], environment: Mapping[str, str]) -> int:
    """Start a process in a session of its own that outlives this one; returns its number."""
    nothing = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in range(3)]
    return os.posix_spawn(arguments[0], arguments, environment, file_actions=nothing, setsid=True)


def _start_time(process: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it is no more, or only waits to be buried."""
    try:
        fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def describe_status(submitted: Submitted, folder: Path) -> str:
    """How the job is, in a line: what the launcher says, or `ended with N`, or `gone`."""
    if submitted.launcher == "torchrun":
        codes = sorted(int(file.read_text() or 1) for file in folder.glob("exit-*"))
        if len(codes) == len(submitted.processes):
            return f"ended with {next((code for code in codes if code), 0)}"
        alive = sum(_start_time(process) == start for process, start in submitted.processes)
        return f"running ({alive} agents)" if alive else "gone without an exit code: killed, or the machine restarted"
    if submitted.launcher == "slurm" and (folder / "exit").exists():
        return f"ended with {(folder / 'exit').read_text().strip()}"
    try:
        return _ask(Command(arguments=status_command(submitted, folder=str(folder)))).strip() or "gone"
    except InputError as error:
        if submitted.launcher == "slurm" and "Invalid job id" in str(error):
            return "gone: Slurm no longer knows it"
        raise


def show_logs(submitted: Submitted, folder: Path, *, follow: bool, to: TextIO) -> int:
    """Pass on what the processes say; returns the exit code of whoever says it."""
    command = logs_command(submitted, folder=str(folder), follow=follow)
    if submitted.launcher != "kubernetes" and not follow:
        log = folder / "log"
        to.write(log.read_text(encoding="utf-8", errors="replace") if log.exists() else "")
        return Exit.DONE
    try:
        return subprocess.call(command)
    except FileNotFoundError:
        raise InputError(f"{command[0]} is not installed here") from None


def cancel(submitted: Submitted, folder: Path) -> None:
    """End the job."""
    if submitted.launcher != "torchrun":
        _ask(Command(arguments=cancel_command(submitted, folder=str(folder))))
        return
    for process, start in submitted.processes:
        if _start_time(process) == start:
            os.killpg(process, signal.SIGTERM)


def own_python() -> str:
    """The interpreter that runs this, which has torch if this installation has."""
    return sys.executable
