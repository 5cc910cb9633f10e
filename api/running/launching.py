"""From what was typed to a job that a launcher takes, and everything that is done with it afterwards."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from api.failures import Exit, InputError
from api.inputs import read_plan, reading
from api.running.patch_files import read_patches
from planner.document import plan_sha256, render_plan
from planner.execute.record.rank_record import start_ticks
from planner.launch.cluster_facts import read_cluster_facts
from planner.launch.job_commands import LaunchRequest, Submitted, cancel_command, logs_command, status_command
from planner.launch.kubernetes import PodNeeds, plan_path, render_kubernetes
from planner.launch.launch_job import Command, LaunchJob, LaunchSubmission, make_job_name
from planner.launch.rank_mapping import place_ranks
from planner.launch.ray_train import CLUSTER_PATH, PLAN_PATH, RayNeeds, describe_ray_job, find_ray_number, render_ray
from planner.launch.skypilot import SkyNeeds, describe_sky_job, render_sky, sky_plan_path
from planner.launch.slurm import describe_slurm_job, find_job_id, render_slurm
from planner.launch.torchrun import over_ssh, render_torchrun
from planner.option_values import Controller
from planner.plan import Plan
from profiles.documents.whole_file import write_whole

FOLDERS = "pipeplan-jobs"
"""Where the folders of jobs are made unless they are named."""
RECORD = "launch.json"
"""The file of a job's folder that says what was submitted."""
_REQUEST = "request.json"
"""The file of a job's folder that says what it was launched with."""
_CANCELLED = "cancelled"
"""The file of a job's folder that says that it was asked to end before it was over."""
_KEEPER = 'trap : TERM; folder=$1; number=$2; shift 2; "$@" >>"$folder/log" 2>&1; echo $? >"$folder/exit-$number"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A job with its documents and its folder."""

    job: LaunchJob
    plan_text: str
    """The plan, as it travels."""
    cluster_text: str | None
    """The cluster, where the plan brings none along."""
    folder: Path
    """Where everything about the job stands, as an absolute path."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPaths:
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
    where: JobPaths,
    python: str | None,
    on_processors: bool,
) -> Launch:
    """Read the plan, place its ranks and name the job; every mistake is an InputError."""
    from planner.execute.table.placement import hosts_of, read_host_names

    plan = read_plan(source)
    digest = plan_sha256(plan)
    name = name or make_job_name("plan" if source == "-" else Path(source).stem, suffix=digest[:8])
    place = Path(where.folder or f"{FOLDERS}/{name}").absolute()
    with reading():
        names = read_host_names(where.hosts)
        cluster_text = None if where.cluster is None else Path(where.cluster).read_text(encoding="utf-8")
        cluster, where_from = _cluster(plan, cluster_text, source=source)
        places = hosts_of(cluster, source=where_from)
        job = LaunchJob(
            name=name,
            placement=place_ranks(plan, places),
            program=tuple(program),
            plan_at=where.plan_url or str(place / "plan.json"),
            plan_sha256=digest,
            cluster_at=None if cluster_text is None else str(place / "cluster.json"),
            cluster=read_cluster_facts(cluster, places),
            host_names=names,
            python=python or "python3",
            on_processors=on_processors,
        )
        if unknown := sorted(set(names) - {host for host, _ in places.values()}):
            raise ValueError(
                f"--host {unknown[0]}: is no host of the plan; give one of {', '.join(job.placement.hosts)}"
            )
    return Launch(job=job, plan_text=render_plan(plan), cluster_text=cluster_text, folder=place)


def _cluster(plan: Plan, cluster_text: str | None, *, source: str) -> tuple[Any, str]:
    """The cluster as parsed, and what messages call it."""
    from planner.documents.embedded_document import enclosed_tree
    from planner.execute.table.placement import load_cluster_tree

    if cluster_text is not None:
        return load_cluster_tree(cluster_text), "cluster"
    tree = enclosed_tree(plan, source=source)
    if tree is None:
        raise InputError(f"{source}: contains no cluster; add --cluster FILE")
    return tree["cluster"], source


def write_files(launch: Launch, submission: LaunchSubmission) -> None:
    """Fill the job's folder; refuses one whose job may still be running."""
    folder = launch.folder
    if (folder / RECORD).exists():
        state = describe_status(read_submitted(folder), folder)
        if not is_over(state):
            raise InputError(f"{folder}: already has a job ({state}); cancel it, or name another folder with --folder")
    with reading():
        folder.mkdir(parents=True, exist_ok=True)
        for old in [*folder.glob("exit*"), folder / "log"]:
            old.unlink(missing_ok=True)
        write_whole(folder / "plan.json", launch.plan_text)
        if launch.cluster_text is not None:
            write_whole(folder / "cluster.json", launch.cluster_text)
        _write_submission(submission, folder)


def _write_submission(submission: LaunchSubmission, folder: Path) -> None:
    for name, text in submission.files.items():
        write_whole(folder / name, text)


def as_started_here(submission: LaunchSubmission) -> tuple[Command, ...]:
    """The commands as they run from here: those of other hosts through ssh."""
    here = os.getcwd()
    return tuple(
        command if command.host in (None, socket.gethostname(), "localhost") else over_ssh(command, folder=here)
        for command in submission.commands
    )


def render_beside(launch: Launch, *, request: LaunchRequest, is_attended: bool = False) -> LaunchSubmission:
    """What torchrun or Slurm is given, whose processes see the job's folder."""
    master = request.master or None
    with reading():
        if request.launcher == "torchrun":
            return render_torchrun(launch.job, port=request.port, master=master, is_here=request.is_here)
        return render_slurm(
            launch.job,
            folder=str(launch.folder),
            master=master,
            with_gpus=request.with_gpus,
            options=request.options,
            is_attended=is_attended,
        )


def render_pods(
    launch: Launch, *, kind: Controller, needs: PodNeeds, is_fetched: bool, patches: Sequence[str] = ()
) -> tuple[Launch, LaunchSubmission]:
    """The Kubernetes job, and the launch with the plan where the pods find it."""
    if launch.cluster_text is not None:
        raise InputError("--cluster: pods read the plan only; plan again, so that the plan contains its cluster")
    text = None if is_fetched else launch.plan_text
    with reading():
        if text is not None:
            launch = replace(launch, job=replace(launch.job, plan_at=plan_path(text)))
        return launch, render_kubernetes(
            launch.job,
            kind=kind,
            needs=needs,
            plan_text=text,
            folder=str(launch.folder),
            patches=read_patches(patches),
        )


def render_sky_task(
    launch: Launch, *, needs: SkyNeeds, is_fetched: bool, patches: Sequence[str]
) -> tuple[Launch, LaunchSubmission]:
    """The SkyPilot task, and the launch with the plan where the nodes find it."""
    if launch.cluster_text is not None:
        raise InputError("--cluster: nodes read the plan only; plan again, so that the plan contains its cluster")
    with reading():
        if not is_fetched:
            launch = replace(launch, job=replace(launch.job, plan_at=sky_plan_path(launch.job.name)))
        given = read_patches(patches)
        return launch, render_sky(
            launch.job, needs=needs, folder=str(launch.folder), is_fetched=is_fetched, patches=given
        )


def render_ray_job(
    launch: Launch, *, needs: RayNeeds, is_fetched: bool, patches: Sequence[str]
) -> tuple[Launch, LaunchSubmission]:
    """The Ray job, and the launch with the documents where Ray's workers put them."""
    cluster_at = None if launch.cluster_text is None else CLUSTER_PATH
    plan_at = launch.job.plan_at if is_fetched else PLAN_PATH
    with reading():
        launch = replace(launch, job=replace(launch.job, plan_at=plan_at, cluster_at=cluster_at))
        return launch, render_ray(launch.job, needs=needs, folder=str(launch.folder), patches=read_patches(patches))


def describe_start(submitted: Submitted, folder: Path) -> str:
    """What is said when a job has been handed over."""
    number = f" {submitted.number}" if submitted.number else ""
    return f"{submitted.launcher} has {submitted.name}{number}; see `pipeplan job status {folder}`"


def _remember(submitted: Submitted, folder: Path) -> None:
    (folder / _CANCELLED).unlink(missing_ok=True)
    write_whole(folder / RECORD, json.dumps(asdict(submitted), indent=1) + "\n")


def read_submitted(folder: Path) -> Submitted:
    """What stands in the folder of a job; InputError if nothing does."""
    from profiles.documents.validation import validate

    if not (folder / RECORD).exists():
        raise InputError(f"{folder}: no job was launched from this folder; give the one that `pipeplan launch` printed")
    with reading():
        return validate(Submitted, json.loads((folder / RECORD).read_text(encoding="utf-8")), source=str(folder))


def remember_request(launch: Launch, request: LaunchRequest) -> None:
    """What `pipeplan job heal` launches again."""
    write_whole(launch.folder / _REQUEST, json.dumps(asdict(request), indent=1) + "\n")


def read_request(folder: Path) -> LaunchRequest:
    """What stands in the folder of a job; InputError if nothing does."""
    from profiles.documents.validation import validate

    if not (folder / _REQUEST).exists():
        raise InputError(f"{folder}: it does not record what was launched; launch the new plan yourself")
    with reading():
        return validate(LaunchRequest, json.loads((folder / _REQUEST).read_text(encoding="utf-8")), source=str(folder))


def submit_again(submission: LaunchSubmission, *, submitted: Submitted, folder: Path) -> Submitted:
    """Hand over the log in the folder of a job that is over."""
    (folder / "exit").unlink(missing_ok=True)
    _write_submission(submission, folder)
    return submit(submission, submitted=submitted, folder=folder)


def submit(submission: LaunchSubmission, *, submitted: Submitted, folder: Path) -> Submitted:
    """Hand the job to its launcher."""
    (command,) = submission.commands
    answer = ask(command)
    find = {"slurm": find_job_id, "ray": find_ray_number}.get(submitted.launcher)
    if find is not None:
        with reading():
            submitted = replace(submitted, number=find(answer))
    _remember(submitted, folder)
    return submitted


def ask(command: Command) -> str:
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
        raise InputError(
            f"{command.arguments[0]}: {done.stderr.strip() or f'exit code {done.returncode}'}; "
            "correct what it names, and try again"
        )
    return done.stdout


def detach_agents(commands: Sequence[Command], *, submitted: Submitted, folder: Path) -> Submitted:
    """Leave torchrun's agents running; what they say goes to the folder's log, their exit codes beside it."""
    processes = []
    for number, command in enumerate(commands):
        kept = ("/bin/sh", "-c", _KEEPER, "sh", str(folder), str(number), *command.arguments)
        agent = _leave(kept, os.environ | dict(command.environment))
        processes.append((agent, start_ticks(agent) or 0))
    submitted = replace(submitted, processes=tuple(processes))
    _remember(submitted, folder)
    return submitted


def _leave(arguments: tuple[str, ...], environment: Mapping[str, str]) -> int:
    """Start a process in a session of its own that outlives this one; returns its number."""
    nothing = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in range(3)]
    return os.posix_spawn(arguments[0], arguments, environment, file_actions=nothing, setsid=True)


def describe_status(submitted: Submitted, folder: Path) -> str:
    """How the job is, in a line: what the launcher says, or `ended with N`, or `ended: CANCELLED`, or `gone`."""
    state = _ask_status(submitted, folder)
    is_unexplained = state.startswith(("ended with", "gone")) and state != "ended with 0"
    return "ended: CANCELLED" if is_unexplained and (folder / _CANCELLED).exists() else state


def is_over(state: str) -> bool:
    """Whether a job of this status has no process any more."""
    return state.startswith(("ended", "gone"))


def _ask_status(submitted: Submitted, folder: Path) -> str:
    if submitted.launcher == "torchrun":
        codes = sorted(int(file.read_text() or 1) for file in folder.glob("exit-*"))
        if len(codes) == len(submitted.processes):
            return f"ended with {next((code for code in codes if code), 0)}"
        alive = sum(start_ticks(process) == start for process, start in submitted.processes)
        return f"running ({alive} agents)" if alive else "gone without an exit code: killed, or the machine restarted"
    try:
        state = _read_status(submitted, ask(Command(arguments=status_command(submitted, folder=str(folder)))))
    except InputError as error:
        if submitted.launcher != "slurm" or "Invalid job id" not in str(error):
            raise
        state = "gone: Slurm no longer lists it"
    # Slurm first: the script of a job that Slurm ended may still have written the code of its dying tasks.
    if state.startswith(("ended: COMPLETED", "ended: FAILED", "gone: Slurm")) and (folder / "exit").exists():
        return f"ended with {(folder / 'exit').read_text().strip()}"
    return state


def _read_status(submitted: Submitted, answer: str) -> str:
    """What the launcher's answer says, in a line."""
    with reading():
        match submitted.launcher:
            case "skypilot":
                return describe_sky_job(answer, name=submitted.name)
            case "slurm":
                return describe_slurm_job(answer)
            case "ray":
                return describe_ray_job(answer)
            case "kubernetes" | "torchrun":
                return answer.strip() or "gone"


def show_logs(submitted: Submitted, folder: Path, *, follow: bool, to: TextIO) -> int:
    """Pass on what the processes say; returns the exit code of the one that says it."""
    command = logs_command(submitted, folder=str(folder), follow=follow)
    if submitted.launcher in ("torchrun", "slurm") and not follow:
        log = folder / "log"
        to.write(log.read_text(encoding="utf-8", errors="replace") if log.exists() else "")
        return Exit.DONE
    try:
        return subprocess.call(command)
    except FileNotFoundError:
        raise InputError(f"{command[0]} is not installed here; install it, or use a host that has it") from None


def cancel(submitted: Submitted, folder: Path) -> None:
    """End the job; its status says so once it is over."""
    is_over = any(folder.glob("exit*"))
    if submitted.launcher != "torchrun":
        ask(Command(arguments=cancel_command(submitted, folder=str(folder))))
    for process, start in submitted.processes:
        if start_ticks(process) == start:
            os.killpg(process, signal.SIGTERM)
    if not is_over:
        (folder / _CANCELLED).touch()


def own_python() -> str:
    """The interpreter that runs this, which has torch if this installation has."""
    return sys.executable
