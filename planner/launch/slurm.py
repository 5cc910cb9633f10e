"""A plan through Slurm: an sbatch script whose task r is rank r, on the host where the plan has it.

The host of every task stands in a file (`--distribution=arbitrary`). Which accelerator a task drives is settled by
`planner.execute.enter`, from the plan: Slurm only has to show the task all of its node.
"""

import shlex
from collections.abc import Sequence

from planner.launch.launch_job import Command, LaunchJob, LaunchSubmission, rank_arguments, require_host_names

GOING_ON = ("PENDING", "CONFIGURING", "RUNNING", "COMPLETING", "SUSPENDED", "REQUEUED", "RESIZING", "STAGE_OUT")
"""States of jobs that are not over."""
_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --nodes={num_nodes}
#SBATCH --ntasks={num_tasks}
#SBATCH --distribution=arbitrary
#SBATCH --{requeue}
#SBATCH --open-mode=append
{gpus}set -eu
export SLURM_HOSTFILE={hosts}
export MASTER_ADDR={master}
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
rm -f {exit_file}
code=0
srun --distribution=arbitrary --kill-on-bad-exit={ends_all} {binding}-- {command} || code=$?
echo "$code" > {exit_file}
exit "$code"
"""


def render_slurm(
    job: LaunchJob,
    *,
    folder: str,
    master: str | None = None,
    with_gpus: bool = False,
    options: Sequence[str] = (),
    is_attended: bool = False,
) -> LaunchSubmission:
    """The script, the file of hosts, and the command that submits them.

    `folder`: the job's folder as all nodes see it; `master`: address of the first node, if its name is none;
    `with_gpus`: ask for as many accelerators on every node as the plan's highest there needs; `options`: further
    options of sbatch. A node that fails puts the job back into the queue, and a task that fails ends the others, unless
    somebody looks after the job (`is_attended`): tasks that Slurm kills would look like lost ones.
    """
    seats = job.placement.seats
    nodes = [job.real_host(host) for host in job.placement.hosts]
    require_host_names(nodes, what="the name of a Slurm node")
    hosts = f"{folder}/hosts"
    count = max(seat.index for seat in seats) + 1
    script = _SCRIPT.format(
        name=job.name,
        requeue="no-requeue" if is_attended else "requeue",
        ends_all=int(not is_attended),
        num_nodes=len(nodes),
        num_tasks=len(seats),
        gpus=f"#SBATCH --gpus-per-node={count}\n" if with_gpus else "",
        hosts=shlex.quote(hosts),
        exit_file=shlex.quote(f"{folder}/exit"),
        master=shlex.quote(master or nodes[0]),
        binding="--gpu-bind=none " if with_gpus else "",
        command=shlex.join((job.python, *rank_arguments(job))),
    )
    submit = ("sbatch", "--parsable", f"--output={_plain(folder)}/log", *options, f"{folder}/job.sbatch")
    return LaunchSubmission(
        files={"hosts": "".join(f"{job.real_host(seat.host)}\n" for seat in seats), "job.sbatch": script},
        commands=(Command(arguments=submit, environment={"SLURM_HOSTFILE": hosts}),),
    )


def _plain(folder: str) -> str:
    """Slurm puts numbers in the place of %j and the like, and reads backslashes."""
    return folder.replace("\\", "\\\\").replace("%", "%%")


def find_job_id(answer: str) -> str:
    """The number in what `sbatch --parsable` prints (`17` or `17;cluster`); raises ValueError if there is none."""
    number = answer.strip().partition(";")[0]
    if not number.isdecimal():
        raise ValueError(f"sbatch answered {answer.strip()[:120]!r}, which is no job number; look at `squeue`")
    return number


def describe_slurm_job(answer: str) -> str:
    """How a job is, from `squeue`; `gone` if it lists none."""
    state = answer.strip()
    if not state:
        return "gone: Slurm no longer knows it"
    return state if state.startswith(GOING_ON) else f"ended: {state}"
