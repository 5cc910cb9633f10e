"""Models, device types and clusters by the names that aiconfigurator-core gives them."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from profiles.cluster import Cluster, Device, Link, assumed_reserve_bytes
from profiles.documents.refusal import render_value
from profiles.estimates.model_shapes import ALIASES, ModelShape, read_shape
from profiles.importers.aiconfigurator.tables import NoTablesError, TablePackage

MAX_CONFIG_BYTES = 2 * 10**7


def find_shape(package: TablePackage, model: str) -> ModelShape:
    """A model by its short name, by that of a configuration in the package, or by the path of a config.json.

    Raises ValueError that lists the names.
    """
    configs = package.folder.parent / "model_configs"
    stem = ALIASES.get(model.lower(), model.replace("/", "--"))
    for path in (configs / f"{stem}_config.json", Path(model)):
        if path.is_file():
            with path.open("rb") as file:
                return read_shape(file.read(MAX_CONFIG_BYTES).decode("utf-8", errors="replace"), name=model)
    raise NoTablesError(
        f"no model {render_value(model)}; give one of {', '.join(ALIASES)}, "
        "a name on Hugging Face that aiconfigurator-core has, or the path of a config.json"
    )


def make_cluster(package: TablePackage, hosts: Sequence[tuple[str, int]]) -> Cluster:
    """So many hosts of each device type, with the bandwidths that the package's sheets state.

    Devices of one host (of one rack, where its links reach that far) are joined by a switch, all of them by a network.
    """
    devices: list[Device] = []
    links: list[Link] = []
    switches = ["network"]
    for gpu, count in hosts:
        sheet = package.sheet(gpu)
        node, memory = sheet["node"], int(sheet["gpu"]["mem_capacity"])
        size, reach = int(node["num_gpus_per_node"]), int(node.get("num_gpus_per_rack", node["num_gpus_per_node"]))
        outside = int(node.get("inter_rack_bw", node["inter_node_bw"]))
        latency = round(node.get("p2p_latency", 0) * 1e9) // 2
        for number in range(count * size):
            name, switch = f"{gpu}-{number}", f"{gpu}-switch-{number // reach}"
            devices.append(
                Device(
                    name=name,
                    type=gpu,
                    host=f"{gpu}-host-{number // size}",
                    memory_bytes=memory,
                    reserved_bytes=assumed_reserve_bytes(memory),
                )
            )
            if switch not in switches:
                switches.append(switch)
            links += _links(name, switch, speeds=(int(node["intra_node_bw"]), outside), latency=latency)
    name = " + ".join(f"{count} hosts of {gpu}" for gpu, count in hosts)
    return Cluster(
        name=f"{name}, by their sheets", devices=tuple(devices), links=tuple(links), switches=tuple(switches)
    )


def _links(device: str, switch: str, *, speeds: tuple[int, int], latency: int) -> Iterator[Link]:
    for other, speed in zip((switch, "network"), speeds, strict=True):
        yield Link(a=device, b=other, bandwidth_bytes_per_s=speed, latency_ns=latency)
