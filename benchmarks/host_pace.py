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

PARTS, SIDE, MIB = 320, 384, 16
"""Parts that are timed, the side of their matrix products, and the megabytes that each of them copies: two seconds.

On a host whose work took the same for a minute, medians of 24 parts lay up to 29 % apart, averages of 320 parts 6: what
a run of seconds meets is the average over as long.
"""


def host_pace(processes: int) -> float:
    """Seconds that a part of the work takes at this moment: the average of the slowest of so many processes.

    Each keeps to a core of its own, as those of a run do.
    """
    alone = os.environ | {"OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    cores = sorted(os.sched_getaffinity(0))
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "benchmarks.host_pace", str(cores[number % len(cores)])],
            stdout=subprocess.PIPE,
            text=True,
            env=alone,
        )
        for number in range(processes)
    ]
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
    os.sched_setaffinity(0, {int(sys.argv[1])})
    sys.stdout.write(f"{statistics.mean(time_parts())}\n")
