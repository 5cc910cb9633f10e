"""`pipeplan launch` and `pipeplan job`: programs under a plan, started, asked about and ended."""

import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, NoReturn

import typer

from api.cli.options import arguments as arg
from api.cli.options.declare import healed, option, placed, written
from api.cli.options.folded_help import Commands, folded
from api.cli.output import make_console, report_json
from api.failures import InputError, as_input_errors
from planner import option_values

if TYPE_CHECKING:
    from api.running.healing import JobAttempt
    from api.running.launching import Launch
    from planner.launch.job_commands import LaunchRequest, Submitted
    from planner.launch.kueue import KueueQueue
    from planner.launch.launch_job import LaunchSubmission

commands = Commands(no_args_is_help=True, help="Run a program under a plan, every process on its device.")
jobs = Commands(no_args_is_help=True, help="Ask about a launched job, read its log, end it.")

_Patches = Annotated[
    list[str] | None,
    option("--patch FILE", "YAML or JSON that is merged over what is written (docs/how-to/launch.md); repeatable."),
]
_MaxRestarts = Annotated[int, option("--max-restarts N", "How often a host may fail.", min=0)]


class _JobOptions(NamedTuple):
    """What every launcher is told about a job."""

    cluster: arg.Cluster = None
    name: Annotated[str | None, option("--name NAME", "Name of the job; default: plan and hash.")] = None
    folder: Annotated[
        str | None,
        written(
            "--folder FOLDER", "Where plan, scripts and log stand, as all hosts see it; default: pipeplan-jobs/NAME."
        ),
    ] = None
    host: Annotated[list[str] | None, placed("--host PLANNED=REAL", "The real name of a host; repeatable.")] = None
    python: Annotated[str | None, placed("--python PATH", "The interpreter on the hosts.")] = None
    processors: Annotated[bool, placed("--processors", "Run on processors, even where there are accelerators.")] = False
    plan_url: Annotated[
        str | None, placed("--plan-url URL", "Where every process fetches the plan, instead of a file.")
    ] = None

    def make(self, plan: str, program: list[str], *, default_python: str | None = None) -> "Launch":
        """The launch of the program under the plan."""
        from api.running.launching import JobPaths, make_launch

        where = JobPaths(cluster=self.cluster, folder=self.folder, hosts=self.host or (), plan_url=self.plan_url)
        python = self.python or default_python
        return make_launch(plan, program, name=self.name, where=where, python=python, on_processors=self.processors)

    def request(self, launch: "Launch", **more: Any) -> "LaunchRequest":
        """What the job is launched with, again where devices are lost; `more`: its launcher, and what that is told."""
        from planner.launch.job_commands import LaunchRequest

        job = launch.job
        told: dict[str, Any] = {"python": job.python, "on_processors": job.on_processors, **more}
        return LaunchRequest(program=job.program, host_names=dict(job.host_names), **told)


class _HealOptions(NamedTuple):
    """Whether and how far a job is kept going."""

    heal: Annotated[
        bool,
        healed(
            "--heal",
            "Stay with the job: when a device is lost, plan for the others and continue from the newest checkpoint.",
        ),
    ] = False
    heals: Annotated[int, healed("--heals N", "How many losses are healed.", min=0)] = 3
    heal_time_limit: arg.HealTime = 5.0
    storage_rate: arg.StorageRate = 1.0
    json: arg.Json = False

    def attend(
        self, plan: str, launch: "Launch", *, cluster: str | None, start: "Callable[[Launch], JobAttempt]"
    ) -> NoReturn:
        """Stay with the job until it ends for good; exits with its code."""
        from api.inputs import require_limits
        from api.running.healing import HealParams, attend

        require_limits(time_limit_s=self.heal_time_limit)
        params = HealParams(
            most_heals=self.heals,
            search_s=self.heal_time_limit,
            bytes_per_s=self.storage_rate * 1e9,
        )
        console = make_console(is_report=False)
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the job on its way
        try:
            healed = attend(plan, launch, cluster=cluster, start=start, params=params, tell=_tell, console=console)
        finally:
            signal.signal(signal.SIGTERM, before)
        if healed.reason:
            _tell(f"not healed: {healed.reason}")
        if self.json:
            report_json(healed.summarise())
        raise typer.Exit(healed.code)


def _tell(line: str) -> None:
    print(f"pipeplan: {line}", file=sys.stderr, flush=True)


_USUAL = ("plan", "program", "dry_run", "folder", "cluster", "name", "host", "python")
"""Parameters that the help of every launcher shows."""


class _AgentOptions(NamedTuple):
    """Options of torchrun's agents."""

    detach: Annotated[bool, option("--detach", "Leave it running; see `pipeplan job`.")] = False
    here: Annotated[bool, placed("--here", "Run all processes on this machine instead of the plan's hosts.")] = False


class _MeetingOptions(NamedTuple):
    """Address of torchrun's rendezvous."""

    master_addr: arg.Master = None
    master_port: arg.MasterPort = 29500


class _SlurmOptions(NamedTuple):
    """Options of a Slurm job."""

    gpus: arg.WithGpus = False
    sbatch: Annotated[
        list[str] | None, option("--sbatch OPTION", "A further option of sbatch, e.g. --sbatch=--time=2:00:00.")
    ] = None


class _PodOptions(NamedTuple):
    """Image, controller and manifests on Kubernetes."""

    image: Annotated[str, option("--image IMAGE", "Container image with torch and pipeplan.")]
    controller: Annotated[option_values.Controller, option("--controller", "What runs the job in the cluster.")] = (
        "jobset"
    )
    namespace: Annotated[str, option("--namespace NAME", "Where the job is created.")] = "default"
    max_restarts: _MaxRestarts = 3
    kueue: Annotated[
        str | None, option("--kueue QUEUE", "Kueue's LocalQueue; it chooses nodes, whole NVLink domains alike.")
    ] = None
    kueue_level: Annotated[
        list[str] | None,
        option(
            "--kueue-level LABEL",
            "A level of its Topology, outermost first; the last: NVLink domains [default: nvidia.com/gpu.clique].",
        ),
    ] = None
    patch: _Patches = None

    def queue(self) -> "KueueQueue | None":
        """Who places the pods, if not the plan."""
        from planner.launch.kueue import NVLINK_LABEL, KueueQueue

        if self.kueue is None:
            if self.kueue_level:
                raise InputError("--kueue-level: levels matter only where Kueue places pods; add --kueue QUEUE")
            return None
        with as_input_errors():
            return KueueQueue(name=self.kueue, levels=tuple(self.kueue_level or (NVLINK_LABEL,)))


class _SkyOptions(NamedTuple):
    """Accelerators and setup on SkyPilot."""

    accelerators: Annotated[
        str | None, option("--accelerators NAME:N", "Per node, e.g. H100:8; without them, processors.")
    ] = None
    infra: Annotated[str | None, option("--infra INFRA", "Cloud, region and zone, e.g. aws/us-east-1.")] = None
    image: Annotated[str | None, option("--image IMAGE", "docker:IMAGE, or a machine image.")] = None
    workdir: Annotated[
        str | None, option("--workdir FOLDER", "Local folder that every node gets, and starts the program in.")
    ] = None
    patch: _Patches = None


class _RayOptions(NamedTuple):
    """Options of a Ray job."""

    address: Annotated[
        str | None, option("--address URL", "Ray's dashboard, e.g. http://head:8265; default: RAY_API_SERVER_ADDRESS.")
    ] = None
    gpus: arg.WithGpus = False
    max_restarts: _MaxRestarts = 3
    master_port: arg.MasterPort = 29500
    patch: _Patches = None


@commands.command(
    "torchrun",
    cls=folded(*_USUAL, "json", "heal", "detach", "here", "master_addr", "master_port"),
    epilog="Examples:\n\npipeplan launch torchrun plan.json --here -- train.py --steps 100\n\n"
    "pipeplan launch torchrun plan.json --dry-run -- -m planner.execute --model my_model:make_training",
)
def launch_torchrun_command(
    *,
    plan: arg.PlanFile,
    program: arg.Program,
    dry_run: arg.DryRun = False,
    agents: _AgentOptions,
    job: _JobOptions,
    meeting: _MeetingOptions,
    healing: _HealOptions,
) -> None:
    """One torchrun agent per host; on other hosts through ssh.

    Exits with the first bad exit code of an agent.
    """
    from api.running.attempts import run_agents, start_torchrun
    from api.running.launching import (
        as_started_here,
        describe_start,
        detach_agents,
        own_python,
        remember_request,
        render_beside,
        write_files,
    )
    from planner.launch.job_commands import Submitted

    launch = job.make(plan, program, default_python=own_python())
    told = {"is_here": agents.here, "master": meeting.master_addr or "", "port": meeting.master_port}
    request = job.request(launch, launcher="torchrun", **told)
    render = partial(render_beside, request=request)
    submission = render(launch)
    if dry_run:
        _show_submission(launch, submission)
        return
    if healing.heal:
        if agents.detach:
            raise InputError("--heal stays with the job and --detach leaves it; give one of them")
        output = sys.stderr.fileno() if healing.json else None
        start = partial(start_torchrun, render=render, output=output)
        healing.attend(plan, launch, cluster=job.cluster, start=start)
    write_files(launch, submission)
    commands = as_started_here(submission)
    remember_request(launch, request)
    if not agents.detach:
        raise typer.Exit(run_agents(commands))
    submitted = Submitted(launcher="torchrun", name=launch.job.name)
    print(describe_start(detach_agents(commands, submitted=submitted, folder=launch.folder), launch.folder))


@commands.command(
    "slurm",
    cls=folded(*_USUAL, "json", "heal", "sbatch", "gpus"),
    epilog="Example: pipeplan launch slurm plan.json --sbatch=--time=2:00:00 --dry-run -- train.py --steps 100",
)
def launch_slurm_command(
    *,
    plan: arg.PlanFile,
    program: arg.Program,
    dry_run: arg.DryRun = False,
    job: _JobOptions,
    master_addr: arg.Master = None,
    slurm: _SlurmOptions,
    healing: _HealOptions,
) -> None:
    """One Slurm task per device; prints the job's folder.

    Each task is on the node where the plan has its device.
    """
    from api.running.attempts import start_slurm
    from api.running.launching import render_beside
    from planner.launch.job_commands import Submitted

    launch = job.make(plan, program)
    told = {"master": master_addr or "", "with_gpus": slurm.gpus, "options": tuple(slurm.sbatch or ())}
    request = job.request(launch, launcher="slurm", **told)
    render = partial(render_beside, request=request, is_attended=healing.heal)
    submission = render(launch)
    if healing.heal and not dry_run:
        healing.attend(plan, launch, cluster=job.cluster, start=partial(start_slurm, render=render))
    submitted = Submitted(launcher="slurm", name=launch.job.name)
    _report_submission(launch, submission, submitted=submitted, dry_run=dry_run, request=request)


@commands.command(
    "kubernetes",
    cls=folded(*_USUAL, "image", "controller", "namespace", "patch", "gpus"),
    epilog="Example: pipeplan launch kubernetes plan.json --image registry/trainer:1 --gpus --dry-run -- train.py",
)
def launch_kubernetes_command(
    *,
    plan: arg.PlanFile,
    program: arg.Program,
    dry_run: arg.DryRun = False,
    pods: _PodOptions,
    job: _JobOptions,
    gpus: arg.WithGpus = False,
) -> None:
    """One pod per host, pinned to its node or placed by Kueue; prints the job's folder.

    The plan is in a ConfigMap.
    """
    from api.running.launching import render_pods
    from planner.launch.job_commands import Submitted
    from planner.launch.kubernetes import PodNeeds

    launch = job.make(plan, program)
    needs = PodNeeds(
        image=pods.image,
        namespace=pods.namespace,
        with_gpus=gpus,
        max_restarts=pods.max_restarts,
        queue=pods.queue(),
    )
    patches = tuple(str(Path(file).absolute()) for file in pods.patch or ())
    submitted = Submitted(launcher="kubernetes", name=launch.job.name, namespace=pods.namespace, kind=pods.controller)
    request = job.request(
        launch,
        launcher="kubernetes",
        with_gpus=gpus,
        controller=pods.controller,
        image=pods.image,
        namespace=pods.namespace,
        max_restarts=pods.max_restarts,
        patches=patches,
    )
    launch, submission = render_pods(
        launch, kind=pods.controller, needs=needs, is_fetched=job.plan_url is not None, patches=patches
    )
    _report_submission(launch, submission, submitted=submitted, dry_run=dry_run, request=request)


@commands.command(
    "sky", epilog="Example: pipeplan launch sky plan.json --accelerators H100:8 --workdir . --dry-run -- train.py"
)
def launch_sky_command(
    *, plan: arg.PlanFile, program: arg.Program, dry_run: arg.DryRun = False, sky: _SkyOptions, job: _JobOptions
) -> None:
    """A managed job of SkyPilot whose n-th node is the plan's n-th host; prints the job's folder."""
    from api.running.launching import render_sky_task
    from planner.launch.job_commands import Submitted
    from planner.launch.skypilot import SkyNeeds

    launch = job.make(plan, program)
    workdir = None if sky.workdir is None else str(Path(sky.workdir).absolute())
    needs = SkyNeeds(accelerators=sky.accelerators, infra=sky.infra, image=sky.image, workdir=workdir)
    launch, submission = render_sky_task(
        launch, needs=needs, is_fetched=job.plan_url is not None, patches=sky.patch or ()
    )
    _report_submission(
        launch, submission, submitted=Submitted(launcher="skypilot", name=launch.job.name), dry_run=dry_run
    )


@commands.command(
    "ray", epilog="Example: pipeplan launch ray plan.json --address http://head:8265 --gpus --dry-run -- train.py"
)
def launch_ray_command(
    *, plan: arg.PlanFile, program: arg.Program, dry_run: arg.DryRun = False, ray: _RayOptions, job: _JobOptions
) -> None:
    """A Ray job that runs one Ray Train worker per host, pinned to its node; prints the job's folder."""
    from api.running.launching import render_ray_job
    from planner.launch.job_commands import Submitted
    from planner.launch.ray_train import RayNeeds

    launch = job.make(plan, program)
    needs = RayNeeds(
        address=ray.address,
        folder=str(Path.cwd()),
        with_gpus=ray.gpus,
        max_failures=ray.max_restarts,
        port=ray.master_port,
    )
    launch, submission = render_ray_job(
        launch, needs=needs, is_fetched=job.plan_url is not None, patches=ray.patch or ()
    )
    submitted = Submitted(launcher="ray", name=launch.job.name, address=ray.address or "")
    _report_submission(launch, submission, submitted=submitted, dry_run=dry_run)


def _report_submission(
    launch: "Launch",
    submission: "LaunchSubmission",
    *,
    submitted: "Submitted",
    dry_run: bool,
    request: "LaunchRequest | None" = None,
) -> None:
    """To the scheduler, or to the screen; without a request `job heal` cannot launch it again."""
    from api.running.launching import describe_start, remember_request, submit, write_files

    if dry_run:
        _show_submission(launch, submission)
        return
    write_files(launch, submission)
    if request is not None:
        remember_request(launch, request)
    print(describe_start(submit(submission, submitted=submitted, folder=launch.folder), launch.folder))


def _show_submission(launch: "Launch", submission: "LaunchSubmission") -> None:
    print(f"# {launch.folder}/plan.json: the plan, {len(launch.plan_text):,} characters")
    print(submission.render(folder=str(launch.folder)), end="")


@jobs.command("status", epilog="Example: pipeplan job status pipeplan-jobs/plan-1a2b3c4d")
def job_status_command(folder: arg.JobPlace) -> None:
    """Say how a job is: what its launcher says, or `ended with N`, or `gone`."""
    from api.running.launching import describe_status, read_submitted

    print(describe_status(read_submitted(Path(folder)), Path(folder)))


@jobs.command("logs", epilog="Example: pipeplan job logs -f pipeplan-jobs/plan-1a2b3c4d")
def job_logs_command(
    folder: arg.JobPlace, follow: Annotated[bool, option("--follow -f", "Keep showing new lines.")] = False
) -> None:
    """Show what the processes of a job have said."""
    from api.running.launching import read_submitted, show_logs

    raise typer.Exit(show_logs(read_submitted(Path(folder)), Path(folder), follow=follow, to=sys.stdout))


@jobs.command("cancel", epilog="Example: pipeplan job cancel pipeplan-jobs/plan-1a2b3c4d")
def job_cancel_command(folder: arg.JobPlace) -> None:
    """End a job."""
    from api.running.launching import cancel, read_submitted

    cancel(read_submitted(Path(folder)), Path(folder))


@jobs.command(
    "heal",
    epilog="Examples:\n\npipeplan job heal pipeplan-jobs/plan-1a2b3c4d\n\n"
    "pipeplan job heal pipeplan-jobs/plan-1a2b3c4d --lost node3",
)
def job_heal_command(
    *,
    folder: arg.JobPlace,
    lost: arg.Lost = None,
    heal_time_limit: arg.HealTime = 5.0,
    storage_rate: arg.StorageRate = 1.0,
    json: arg.Json = False,
) -> None:
    """Plan for the remaining devices, and launch a job again.

    Without --lost, Slurm or Kubernetes says which nodes are down.
    """
    from api.running.healing import HealParams
    from api.running.job_healing import describe_healed, heal_job

    params = HealParams(most_heals=1, search_s=heal_time_limit, bytes_per_s=storage_rate * 1e9)
    console = make_console(is_report=False)
    healed = heal_job(Path(folder).absolute(), names=lost or (), params=params, console=console)
    if json:
        report_json(healed.summarise())
    else:
        for line in describe_healed(healed):
            print(line)
