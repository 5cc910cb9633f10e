"""A plan through Ray Train: one worker per host of the plan, each with its torchrun agent, submitted as a Ray job."""

import inspect
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from planner.execute.table.placement import HOST_VARIABLES
from planner.launch import ray_driver
from planner.launch.device_resources import require_accelerators
from planner.launch.kubernetes import render_json
from planner.launch.launch_job import Command, LaunchJob, LaunchSubmission, rank_arguments, require_host_names
from planner.launch.manifest_fields import require_object
from planner.launch.manifest_patch import ManifestPatch
from planner.launch.strategic_merge import merge
from planner.launch.torchrun import agent_command, single_command

PLAN_PATH = f"{ray_driver.FOLDER}/plan.json"
"""The plan in the words of an agent: its worker puts it into a folder of its own."""
CLUSTER_PATH = f"{ray_driver.FOLDER}/cluster.json"
"""The cluster, for a plan that brings none along."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RayNeeds:
    """What the plan does not know about the Ray cluster."""

    address: str | None = None
    """Of its dashboard, e.g. `http://head:8265`; None: what RAY_API_SERVER_ADDRESS says."""
    folder: str = "."
    """Where the program starts on every host, if that folder is there."""
    with_gpus: bool = False
    """Reserve as many accelerators on every host as the plan's highest there needs."""
    max_failures: int = 3
    """How often Ray Train starts all workers anew."""
    port: int = 29500
    """Where the processes of several hosts meet."""


def render_ray(
    job: LaunchJob, *, needs: RayNeeds, folder: str, patches: Sequence[ManifestPatch] = ()
) -> LaunchSubmission:
    """The driver, what it reads, the runtime environment, and the command that submits them.

    `patches`: over the runtime environment. Raises ValueError for hosts that cannot be a machine's name, and for a
    patch that does not fit.
    """
    hosts = [job.real_host(host) for host in job.placement.hosts]
    require_host_names(hosts, what="a machine's name")
    environment: dict[str, Any] = {}
    for patch in patches:
        require_object(patch.document, "RuntimeEnvironment", where=patch.source)
        environment = merge(environment, patch.document, where=patch.source)
    address = [] if needs.address is None else [f"--address={needs.address}"]
    submit = (
        *("ray", "job", "submit", "--no-wait", *address),
        *(f"--working-dir={folder}", f"--runtime-env={folder}/runtime-env.json", "--", "python3", "ray_driver.py"),
    )
    return LaunchSubmission(
        files={
            "ray_driver.py": inspect.getsource(ray_driver),
            ray_driver.JOB_FILE: render_json(_document(job, hosts, needs=needs)) + "\n",
            "runtime-env.json": json.dumps(environment) + "\n",
        },
        commands=(Command(arguments=submit),),
    )


def _document(job: LaunchJob, hosts: Sequence[str], *, needs: RayNeeds) -> dict[str, Any]:
    """The JSON document that the driver reads."""
    count = max(slot.index for slot in job.placement.slots) + 1
    if needs.with_gpus:
        require_accelerators(job, option="--gpus")
    return {
        "hosts": hosts,
        "agents": [_agent(job, number, port=needs.port) for number in range(len(hosts))],
        "variable": HOST_VARIABLES[0],
        "folder": needs.folder,
        "gpus_per_host": count if needs.with_gpus else 0,
        "max_failures": needs.max_failures,
    }


def _agent(job: LaunchJob, number: int, *, port: int) -> list[str]:
    if len(job.placement.hosts) == 1:
        return [*single_command(job), *rank_arguments(job)]
    return [*agent_command(job, number, master=ray_driver.MASTER, port=port), *rank_arguments(job)]


def find_ray_number(answer: str) -> str:
    """The submission's id in what `ray job submit` prints; raises ValueError if there is none."""
    match = re.search(r"Job '([^']+)' submitted successfully", answer)
    if match is None:
        raise ValueError(f"ray answered {answer.strip()[-120:]!r}, which names no job; see `ray job list`")
    return match[1]


def describe_ray_job(answer: str) -> str:
    """How a job is, from `ray job status`; raises ValueError for an answer that does not say it."""
    match = re.search(r"Job '[^']+' (succeeded|failed|was stopped)|Status for job '[^']+': (\w+)", answer)
    if match is None:
        raise ValueError(f"ray answered {answer.strip()[-120:]!r}, which is not a job's status; see `ray job list`")
    return f"ended: {match[1]}" if match[1] else match[2]
