"""`pipeplan cluster discover`: who is asked, and what the answers become."""

import os
import socket
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path

from api.failures import InputError
from api.inputs import reading
from planner.execute.host_check import look_around, parse_connections
from profiles.cluster import Cluster
from profiles.discovery.hosts import (
    DeviceDefaults,
    HostFacts,
    NominalSpeeds,
    accelerator,
    make_cluster,
    workers,
)
from profiles.discovery.measured import with_measured_links
from profiles.discovery.schedulers import parse_hostfile, parse_kubernetes_nodes, parse_slurm_nodes
from profiles.discovery.topology import with_slurm_switches
from profiles.importers.nccl_tests import read_links

_TOPOLOGY = ("scontrol", "--oneliner", "show", "topology")
_QUESTIONS = {
    "slurm": ("scontrol", "--oneliner", "show", "node"),
    "kubernetes": ("kubectl", "get", "nodes", "--output", "json"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What was obtained elsewhere, and how it tells of switches."""

    file: str | None = None
    """The answer of the source; None: it is asked here."""
    topology: str | None = None
    """Slurm's answer to `scontrol show topology`, where `file` is given."""
    labels: tuple[str, ...] = ()
    """Labels of Kubernetes' nodes that name switches, the outermost first; none: those that are known."""
    is_flat: bool = False
    """Join all hosts by one switch, whatever is told."""


def discover(
    source: str,
    *,
    answers: Answers,
    sizes: DeviceDefaults,
    speeds: NominalSpeeds,
    kind: str,
    name: str | None,
    links: str | None = None,
) -> Cluster:
    """The cluster as `source` describes it: slurm, kubernetes, nvidia-smi (this machine), or a hostfile.

    `answers`: what was obtained elsewhere, for a hostfile the file itself. `links`: tables of the link benchmark, in
    place of nominal speeds. Every mistake is an InputError.
    """
    file = answers.file
    if answers.topology is not None and source != "slurm":
        raise InputError("--topology: is the answer of `scontrol show topology`; it goes with slurm")
    if source == "nvidia-smi":
        hosts = [_this_host(sizes)]
    elif source == "hostfile" and file is None:
        raise InputError("a hostfile is wanted; add --file FILE")
    else:
        with reading():
            text = Path(file).read_text(encoding="utf-8") if file is not None else _ask(_QUESTIONS[source])
            if source == "slurm":
                hosts = with_slurm_switches(parse_slurm_nodes(text, sizes=sizes), _slurm_topology(answers))
            elif source == "kubernetes":
                hosts = parse_kubernetes_nodes(text, sizes=sizes, topology_labels=answers.labels)
            else:
                hosts = parse_hostfile(text, sizes=sizes, kind=kind)
    with reading():
        if answers.is_flat:
            hosts = [replace(host, switches=()) for host in hosts]
        how = "nominal" if links is None else "measured"
        found = make_cluster(name or f"{len(hosts)} hosts by {source}, {how} link speeds", hosts, speeds=speeds)
        return found if links is None else with_measured_links(found, read_links(Path(links)))


def _slurm_topology(answers: Answers) -> str:
    """What Slurm says of its switches; nothing where only its nodes were obtained elsewhere."""
    if answers.topology is not None:
        return Path(answers.topology).read_text(encoding="utf-8")
    return "" if answers.file is not None or answers.is_flat else _ask(_TOPOLOGY)


def _ask(words: tuple[str, ...]) -> str:
    try:
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    except FileNotFoundError:
        raise InputError(
            f"{words[0]} is not installed here; add --file with the answer of `{' '.join(words)}`"
        ) from None
    if done.returncode:
        raise InputError(f"{words[0]}: {done.stderr.strip() or f'exit code {done.returncode}'}")
    return done.stdout


def _this_host(sizes: DeviceDefaults) -> HostFacts:
    """This machine: its accelerators and what joins them, or parts of it where there are none."""
    found = look_around(os.environ)
    name = socket.gethostname()
    if not found.accelerators:
        cores = len(os.sched_getaffinity(0))
        return HostFacts(name=name, devices=workers(cores=cores, memory_bytes=found.memory_bytes, sizes=sizes))
    done = subprocess.run(("nvidia-smi", "topo", "-m"), capture_output=True, text=True, timeout=60, check=False)
    return HostFacts(
        name=name,
        devices=tuple(accelerator(one.name, memory_bytes=one.memory_bytes) for one in found.accelerators),
        nvlink_lanes={pair: int(what[2:]) for pair, what in parse_connections(done.stdout).items() if what[:2] == "NV"},
    )
