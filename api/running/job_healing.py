"""`pipeplan job heal`: a job that nobody stayed with continues without what it lost, with one command."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from rich.console import Console

from api.failures import InputError
from api.inputs import read_plan_and_problem, reading
from api.running.attempts import slurm_down_hosts
from api.running.healing import (
    HealParams,
    iteration_of,
    newest_checkpoint,
    plan_rest,
    relaunch,
    require_program,
    with_recipe,
)
from api.running.launching import (
    RECORD,
    JobPaths,
    Launch,
    as_started_here,
    ask,
    cancel,
    describe_status,
    detach_agents,
    is_over,
    make_launch,
    read_request,
    read_submitted,
    remember_request,
    render_beside,
    submit_again,
)
from api.running.notices import notify_service
from api.running.patch_files import read_patches
from api.running.replanning import Replanned, describe_cost
from planner.launch.job_commands import LaunchRequest, Submitted, node_states_command, read_down_nodes
from planner.launch.kubernetes import CLUSTER_PATH, RECIPE_PATH, PodNeeds, plan_path, render_kubernetes
from planner.launch.launch_job import Command, LaunchSubmission
from planner.option_values import Controller
from planner.plan import Plan
from planner.problem import Problem
from planner.replanning.migration import Recipe, render_recipe
from planner.what_if.device_loss import find_lost
from profiles.documents.whole_file import write_whole
from profiles.workload import dump_cluster

END_S = 120.0
"""How long a cancelled job may take to end."""
POLL_S = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class _HealedJob:
    """The new launch of a healed job."""

    lost: tuple[str, ...]
    """Devices that are gone."""
    iteration: int | None
    """Iterations that it continues from; None where only the job sees its checkpoints."""
    recipe: Recipe
    """Moves of state for the next start."""
    again: Replanned
    """The new plan, and what it was chosen by."""
    submitted: Submitted
    """The new job."""

    def summarise(self) -> Mapping[str, Any]:
        """The same as JSON-ready data."""
        return {
            "lost": self.lost,
            "iteration": self.iteration,
            "checkpoint": self.recipe.checkpoint,
            "num_devices": len(self.again.plan.devices),
            "restored_bytes": self.recipe.restored_bytes,
            "cost": self.again.summarise_cost(),
            "launcher": self.submitted.launcher,
            "name": self.submitted.name,
            "number": self.submitted.number,
        }


def heal_job(folder: Path, *, names: Sequence[str], params: HealParams, console: Console) -> _HealedJob:
    """Plan for what is left of a job and launch it again; `names`: of lost devices or hosts, as planned or as real.

    What still runs of the job is ended first. Without names, Slurm or Kubernetes is asked which nodes are down. Raises
    InputError where nothing is known to be lost, or where the program could not continue.
    """
    request = read_request(folder)
    plan_at = folder / request.plan
    plan, problem = read_plan_and_problem(str(plan_at), None)
    lost = _find_lost(request, folder, problem=problem, plan=plan, names=names)
    notify_service("device_lost", {"lost": list(lost)}, url=None)
    launch = _launch_of(request, folder, problem=problem)
    is_seen = request.launcher != "kubernetes"
    require_program(launch.job.program)
    if not is_seen and "--resume" not in request.program:
        raise InputError("--heal: only pods see their checkpoints; add --resume to the program")
    checkpoint = newest_checkpoint(launch) if is_seen else None
    _require_own(folder, checkpoint, request=request)
    _end(folder)
    again = plan_rest(launch, plan=plan, problem=problem, lost=lost, params=params, console=console)
    checkpoint = newest_checkpoint(launch) if is_seen else None  # nothing writes any more
    launch, recipe = relaunch(launch, again, number=request.heals + 1, checkpoint=checkpoint)
    if not is_seen:
        launch = with_recipe(launch, render_recipe(recipe, again.plan), number=request.heals + 1)
    submitted = _submit(request, launch, avoided=_lost_hosts(problem, request, lost=lost))
    remember_request(launch, replace(request, plan=f"plan-{request.heals + 1}.json", heals=request.heals + 1))
    iteration = iteration_of(checkpoint) if checkpoint is not None else 0 if is_seen else None
    return _HealedJob(lost=lost, iteration=iteration, recipe=recipe, again=again, submitted=submitted)


def _find_lost(
    request: LaunchRequest, folder: Path, *, problem: Problem, plan: Plan, names: Sequence[str]
) -> tuple[str, ...]:
    planned = {real: host for host, real in request.host_names.items()}
    if not names and request.launcher in ("slurm", "kubernetes"):
        hosts = {device.host or device.name for device in problem.cluster.devices if device.name in plan.devices}
        asked = [request.host_names.get(host, host) for host in sorted(hosts)]
        is_slurm = request.launcher == "slurm"
        names = tuple(slurm_down_hosts(asked, submitted=read_submitted(folder)) if is_slurm else _down_nodes(asked))
    if not names:
        raise InputError("no lost device is known; name a device or host with --lost NAME")
    hosts_of = {device.name: device.host or device.name for device in problem.cluster.devices}
    with reading():
        asked = [planned.get(name, name) for name in names]
        gone = find_lost(problem, [name for name in asked if name not in hosts_of.values() or name in hosts_of])
    gone |= {device for device, host in hosts_of.items() if host in asked}
    return tuple(sorted(gone))


def _launch_of(request: LaunchRequest, folder: Path, *, problem: Problem) -> Launch:
    """As it was; the cluster gets a document of its own, so that devices keep their numbers on their hosts."""
    cluster = folder / "cluster.json"
    if not cluster.exists():
        write_whole(cluster, dump_cluster(problem.cluster))
    hosts = [f"{planned}={real}" for planned, real in request.host_names.items()]
    where = JobPaths(cluster=str(cluster), folder=str(folder), hosts=hosts, plan_url=None)
    return make_launch(
        str(folder / request.plan),
        request.program,
        name=read_submitted(folder).name if (folder / RECORD).exists() else None,
        where=where,
        python=request.python,
        on_processors=request.on_processors,
    )


def _lost_hosts(problem: Problem, request: LaunchRequest, *, lost: Sequence[str]) -> tuple[str, ...]:
    """Hosts that have lost all their devices, by their real names."""
    hosts_of = {device.name: device.host or device.name for device in problem.cluster.devices}
    gone = {hosts_of[name] for name in lost} - {host for name, host in hosts_of.items() if name not in lost}
    return tuple(sorted(request.host_names.get(host, host) for host in gone))


def _require_own(folder: Path, checkpoint: Path | None, *, request: LaunchRequest) -> None:
    """A program that began anew beside the checkpoints of an earlier run must not continue from those."""
    if checkpoint is None or request.heals or "--resume" in request.program or not (folder / RECORD).exists():
        return
    if checkpoint.stat().st_mtime < (folder / RECORD).stat().st_mtime:
        raise InputError(f"{checkpoint} is older than the job, which did not resume from it; remove it")


def _end(folder: Path) -> None:
    """Nothing of the old job may write checkpoints any more; waits until it is over."""
    if not (folder / RECORD).exists():
        return
    submitted = read_submitted(folder)
    if submitted.launcher == "kubernetes":
        cancel(submitted, folder)  # kubectl waits
        return
    until = time.monotonic() + END_S
    if not is_over(describe_status(submitted, folder)):
        cancel(submitted, folder)
    while not is_over(describe_status(submitted, folder)):
        if time.monotonic() > until:
            raise InputError(
                f"{folder}: the job did not end within {END_S:.0f} s of being cancelled; try again once it has ended"
            )
        time.sleep(POLL_S)


def _submit(request: LaunchRequest, launch: Launch, *, avoided: Sequence[str]) -> Submitted:
    submitted = Submitted(
        launcher=request.launcher, name=launch.job.name, namespace=request.namespace, kind=request.controller
    )
    if request.launcher == "kubernetes":
        submission = _render_pods(launch, request, avoided=avoided)
        return submit_again(submission, submitted=submitted, folder=launch.folder)
    submission = render_beside(launch, request=request)
    if request.launcher == "torchrun":
        for old in launch.folder.glob("exit-*"):
            old.unlink()
        return detach_agents(as_started_here(submission), submitted=submitted, folder=launch.folder)
    return submit_again(submission, submitted=submitted, folder=launch.folder)


def _render_pods(launch: Launch, request: LaunchRequest, *, avoided: Sequence[str]) -> LaunchSubmission:
    """The manifest of a launch as it is requested, with plan, cluster and recipe beside each other in its ConfigMap."""
    recipe = "" if launch.job.recipe_at is None else Path(launch.job.recipe_at).read_text(encoding="utf-8")
    job = replace(
        launch.job,
        plan_at=plan_path(launch.plan_text),
        recipe_at=RECIPE_PATH if recipe else None,
        cluster_at=None if launch.cluster_text is None else CLUSTER_PATH,
        record_at=None,
        checkpoints_at=None,
        copies_at=None,
    )
    needs = PodNeeds(
        image=request.image,
        namespace=request.namespace,
        with_gpus=request.with_gpus,
        max_restarts=request.max_restarts,
        avoided=tuple(avoided),
    )
    with reading():
        return render_kubernetes(
            job,
            kind=cast(Controller, request.controller),
            needs=needs,
            plan_text=launch.plan_text,
            beside={RECIPE_PATH: recipe, CLUSTER_PATH: launch.cluster_text or ""},
            patches=read_patches(request.patches),
            folder=str(launch.folder),
        )


def _down_nodes(hosts: Sequence[str]) -> dict[str, str]:
    """Those of the nodes that Kubernetes cannot use any more, and why."""
    return read_down_nodes(ask(Command(arguments=node_states_command())), hosts=hosts)


def describe_healed(healed: _HealedJob) -> list[str]:
    """For people, a line each."""
    whence = "from the newest checkpoint that the job finds"
    if healed.iteration is not None:
        whence = f"from iteration {healed.iteration}"
    number = f" {healed.submitted.number}" if healed.submitted.number else ""
    return [
        f"lost: {', '.join(healed.lost)}",
        f"{healed.submitted.launcher} has {healed.submitted.name}{number}, which goes on {whence} on "
        f"{len(healed.again.plan.devices)} devices; {healed.recipe.restored_bytes:,} bytes to restore",
        describe_cost(healed.again),
    ]
