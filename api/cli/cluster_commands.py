"""`pipeplan cluster discover`."""

import sys
from typing import NamedTuple

from api.cli.options import arguments as arg
from api.cli.options.folded_help import Commands, folded
from api.cli.output import write_document

commands = Commands(no_args_is_help=True, help="Describe the machine.")


@commands.callback()
def cluster() -> None:
    """Describe the machine."""


class _DeviceOptions(NamedTuple):
    """What is assumed of devices where nobody tells it."""

    accelerator_gib: arg.AcceleratorGib = None
    device_type: arg.SlotType = "gpu"
    cpus: arg.CountsProcessors = False
    workers_per_host: arg.WorkersPerHost = None


class _SpeedOptions(NamedTuple):
    """Nominal speeds of links, or measured ones."""

    host_gbps: arg.HostSpeed = 24.0
    network_gbps: arg.NetworkSpeed = 12.5
    oversubscription: arg.Oversubscription = 1.0
    links: arg.MeasuredLinks = None


class _TopologyOptions(NamedTuple):
    """How the source tells of switches, and which nodes take the job."""

    topology: arg.TopologyFile = None
    topology_label: arg.TopologyLabels = None
    flat: arg.IsFlat = False
    tolerate: arg.ToleratedTaints = None


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
    source: arg.DiscoverySource,
    file: arg.DiscoveryFile = None,
    output: arg.Output = None,
    name: arg.ClusterName = None,
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
def cluster_links_command(file: arg.LinkFile) -> None:
    """Show measured links by message size: latency, best rate, shared ports."""
    from api.reporting.link_report import describe_links

    print(describe_links(file))
