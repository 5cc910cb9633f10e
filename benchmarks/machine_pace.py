"""How fast the machine is at the moment: a fixed job on all its cores, of sines in the cache and copies beyond it.

Shared machines change their pace by the minute. A prediction is made at the pace of its profile; held against a run at
another pace, the difference is the machine's.
"""

import os
import time
from concurrent.futures import ThreadPoolExecutor

import numpy

SINES, COPIES = 400, 60
"""Repetitions: about a tenth of a second each."""


def _job() -> None:
    """Numpy lets go of the interpreter in both: threads run side by side."""
    small = numpy.linspace(0.0, 1.0, 1 << 14)
    large = numpy.zeros(1 << 20)
    other = numpy.empty_like(large)
    for _ in range(SINES):
        numpy.sin(small, out=small)
    for _ in range(COPIES):
        numpy.copyto(other, large)


def pace_s() -> float:
    """Seconds that the job takes on all cores at once: more means a slower machine."""
    cores = len(os.sched_getaffinity(0))
    with ThreadPoolExecutor(cores) as threads:
        begin = time.perf_counter()
        for done in [threads.submit(_job) for _ in range(cores)]:
            done.result()
        return time.perf_counter() - begin
