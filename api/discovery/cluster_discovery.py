"""`pipeplan cluster discover`: who is asked, and what the answers become."""

import os
import socket
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import which

from api.discovery.nvidia_host import describe_host
from api.failures import InputError
from api.inputs import reading
from planner.execute.run.host_check import host_memory_bytes
from planner.execute.run.nvidia_smi import (
    CONNECTION_QUESTION,
    QUESTION,
    SLICES_QUESTION,
    UUID_QUESTION,
    names_accelerators,
    parse_accelerators,
    parse_connections,
    parse_uuids,
    without_sliced,
)
from profiles.cluster import Cluster
from profiles.discovery.hostfile import parse_hostfile
from profiles.discovery.hosts import DeviceDefaults, FoundHosts, HostFacts, NominalSpeeds, make_cluster, with_processors
from profiles.discovery.kubernetes_nodes import parse_kubernetes_nodes
from profiles.discovery.measured import with_measured_links
from profiles.discovery.slurm_nodes import parse_slurm_nodes
from profiles.discovery.slurm_topology import with_slurm_switches
from profiles.discovery.summary import describe
from profiles.documents.strict_json import read_text
from profiles.importers.nccl_tests import read_links
from profiles.unlikely_figures import unlikely_figures

_OTHER_TOOLS = ("amd-smi", "rocm-smi", "xpu-smi", "hl-smi", "npu-smi", "neuron-ls")
"""Programs that list accelerators of other makers."""
_TOPOLOGY = ("scontrol", "--oneliner", "show", "topology")
_QUESTIONS = {
    "slurm": ("scontrol", "--oneliner", "show", "node"),
    "kubernetes": ("kubectl", "get", "nodes", "--output", "json"),
    "nvidia-smi": ("nvidia-smi", *QUESTION),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """What was obtained elsewhere, and how it tells of switches."""

    file: str | None = None
    """The answer of the source; None: it is asked here."""
    topology: str | None = None
    """Slurm's answer to `scontrol show topology`, or nvidia-smi's to `topo -m`, where `file` is given."""
    labels: tuple[str, ...] = ()
    """Labels of Kubernetes' nodes that name switches, the outermost first; none: those that are known."""
    tolerated: tuple[str, ...] = ()
    """Keys of Kubernetes' taints that the job tolerates."""
    is_flat: bool = False
    """Join all hosts by one switch, whatever is told."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Discovery:
    """A cluster, and what is to be said about it."""

    cluster: Cluster
    line: str
    """What was told, left out and assumed."""


def discover(
    source: str,
    *,
    answers: Answers,
    sizes: DeviceDefaults,
    speeds: NominalSpeeds,
    kind: str,
    name: str | None,
    links: str | None = None,
) -> _Discovery:
    """The cluster as `source` describes it: slurm, kubernetes, nvidia-smi (this machine), or a hostfile.

    `answers`: what was obtained elsewhere, for a hostfile the file itself. `links`: tables of the link benchmark, in
    place of nominal speeds. Every mistake is an InputError.
    """
    if answers.topology is not None and not (source == "slurm" or (source == "nvidia-smi" and answers.file)):
        raise InputError(
            "--topology: give the output of `scontrol show topology` with slurm, or of `nvidia-smi topo -m` with "
            "nvidia-smi --file"
        )
    with reading():
        found = with_processors(_find(source, answers=answers, sizes=sizes, kind=kind), sizes)
        if answers.is_flat:
            found = replace(found, hosts=tuple(replace(host, switches=()) for host in found.hosts))
        how = "nominal" if links is None else "measured"
        title = name or f"{len(found.hosts)} hosts by {source}, {how} link speeds"
        cluster = make_cluster(title, found.hosts, speeds=speeds)
        if links is not None:
            cluster = with_measured_links(cluster, read_links(Path(links)))
        line = "; ".join([describe(found, speeds=speeds, is_measured=links is not None), *unlikely_figures(cluster)])
        return _Discovery(cluster=cluster, line=line)


def _find(source: str, *, answers: Answers, sizes: DeviceDefaults, kind: str) -> FoundHosts:
    file = answers.file
    if source == "nvidia-smi":
        return _this_host(sizes) if file is None else _described_host(file, answers.topology, sizes=sizes)
    if source == "hostfile" and file is None:
        raise InputError("hostfile: no file is given; add --file FILE")
    text = read_text(file) if file is not None else _ask(_QUESTIONS[source])
    if source == "slurm":
        return with_slurm_switches(parse_slurm_nodes(text, sizes=sizes), _slurm_topology(answers))
    if source == "kubernetes":
        return parse_kubernetes_nodes(text, sizes=sizes, topology_labels=answers.labels, tolerated=answers.tolerated)
    return parse_hostfile(text, sizes=sizes, kind=kind)


def _slurm_topology(answers: Answers) -> str:
    """What Slurm says of its switches; nothing where only its nodes were obtained elsewhere."""
    if answers.is_flat:
        return ""
    if answers.topology is not None:
        return read_text(answers.topology)
    return "" if answers.file is not None else _ask(_TOPOLOGY)


def _ask(command: tuple[str, ...]) -> str:
    done = _run(command)
    if done is None:
        raise InputError(f"{command[0]} is not installed here; add --file with the output of `{' '.join(command)}`")
    if done.returncode:
        raise InputError(
            f"{command[0]}: {done.stderr.strip() or f'exit code {done.returncode}'}; repair it, or give --file"
        )
    return done.stdout


def _run(command: tuple[str, ...]) -> subprocess.CompletedProcess[str] | None:
    """None: the program is not installed."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    except FileNotFoundError:
        return None
    except subprocess.TimeoutExpired:
        raise InputError(
            f"{command[0]} has not answered for two minutes; repair it, or save its output and give --file"
        ) from None


def _this_host(sizes: DeviceDefaults) -> FoundHosts:
    """This machine as it answers; without nvidia-smi it has no accelerators."""
    bare = HostFacts(name=socket.gethostname(), cores=len(os.sched_getaffinity(0)), memory_bytes=host_memory_bytes())
    done = _run(_QUESTIONS["nvidia-smi"])
    if done is None:
        remedy = "name them in a hostfile, with --type and --accelerator-gib"
        others = [f"{tool} is here, whose devices are not read; {remedy}" for tool in _OTHER_TOOLS if which(tool)]
        return FoundHosts(hosts=(bare,), notes=tuple(others))
    try:
        rows = parse_accelerators(done.stdout if not done.returncode else f"{done.stdout}\n{done.stderr}")
        if done.returncode and not rows.working and not rows.lost:
            raise ValueError(f"nvidia-smi ends with exit code {done.returncode}; repair its driver and try again")
    except ValueError as error:
        if sizes.workers_per_host is None:
            raise ValueError(f"{error}, or add --cpus to plan for processors alone") from None
        return FoundHosts(hosts=(bare,), notes=(f"accelerators are unknown: {error}",))
    connections = _said(CONNECTION_QUESTION)
    has_names = names_accelerators(os.environ.get("CUDA_VISIBLE_DEVICES"))
    return describe_host(
        bare,
        without_sliced(rows, _said(SLICES_QUESTION)),
        connections=connections if parse_connections(connections) else "",
        sizes=sizes,
        environment=os.environ,
        uuids=parse_uuids(_said(UUID_QUESTION)) if has_names else {},
    )


def _said(question: tuple[str, ...]) -> str:
    """What nvidia-smi answers to what not every version and device knows; empty: nothing."""
    done = _run(("nvidia-smi", *question))
    return "" if done is None else done.stdout


def _described_host(file: str, topology: str | None, *, sizes: DeviceDefaults) -> FoundHosts:
    """A machine whose answers were obtained elsewhere."""
    connections = "" if topology is None else read_text(topology)
    rows = parse_accelerators(read_text(file))
    bare = HostFacts(name="host0")
    found = describe_host(bare, rows, connections=connections, sizes=sizes, environment={}, uuids={})
    return replace(found, assumed=(f"the name {bare.name}", *found.assumed))
