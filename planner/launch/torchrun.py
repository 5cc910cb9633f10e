"""A plan through torchrun: one agent per host, each with as many processes as the plan uses devices there."""

import shlex

from planner.execute.table.placement import HOST_VARIABLES
from planner.launch.launch_job import TORCHRUN, Command, LaunchJob, LaunchSubmission, rank_arguments, require_host_names


def render_torchrun(
    job: LaunchJob, *, port: int = 29500, master: str | None = None, is_here: bool = False
) -> LaunchSubmission:
    """The commands, one per host in order of first rank.

    `master`: address of the first host, if its name is none; `is_here`: all processes on this machine, whatever hosts
    the plan names. With one host the agent finds a free port by itself.
    """
    if is_here or len(job.placement.hosts) == 1:
        return LaunchSubmission(commands=(_single(job, is_here=is_here),))
    hosts = [job.real_host(host) for host in job.placement.hosts]
    require_host_names(hosts, what="a machine's name")
    return LaunchSubmission(
        commands=tuple(
            Command(
                arguments=(*agent_command(job, number, master=master or hosts[0], port=port), *rank_arguments(job)),
                environment={HOST_VARIABLES[0]: hosts[number]},
                host=hosts[number],
            )
            for number in range(len(hosts))
        )
    )


def _single(job: LaunchJob, *, is_here: bool) -> Command:
    host = job.real_host(job.placement.hosts[0])
    return Command(
        arguments=(*single_command(job), *rank_arguments(job, is_here=is_here)),
        environment={} if is_here else {HOST_VARIABLES[0]: host},
    )


def single_command(job: LaunchJob) -> tuple[str, ...]:
    """Starts the only agent, which finds a free port by itself; the ranks' arguments follow."""
    return (job.python, *TORCHRUN, "--standalone", f"--nproc-per-node={len(job.placement.slots)}")


def agent_command(job: LaunchJob, number: int, *, master: str, port: int) -> tuple[str, ...]:
    """Starts the agent of the host with this number in order of first rank; the ranks' arguments follow."""
    nnodes, *options = agent_options(job, job.placement.hosts[number], master=master, port=port)
    return (job.python, *TORCHRUN, nnodes, f"--node-rank={number}", *options)


def agent_options(job: LaunchJob, host: str, *, master: str, port: int) -> tuple[str, ...]:
    """What an agent of such a host is told, but for its number."""
    return (
        f"--nnodes={len(job.placement.hosts)}",
        f"--nproc-per-node={len(job.placement.on(host))}",
        f"--master-addr={master}",
        f"--master-port={port}",
    )


def over_ssh(command: Command, *, folder: str) -> Command:
    """The same command, run in `folder` on its host through ssh."""
    line = f"cd {shlex.quote(folder)} && {command.render()}"
    return Command(arguments=("ssh", "-o", "BatchMode=yes", "--", str(command.host), line))
