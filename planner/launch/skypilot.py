"""A plan through SkyPilot: a task whose n-th node is the plan's n-th host, as a managed job.

Nodes have no names before they exist, and are all alike: every one learns from its number which host of the plan it is.
"""

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.execute.table.placement import HOST_VARIABLES
from planner.launch.device_resources import require_accelerators
from planner.launch.kubernetes import PORT, render_json
from planner.launch.launch_job import TORCHRUN, Command, LaunchJob, LaunchSubmission, rank_arguments
from planner.launch.manifest_fields import require_object
from planner.launch.manifest_patch import ManifestPatch
from planner.launch.strategic_merge import merge

_MOUNT = "/tmp/pipeplan"
"""The folder of the nodes below which the plan is put."""

_RUN = """\
set -eu
hosts=({hosts})
processes=({processes})
export {variable}="${{hosts[$SKYPILOT_NODE_RANK]}}"
master="$(echo "$SKYPILOT_NODE_IPS" | head -n 1)"
exec {python} {torchrun} --nnodes={num_hosts} --node-rank="$SKYPILOT_NODE_RANK" \\
  --nproc-per-node="${{processes[$SKYPILOT_NODE_RANK]}}" --master-addr="$master" --master-port={port} \\
  {command}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class SkyNeeds:
    """What the plan does not know about the nodes."""

    accelerators: str | None = None
    """`NAME` or `NAME:COUNT` per node; None: processors."""
    infra: str | None = None
    """Cloud, region and zone as SkyPilot writes them, e.g. `aws/us-east-1`; None: SkyPilot chooses."""
    image: str | None = None
    """`docker:IMAGE` or a machine image."""
    workdir: str | None = None
    """Local folder that every node gets, in which the program starts."""


def sky_plan_path(name: str) -> str:
    """Where the nodes find the plan of a job."""
    return f"{_MOUNT}/{name}/plan.json"


def render_sky(
    job: LaunchJob, *, needs: SkyNeeds, folder: str, is_fetched: bool = False, patches: Sequence[ManifestPatch] = ()
) -> LaunchSubmission:
    """The task's file, and the command that submits it as a managed job.

    `is_fetched`: the nodes fetch the plan from an address. Raises ValueError for accelerators fewer than the plan needs
    on a host, for names of hosts, and for a patch that does not fit.
    """
    if job.host_names:
        raise ValueError("--host: SkyPilot's nodes have no names before they start; leave it out")
    task: dict[str, Any] = {"name": job.name, "num_nodes": len(job.placement.hosts)}
    if resources := _resources(job, needs):
        task["resources"] = resources
    if needs.workdir is not None:
        task["workdir"] = needs.workdir
    if not is_fetched:
        task["file_mounts"] = {job.plan_at: f"{folder}/plan.json"}
    task["run"] = _run(job)
    for patch in patches:
        require_object(patch.document, "SkyPilotTask", where=patch.source)
        task = merge(task, patch.document, where=patch.source)
        if task.get("name") != job.name:
            raise ValueError(f"{patch.source}.name: {task.get('name')!r}; use --name, which `pipeplan job` remembers")
    return LaunchSubmission(
        files={"task.yaml": render_task(task)},
        commands=(Command(arguments=("sky", "jobs", "launch", "--yes", "--detach-run", f"{folder}/task.yaml")),),
    )


def _resources(job: LaunchJob, needs: SkyNeeds) -> dict[str, Any]:
    resources: dict[str, Any] = {}
    if needs.accelerators is not None:
        needed = max(slot.index for slot in job.placement.slots) + 1
        kind, _, count = needs.accelerators.partition(":")
        if not kind or not re.fullmatch("[1-9][0-9]*", count or str(needed)):
            raise ValueError(f"--accelerators {needs.accelerators!r}: write NAME or NAME:COUNT, e.g. H100:8")
        if int(count or needed) < needed:
            raise ValueError(
                f"--accelerators {needs.accelerators}: the plan needs {needed} on a host; write {kind}:{needed}"
            )
        require_accelerators(job, option=f"--accelerators {needs.accelerators}", named=kind)
        resources["accelerators"] = {kind: int(count or needed)}
    if needs.infra is not None:
        resources["infra"] = needs.infra
    if needs.image is not None:
        resources["image_id"] = needs.image
    return resources


def _run(job: LaunchJob) -> str:
    hosts = job.placement.hosts
    return _RUN.format(
        hosts=shlex.join(hosts),
        processes=" ".join(str(len(job.placement.on(host))) for host in hosts),
        variable=HOST_VARIABLES[0],
        python=shlex.quote(job.python),
        torchrun=shlex.join(TORCHRUN),
        num_hosts=len(hosts),
        port=PORT,
        command=shlex.join(rank_arguments(job)),
    )


def render_task(task: Mapping[str, Any]) -> str:
    """YAML: texts of several lines as blocks, everything else as JSON, which YAML reads."""
    lines = []
    for name, value in task.items():
        if isinstance(value, str) and _is_block(value):
            lines.append(f"{name}: |\n" + "".join(f"  {line}\n" for line in value[:-1].split("\n")))
        else:
            lines.append(f"{name}: {render_json(value, indent=1)}\n")
    return "".join(lines)


def _is_block(text: str) -> bool:
    """Whether a block gives the text back: printable lines, the last one ended once, the first not indented."""
    lines = text.split("\n")
    return (
        len(lines) > 2
        and not lines[-1]
        and bool(lines[-2])
        and not text.startswith((" ", "\n"))
        and all(line.isascii() and line.isprintable() for line in lines)
    )


def describe_sky_job(answer: str, *, name: str) -> str:
    """How the newest managed job of this name is, from `sky jobs queue --output json`; `gone` if there is none.

    Raises ValueError for an answer that is no list of jobs.
    """
    try:
        jobs = [one for one in json.loads(answer[answer.index("[") :]) if one["job_name"] == name]
        newest = max(jobs, key=lambda one: int(one["job_id"]), default=None)
        state = None if newest is None else str(newest["status"]).rpartition(".")[2]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"sky answered {answer.strip()[:80]!r}, which lists no jobs ({error}); see `sky jobs queue`"
        ) from None
    if state is None:
        return "gone: SkyPilot does not know it"
    return f"ended: {state}" if state.startswith(("SUCCEEDED", "FAILED", "CANCELLED")) else state
