"""How fast the host is at a moment: a fixed piece of work in as many processes at once as a run has.

Other guests of a machine slow it down for minutes at a time. A run is compared with a profile that was measured
earlier; what the same work took beside the one and beside the other says how much of their difference is the host's.
"""

import os
import statistics
import subprocess
import sys
import time

import numpy as np

PARTS, SIDE, MIB = 24, 384, 16
"""Parts that are timed, the side of their matrix products, and the megabytes that each of them copies."""


def host_pace(processes: int) -> float:
    """Seconds that a part of the work takes at this moment: the median of the slowest of so many processes."""
    command = [sys.executable, "-m", "benchmarks.host_pace"]
    alone = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=alone) for _ in range(processes)]
    return max(float(process.communicate()[0]) for process in running)


def time_parts() -> list[float]:
    """Seconds that each part took in this process."""
    left, right = np.ones((2, SIDE, SIDE), np.float32)
    source, target = np.ones((2, MIB * 2**18), np.float32)
    found = []
    for _ in range(PARTS):
        begin = time.perf_counter()
        for _ in range(4):
            left @ right
        np.copyto(target, source)
        found.append(time.perf_counter() - begin)
    return found


if __name__ == "__main__":
    sys.stdout.write(f"{statistics.median(time_parts())}\n")
