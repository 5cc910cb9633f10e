"""Start the processes of a link measurement on this host, and read what they found; needs no torch itself."""

import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from profiles.measure.host_processes import HostProcesses
from profiles.measure.links import LinkTables, choose_pairs, load_links

WORKER = "profiles.measure.link_worker"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceKind:
    """What the processes run on, all of them on one kind."""

    device: str = "cpu"
    """As torch names it."""
    device_type: str = ""
    """What layer costs call it; empty: as torch does."""
    memory_bytes: int = 0
    """Of each device; 0: an equal part of what is free."""


def measure_links(
    num_devices: int,
    *,
    host: HostProcesses,
    kind: DeviceKind = DeviceKind(),
    repetitions: int = 7,
    largest_bytes: int = 0,
    timeout_s: float = 600.0,
    hear: Callable[[int, int], None] | None = None,
) -> LinkTables:
    """Tables between `num_devices` processes of this host; `hear` is told how many pairs of how many are done.

    `largest_bytes`: of a message; 0: 16 MiB, or 256 MiB on accelerators.
    Raises ValueError with what the processes said if they do not come to an end.
    """
    with tempfile.TemporaryDirectory(prefix="pipeplan-links-") as folder:
        output, progress = Path(folder, "links.json"), Path(folder, "progress")
        settings = {
            "--device": kind.device,
            "--device-type": kind.device_type,
            "--memory": kind.memory_bytes,
            "--repetitions": repetitions,
            "--largest": largest_bytes,
            "--rendezvous": f"file://{folder}/rendezvous",
            "--progress": progress,
        }
        arguments = [str(argument) for pair in settings.items() for argument in pair]
        total = len(choose_pairs([""] * num_devices))

        def look() -> None:
            if hear is not None:
                hear(progress.read_text(encoding="utf-8").count("\n") if progress.exists() else 0, total)

        here = Path(folder)
        reason = host.run_ranks(
            WORKER, str(output), *arguments, count=num_devices, folder=here, timeout_s=timeout_s, look=look
        )
        if reason:
            raise ValueError(f"links: {reason}; try again, measure fewer devices, or add --no-links")
        look()
        return load_links(output)
