"""`pipeplan cluster discover`."""

import sys
from typing import Annotated, Literal, NamedTuple

from api.cli.options import arguments as arg
from api.cli.options.declare import argument, network, option
from api.cli.options.folded_help import Commands, folded
from api.cli.output import write_document

commands = Commands(no_args_is_help=True, help="Describe the machine.")


@commands.callback()
def cluster() -> None:
    """Describe the machine."""


class _DeviceOptions(NamedTuple):
    """What is assumed of devices where nobody tells it."""

    accelerator_gib: Annotated[
        float | None,
        option("--accelerator-gib N", "Memory per accelerator, where the source does not state it.", min=0.0),
    ] = None
    device_type: Annotated[str, option("--type TYPE", "Device type of a hostfile's slots.")] = "gpu"
    cpus: Annotated[
        bool, option("--cpus", "Hosts without accelerators are devices as well; otherwise they are left out.")
    ] = False
    workers_per_host: Annotated[
        int | None,
        option("--workers-per-host N", "With --cpus: devices of a host without accelerators; default 1.", min=1),
    ] = None


class _SpeedOptions(NamedTuple):
    """Nominal speeds of links, or measured ones."""

    host_gbps: Annotated[
        float,
        option("--host-gb-per-s --host-gbps GB/S", "Nominal gigabytes, between a device and its host.", min=0.001),
    ] = 24.0
    network_gbps: Annotated[float, network("Nominal gigabytes, not gigabits, to the network.")] = 12.5
    oversubscription: Annotated[
        float,
        option("--oversubscription N", "How many times the hosts below a switch exceed its link upwards.", min=0.001),
    ] = 1.0
    links: Annotated[
        str | None,
        option(
            "--links FILE",
            "Tables of the link benchmark (`pipeplan profile --links`), or nccl-tests' output: measured links instead "
            "of nominal ones.",
        ),
    ] = None


class _TopologyOptions(NamedTuple):
    """How the source tells of switches, and which nodes take the job."""

    topology: Annotated[
        str | None,
        option(
            "--topology FILE",
            "The answer of `scontrol show topology` (topology.conf and .yaml as well) or `nvidia-smi topo -m`.",
        ),
    ] = None
    topology_label: Annotated[
        list[str] | None,
        option(
            "--topology-label KEY", "A label of Kubernetes' nodes that names a switch; the outermost first, repeatable."
        ),
    ] = None
    flat: Annotated[bool, option("--flat", "Join all hosts by one switch, whatever the source says of others.")] = False
    tolerate: Annotated[
        list[str] | None, option("--tolerate KEY", "A taint of Kubernetes' nodes that the job tolerates; repeatable.")
    ] = None


@commands.command(
    "discover",
    cls=folded(
        "source", "file", "name", "accelerator_gib", "device_type", "cpus", "links", "topology", "flat", "output"
    ),
    epilog="Examples:\n\npipeplan cluster discover slurm --accelerator-gib 80 -o cluster.json\n\n"
    "pipeplan cluster discover hostfile --file hosts --type A100 --accelerator-gib 40",
)
def cluster_discover_command(
    *,
    source: Annotated[
        Literal["slurm", "kubernetes", "nvidia-smi", "hostfile"],
        argument("SOURCE", "What describes the machine: slurm, kubernetes, nvidia-smi (this machine) or hostfile."),
    ],
    file: Annotated[str | None, option("--file FILE", "Its answer, saved on another machine; or the hostfile.")] = None,
    output: arg.Output = None,
    name: Annotated[str | None, option("--name NAME", "What the cluster is called.")] = None,
    devices: _DeviceOptions,
    speeds: _SpeedOptions,
    switches: _TopologyOptions,
) -> None:
    """Write the cluster that Slurm, Kubernetes, nvidia-smi or a hostfile describes.

    Switches are those of Slurm's topology or Kubernetes' labels. Links have nominal speeds, or measured ones with
    --links. The last line on standard error says what was found, left out and assumed.
    """
    from api.discovery.cluster_discovery import Answers, discover
    from api.failures import InputError
    from api.inputs import require_writable
    from profiles.discovery.hosts import DeviceDefaults, NominalSpeeds
    from profiles.workload import dump_cluster

    require_writable(output)
    if devices.workers_per_host is not None and not devices.cpus:
        raise InputError("--workers-per-host applies to hosts without accelerators, which are left out; add --cpus")
    memory = None if devices.accelerator_gib is None else round(devices.accelerator_gib * 2**30)
    found = discover(
        source,
        answers=Answers(
            file=file,
            topology=switches.topology,
            labels=tuple(switches.topology_label or ()),
            tolerated=tuple(switches.tolerate or ()),
            is_flat=switches.flat,
        ),
        sizes=DeviceDefaults(
            memory_bytes=memory, workers_per_host=(devices.workers_per_host or 1) if devices.cpus else None
        ),
        speeds=NominalSpeeds(
            host_bytes_per_s=round(speeds.host_gbps * 1e9),
            network_bytes_per_s=round(speeds.network_gbps * 1e9),
            oversubscription=speeds.oversubscription,
        ),
        kind=devices.device_type,
        name=name,
        links=speeds.links,
    )
    write_document(dump_cluster(found.cluster), output)
    print(found.line, file=sys.stderr)


@commands.command("links", epilog="Example: pipeplan cluster links links.json")
def cluster_links_command(
    file: Annotated[
        str, argument("FILE", "Tables of the link benchmark (`pipeplan profile --links`), or nccl-tests' output.")
    ],
) -> None:
    """Show measured links by message size: latency, best rate, shared ports."""
    from api.reporting.link_report import describe_links

    print(describe_links(file))
