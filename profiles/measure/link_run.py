"""Start the processes of a link measurement on this host, and read what they found; needs no torch itself."""

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from profiles.measure.host_processes import HostProcess, HostProcesses
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
        processes = host.start_ranks(WORKER, str(output), *arguments, count=num_devices, folder=Path(folder))
        try:
            _wait(processes, folder=Path(folder), timeout_s=timeout_s, hear=hear)
        finally:
            for process in processes:
                process.kill()
        return load_links(output)


def _wait(
    processes: list[HostProcess],
    *,
    folder: Path,
    timeout_s: float,
    hear: Callable[[int, int], None] | None,
) -> None:
    """Until all have ended well; the first that fails, or the time, ends it badly."""
    deadline = time.monotonic() + timeout_s
    total = len(choose_pairs([""] * len(processes)))
    while True:
        codes = [process.poll() for process in processes]
        for rank, code in enumerate(codes):
            if code:
                raise ValueError(
                    f"links: process {rank} ended with {code} ({_last_lines(folder, rank)}); "
                    "try again, or add --no-links"
                )
        if hear is not None:
            hear(_count_lines(folder / "progress"), total)
        if all(code == 0 for code in codes):
            return
        if time.monotonic() > deadline:
            raise ValueError(f"links: not done after {timeout_s:.0f} s; measure fewer devices, or leave links out")
        time.sleep(0.05)


def _last_lines(folder: Path, rank: int) -> str:
    lines = (folder / f"log{rank}").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return lines[-1][:300] if lines else "it said nothing"


def _count_lines(path: Path) -> int:
    return path.read_text(encoding="utf-8").count("\n") if path.exists() else 0
