"""`pipeplan cluster discover`."""

from typing import NamedTuple

import typer

from api.cli import arguments as arg
from api.cli.option_groups import takes_groups
from api.cli.output import write_document

commands = typer.Typer(no_args_is_help=True, help="Describe the machine.")


@commands.callback()
def cluster() -> None:
    """Describe the machine."""


class DeviceOptions(NamedTuple):
    """What is assumed of devices where nobody tells it."""

    accelerator_gib: arg.AcceleratorGib = None
    device_type: arg.SlotType = "gpu"
    workers_per_host: arg.WorkersPerHost = 1


class SpeedOptions(NamedTuple):
    """Nominal speeds of links."""

    host_gbps: arg.HostSpeed = 24.0
    network_gbps: arg.NetworkSpeed = 12.5


@commands.command(
    "discover",
    epilog="Examples:\n\npipeplan cluster discover slurm --accelerator-gib 80 -o cluster.json\n\n"
    "pipeplan cluster discover hostfile --file hosts --type A100 --accelerator-gib 40",
)
@takes_groups
def cluster_discover_command(
    *,
    source: arg.DiscoverySource,
    file: arg.DiscoveryFile = None,
    output: arg.Output = None,
    name: arg.ClusterName = None,
    devices: DeviceOptions,
    speeds: SpeedOptions,
    links: arg.MeasuredLinks = None,
) -> None:
    """Write the cluster that Slurm, Kubernetes, nvidia-smi or a hostfile describes.

    Links have nominal speeds, or with --links those that the link benchmark measured.
    """
    from api.cluster_discovery import discover
    from api.inputs import require_writable
    from profiles.discovery.hosts import DeviceDefaults, NominalSpeeds
    from profiles.workload import dump_cluster

    require_writable(output)
    memory = None if devices.accelerator_gib is None else round(devices.accelerator_gib * 2**30)
    found = discover(
        source,
        file=file,
        sizes=DeviceDefaults(memory_bytes=memory, workers_per_host=devices.workers_per_host),
        speeds=NominalSpeeds(
            host_bytes_per_s=round(speeds.host_gbps * 1e9), network_bytes_per_s=round(speeds.network_gbps * 1e9)
        ),
        kind=devices.device_type,
        name=name,
        links=links,
    )
    write_document(dump_cluster(found), output)
