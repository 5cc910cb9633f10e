"""A plan through Slurm: an sbatch script that starts as many tasks on every node as the plan has devices there.

A task finds its device, and so its rank, from its node and its number there (`planner.execute.enter`): Slurm only has
to show the task all of its node. Nodes that need other numbers of tasks or accelerators are other components of a
heterogeneous job. `--distribution=arbitrary` is left alone: beside `--nodes` current sbatch refuses it, and block
topologies never grant it.
"""

import math
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from planner.launch.device_resources import require_accelerators
from planner.launch.launch_job import Command, LaunchJob, LaunchSubmission, rank_arguments, require_host_names

_OVER = (
    *("COMPLETED", "CANCELLED", "FAILED", "TIMEOUT", "NODE_FAIL", "PREEMPTED", "BOOT_FAIL", "DEADLINE"),
    *("OUT_OF_MEMORY", "LAUNCH_FAILED", "REVOKED"),
)
"""States of jobs that are over; in any other, that of a later release too, a job may still run."""
_SCRIPT = """\
#!/bin/bash
#SBATCH --job-name={name}
#SBATCH --{requeue}
#SBATCH --open-mode=append
{components}set -eu
export MASTER_ADDR={master}
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 10000))
rm -f {exit_file}
: > {failed_file}
code=0
srun {groups}--export=ALL --kill-on-bad-exit={ends_all} {binding}-- /bin/sh {task_file} {command} || code=$?
if [ "$code" != 0 ] && read -r first < {failed_file}; then code=$first; fi
echo "$code" > {exit_file}
exit "$code"
"""
_TASK = """\
# srun tells the highest exit code, often that of a task that it ended itself: the first to fail writes its own.
# Where Slurm tracks processes by cgroups, signals reach this shell alone: it hands them on.
"$@" <&0 &
program=$!
for signal in HUP INT QUIT TERM USR1 USR2; do trap "kill -s $signal $program" $signal; done
code=0
wait $program || code=$?
while kill -0 $program 2> /dev/null; do code=0; wait $program || code=$?; done
if [ $code != 0 ]; then echo $code >> "${0%/*}/failed"; fi
exit $code
"""
_MIG = re.compile(r"(?:^|[_ -])\d+g\.\d+gb")
"""Types of parts of an accelerator, e.g. `1g.10gb`, `a100_3g.20gb`."""
_DECIDED = (
    *("--nodes", "--nodelist", "--nodefile", "--ntasks", "--ntasks-per-node", "--tasks-per-node"),
    *("--array", "--wrap", "--output", "--open-mode"),
)
"""Options of sbatch that undo the placement, make several jobs or hide the log; sbatch takes beginnings of them too."""
_SHORT = re.compile(r"-[HhIkOQsvVW]*[NFnwao]")
"""The same in a letter, behind letters that take no value."""
_GPUS = re.compile(r"--gpus|--gres=|-G")
"""Options of sbatch that ask for accelerators."""
_WRONG_TIME = re.compile(
    r"(--time(-min)?=|-t)(?!([0-9]+(:[0-9]+){0,2}|[0-9]+-[0-9]+(:[0-9]+){0,2}|-1|infinite|unlimited)$).*", re.IGNORECASE
)
"""A span of time that sbatch does not take."""
_TYPE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Component:
    """Nodes that are asked for alike."""

    nodes: tuple[str, ...]
    tasks_per_node: int
    request: str
    """What asks for accelerators; empty if nothing does."""
    segment: int | None
    """Nodes that lie together in an NVLink domain, where Slurm would look for fewer domains; None: as Slurm looks."""

    def render(self) -> str:
        options = [
            f"--nodes={len(self.nodes)}",
            f"--nodelist={','.join(self.nodes)}",
            f"--ntasks={len(self.nodes) * self.tasks_per_node}",
            f"--ntasks-per-node={self.tasks_per_node}",
            *([self.request] if self.request else []),
            *([] if self.segment is None else [f"--segment={self.segment}"]),
        ]
        return "".join(f"#SBATCH {option}\n" for option in options)


def render_slurm(
    job: LaunchJob,
    *,
    folder: str,
    master: str | None = None,
    with_gpus: bool = False,
    options: Sequence[str] = (),
    is_attended: bool = False,
) -> LaunchSubmission:
    """The script, and the command that submits it.

    `folder`: the job's folder as all nodes see it; `master`: address of the first node, if its name is none;
    `with_gpus`: ask on every node for as many accelerators as the plan's highest there needs; `options`: further
    options of sbatch. A node that fails puts the job back into the queue, and a task that fails ends the others, unless
    somebody looks after the job (`is_attended`): tasks that Slurm kills would look like lost ones.
    """
    nodes = [job.real_host(host) for host in job.placement.hosts]
    require_host_names(nodes, what="the name of a Slurm node")
    _require_options(options, with_gpus=with_gpus)
    if with_gpus:
        require_accelerators(job, option="--gpus")
    components = _components(job, with_gpus=with_gpus)
    script = _SCRIPT.format(
        name=job.name,
        requeue="no-requeue" if is_attended else "requeue",
        ends_all=int(not is_attended),
        components="#SBATCH hetjob\n".join(component.render() for component in components),
        groups=f"--het-group=0-{len(components) - 1} " if len(components) > 1 else "",
        exit_file=shlex.quote(f"{folder}/exit"),
        failed_file=shlex.quote(f"{folder}/failed"),
        task_file=shlex.quote(f"{folder}/task.sh"),
        master=shlex.quote(master or nodes[0]),
        binding="--gpu-bind=none " if with_gpus else "",
        command=shlex.join((job.python, *rank_arguments(job))),
    )
    submit = ("sbatch", "--parsable", f"--output={_plain(folder)}/log", *options, f"{folder}/job.sbatch")
    return LaunchSubmission(files={"task.sh": _TASK, "job.sbatch": script}, commands=(Command(arguments=submit),))


def _require_options(options: Sequence[str], *, with_gpus: bool) -> None:
    """Raise ValueError for an option of sbatch that the plan or --gpus decides, or that sbatch refuses."""
    for option in options:
        if _is_decided(option):
            raise ValueError(
                f"--sbatch={option}: the plan decides it, or it is no option; drop it, or write --NAME=VALUE"
            )
        if _WRONG_TIME.match(option):
            raise ValueError(
                f"--sbatch={option}: sbatch takes minutes, hours:minutes:seconds or days-hours; write --time=4:00:00"
            )
        if with_gpus and _GPUS.match(option):
            raise ValueError(f"--sbatch={option}: --gpus asks for what the plan needs; leave one of them out")


def _is_decided(option: str) -> bool:
    """Whether the plan decides an option, or sbatch takes it for the script."""
    name = option.partition("=")[0]
    if name.startswith("--"):
        return any(each.startswith(name) for each in _DECIDED)
    return not name.startswith("-") or _SHORT.match(name) is not None


def _components(job: LaunchJob, *, with_gpus: bool) -> list[_Component]:
    """In order of their first ranks: the script runs on the node of rank 0."""
    alike: dict[tuple[int, str], list[str]] = {}
    for host in job.placement.hosts:
        key = (len(job.placement.on(host)), _request(job, host) if with_gpus else "")
        alike.setdefault(key, []).append(host)
    return [
        _Component(
            nodes=tuple(job.real_host(host) for host in hosts),
            tasks_per_node=tasks,
            request=request,
            segment=_segment(job, hosts),
        )
        for (tasks, request), hosts in alike.items()
    ]


def _request(job: LaunchJob, host: str) -> str:
    """As many accelerators as the highest that is used; by type where only a part of a mixed node is, and for MIG."""
    count = max(slot.index for slot in job.placement.on(host)) + 1
    kinds = job.cluster.types.get(host, ())
    types = Counter(kinds[:count])
    is_mixed = len(set(kinds)) > 1 and count < len(kinds)
    if not is_mixed and not any(_MIG.search(kind) for kind in types):
        return f"--gpus-per-node={count}"
    for kind in types:
        if not _TYPE.fullmatch(kind):
            raise ValueError(
                f"host {host!r}: type {kind!r} of its devices cannot be a type of Slurm's GRES; call it in the cluster "
                "as `scontrol show node` does, or ask for accelerators by --sbatch=--gres=..."
            )
    return f"--gres={','.join(f'gpu:{kind}:{number}' for kind, number in types.items())}"


def _segment(job: LaunchJob, hosts: Sequence[str]) -> int | None:
    """Slurm puts a job into as few blocks as can hold it; a plan that is spread wider must say how its nodes lie."""
    used = [count for domain in job.cluster.domains if (count := len(domain & set(hosts)))]
    if len(used) < 2 or sum(used) < len(hosts):
        return None
    largest = max(len(domain) for domain in job.cluster.domains)
    return math.gcd(*used) if len(used) > -(-len(hosts) // largest) else None


def _plain(folder: str) -> str:
    """Slurm puts numbers in the place of %j and the like, and reads backslashes."""
    return folder.replace("\\", "\\\\").replace("%", "%%")


def find_job_id(answer: str) -> str:
    """What `sbatch --parsable` prints, `17` or `17;cluster`: a number counts on its cluster only.

    Raises ValueError for anything else.
    """
    if not re.fullmatch(r"[0-9]+(;[\w.-]+)?", answer.strip()):
        raise ValueError(f"sbatch answered {answer.strip()[:120]!r}, which is not a job number; see `squeue`")
    return answer.strip()


def may_run(state: str) -> bool:
    """Whether a job in this state of `find_job_state` is not over."""
    return bool(state) and not state.startswith(_OVER)


def find_job_state(answer: str) -> str:
    """Of a job's components, from `squeue`, the one that tells how the whole is; empty if it lists none."""
    lines = [line.strip() for line in answer.splitlines()]
    states = [line for line in lines if line and not line.startswith("CLUSTER:")]
    going_on = list(filter(may_run, states))
    bad = [state for state in states if not state.startswith("COMPLETED")]
    return next(iter([*going_on, *bad, *states]), "")


def describe_slurm_job(answer: str) -> str:
    """How a job is, from `squeue`; `gone` if it lists none."""
    state = find_job_state(answer)
    if not state:
        return "gone: Slurm no longer lists it"
    return state if may_run(state) else f"ended: {state}"
