"""`pipeplan launch` and `pipeplan job`: programs under a plan, started, asked about and ended."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import typer

from api.cli import arguments as arg
from api.cli.option_groups import takes_groups
from api.cli.output import as_input_errors

if TYPE_CHECKING:
    from api.launching import Launch
    from planner.launch.job_commands import Submitted
    from planner.launch.launch_job import LaunchSubmission

commands = typer.Typer(no_args_is_help=True, help="Run a program under a plan, every process on its device.")
jobs = typer.Typer(no_args_is_help=True, help="Ask about a launched job, read its log, end it.")


class JobOptions(NamedTuple):
    """What every launcher is told about a job."""

    cluster: arg.Cluster = None
    name: arg.JobName = None
    folder: arg.JobFolder = None
    host: arg.Hosts = None
    python: arg.Python = None
    processors: arg.OnProcessors = False

    def make(
        self, plan: str, program: list[str], *, plan_url: str | None, default_python: str | None = None
    ) -> "Launch":
        """The launch of the program under the plan."""
        from api.launching import Whereabouts, make_launch

        where = Whereabouts(cluster=self.cluster, folder=self.folder, hosts=self.host or (), plan_url=plan_url)
        python = self.python or default_python
        return make_launch(plan, program, name=self.name, where=where, python=python, on_processors=self.processors)


class AgentOptions(NamedTuple):
    """How torchrun's agents are started."""

    detach: arg.Detach = False
    here: arg.IsHere = False


class MeetingOptions(NamedTuple):
    """Where torchrun's agents meet."""

    master_addr: arg.Master = None
    master_port: arg.MasterPort = 29500


class SlurmOptions(NamedTuple):
    """What Slurm is asked for."""

    gpus: arg.WithGpus = False
    sbatch: arg.SbatchOptions = None


class PodOptions(NamedTuple):
    """What Kubernetes is asked for."""

    image: arg.Image
    controller: arg.Controller = "jobset"
    namespace: arg.Namespace = "default"
    max_restarts: arg.MaxRestarts = 3


@commands.command(
    "torchrun",
    epilog="Examples:\n\npipeplan launch torchrun plan.json --here -- train.py --steps 100\n\n"
    "pipeplan launch torchrun plan.json --dry-run -- -m planner.execute --model my_model:make_training",
)
@takes_groups
def launch_torchrun_command(
    *,
    plan: arg.PlanFile,
    program: arg.Program,
    dry_run: arg.DryRun = False,
    agents: AgentOptions,
    job: JobOptions,
    meeting: MeetingOptions,
    plan_url: arg.PlanUrl = None,
) -> None:
    """One torchrun agent per host; on other hosts through ssh. Exits with the first bad exit code of an agent."""
    from api.launching import describe_start, detach_agents, own_python, run_agents, start_locally
    from planner.launch.job_commands import Submitted
    from planner.launch.torchrun import render_torchrun

    launch = job.make(plan, program, plan_url=plan_url, default_python=own_python())
    submission = render_torchrun(launch.job, port=meeting.master_port, master=meeting.master_addr, is_here=agents.here)
    if dry_run:
        _show_submission(launch, submission)
        return
    commands = start_locally(launch, submission)
    if not agents.detach:
        raise typer.Exit(run_agents(commands))
    submitted = Submitted(launcher="torchrun", name=launch.job.name)
    print(describe_start(detach_agents(commands, submitted=submitted, folder=launch.folder), launch.folder))


@commands.command(
    "slurm",
    epilog="Example: pipeplan launch slurm plan.json --sbatch=--time=2:00:00 --dry-run -- train.py --steps 100",
)
@takes_groups
def launch_slurm_command(
    *,
    plan: arg.PlanFile,
    program: arg.Program,
    dry_run: arg.DryRun = False,
    job: JobOptions,
    master_addr: arg.Master = None,
    plan_url: arg.PlanUrl = None,
    slurm: SlurmOptions,
) -> None:
    """One Slurm task per device, each on the node where the plan has it; prints the job's folder."""
    from planner.launch.job_commands import Submitted
    from planner.launch.slurm import render_slurm

    launch = job.make(plan, program, plan_url=plan_url)
    with as_input_errors():
        submission = render_slurm(
            launch.job,
            folder=str(launch.folder),
            master=master_addr,
            with_gpus=slurm.gpus,
            options=slurm.sbatch or (),
        )
    _hand_over(launch, submission, submitted=Submitted(launcher="slurm", name=launch.job.name), dry_run=dry_run)


@commands.command(
    "kubernetes",
    epilog="Example: pipeplan launch kubernetes plan.json --image registry/trainer:1 --gpus --dry-run -- train.py",
)
@takes_groups
def launch_kubernetes_command(
    *,
    plan: arg.PlanFile,
    program: arg.Program,
    dry_run: arg.DryRun = False,
    pods: PodOptions,
    job: JobOptions,
    plan_url: arg.PlanUrl = None,
    gpus: arg.WithGpus = False,
) -> None:
    """One pod per host, pinned to its node, with the plan in a ConfigMap; prints the job's folder."""
    from api.launching import render_pods
    from planner.launch.job_commands import Submitted
    from planner.launch.kubernetes import PodNeeds

    launch = job.make(plan, program, plan_url=plan_url)
    needs = PodNeeds(image=pods.image, namespace=pods.namespace, with_gpus=gpus, max_restarts=pods.max_restarts)
    launch, submission = render_pods(launch, kind=pods.controller, needs=needs, is_fetched=plan_url is not None)
    submitted = Submitted(launcher="kubernetes", name=launch.job.name, namespace=pods.namespace, kind=pods.controller)
    _hand_over(launch, submission, submitted=submitted, dry_run=dry_run)


def _hand_over(launch: "Launch", submission: "LaunchSubmission", *, submitted: "Submitted", dry_run: bool) -> None:
    """To the scheduler, or to the screen."""
    from api.launching import describe_start, submit, write_files

    if dry_run:
        _show_submission(launch, submission)
        return
    write_files(launch, submission)
    print(describe_start(submit(submission, submitted=submitted, folder=launch.folder), launch.folder))


def _show_submission(launch: "Launch", submission: "LaunchSubmission") -> None:
    print(f"# {launch.folder}/plan.json: the plan, {len(launch.plan_text):,} characters")
    print(submission.render(folder=str(launch.folder)), end="")


@jobs.command("status", epilog="Example: pipeplan job status pipeplan-jobs/plan-1a2b3c4d")
def job_status_command(folder: arg.JobPlace) -> None:
    """Say how a job is: what its launcher says, or `ended with N`, or `gone`."""
    from api.launching import describe_status, read_submitted

    print(describe_status(read_submitted(Path(folder)), Path(folder)))


@jobs.command("logs", epilog="Example: pipeplan job logs -f pipeplan-jobs/plan-1a2b3c4d")
def job_logs_command(folder: arg.JobPlace, follow: arg.Follow = False) -> None:
    """Show what the processes of a job have said."""
    from api.launching import read_submitted, show_logs

    raise typer.Exit(show_logs(read_submitted(Path(folder)), Path(folder), follow=follow, to=sys.stdout))


@jobs.command("cancel", epilog="Example: pipeplan job cancel pipeplan-jobs/plan-1a2b3c4d")
def job_cancel_command(folder: arg.JobPlace) -> None:
    """End a job."""
    from api.launching import cancel, read_submitted

    cancel(read_submitted(Path(folder)), Path(folder))
