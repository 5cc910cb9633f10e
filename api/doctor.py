"""Whether this installation works: versions, compiled kernels, the machine, and a toy plan made and verified."""

import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from itertools import pairwise

from planner.problem import Problem
from planner.release import RELEASE

Check = tuple[str, bool | None, str]
"""What was looked at, whether it is well (None: worth knowing, no more), and the detail."""

_NEEDED = ("ortools", "highspy", "pulp", "numba", "numpy", "networkx", "pydantic", "typer", "rich")
_OPTIONAL = {"torch": "needed only to run plans and to measure profiles", "fastapi": "needed only for the service"}


def run_checks() -> Iterator[Check]:
    """Every check in turn; the last ones take a second."""
    yield "python", None, f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield "pipeplan", True, RELEASE
    yield from (_distribution(name, "") for name in _NEEDED)
    yield from (_distribution(name, purpose) for name, purpose in _OPTIONAL.items())
    yield "cores", None, f"{len(os.sched_getaffinity(0))} for this process, {os.cpu_count()} in the machine"
    yield "memory", None, _memory()
    yield "scratch space", None, f"{shutil.disk_usage(tempfile.gettempdir()).free / 2**30:.1f} GiB free"
    yield _kernel_cache()
    yield _toy_plan()


def _distribution(name: str, purpose: str) -> Check:
    try:
        return name, True, version(name)
    except PackageNotFoundError:
        return name, None if purpose else False, f"not installed; {purpose or 'run make setup'}"


def _memory() -> str:
    page = os.sysconf("SC_PAGE_SIZE")
    total, free = os.sysconf("SC_PHYS_PAGES") * page, os.sysconf("SC_AVPHYS_PAGES") * page
    return f"{total / 2**30:.1f} GiB, {free / 2**30:.1f} GiB free"


def _kernel_cache() -> Check:
    from solver_models.jit import cache_folder

    folder = cache_folder()
    count = sum(1 for _ in folder.rglob("*.nbi"))
    if count:
        return "kernels", True, f"{count} compiled and cached in {folder}"
    return "kernels", None, "not compiled yet; the first run does it (or: python -m solver_models.precompile)"


def _toy_plan() -> Check:
    from planner.planning import make_plan
    from planner.progress import Limits
    from planner.verify import verify

    started = time.monotonic()
    problem = make_toy_problem()
    try:
        plan = make_plan(problem, limits=Limits(time_limit_s=5.0))
        violations = verify(problem, plan).violations
    except Exception as error:  # whatever it is, it is the finding
        return "toy plan", False, f"{type(error).__name__}: {error}"
    taken = f"after {time.monotonic() - started:.1f} s"
    if violations:
        return "toy plan", False, f"rejected {taken}: {violations[0].message}"
    return "toy plan", True, f"made and verified {taken}"


def make_toy_problem() -> Problem:
    """Four equal layers on two devices, three microbatches."""
    from profiles.cluster import Cluster, Device, Link
    from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile

    cost = LayerCost(device_type="toy", forward_ns=1_000_000, input_grad_ns=1_000_000, weight_grad_ns=1_000_000)
    names = ("a", "b", "c", "d")
    profile = ModelProfile(
        name="toy",
        layers=tuple(Layer(name=name, costs=(cost,), parameter_bytes=1024, state_bytes=4096) for name in names),
        edges=tuple(Edge(producer=a, consumer=b, bytes=1024) for a, b in pairwise(names)),
    )
    cluster = Cluster(
        name="toy",
        devices=tuple(Device(name=f"toy{i}", type="toy", memory_bytes=2**30) for i in range(2)),
        links=(Link(a="toy0", b="toy1", bandwidth_bytes_per_s=10**9),),
    )
    return Problem(profile=profile, cluster=cluster, num_microbatches=3)
