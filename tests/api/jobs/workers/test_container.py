"""How much memory this machine or container has, and who gets it: tests of api/jobs/workers/container.py."""

import os
from itertools import product
from pathlib import Path

import pytest

from api.jobs.workers.container import GIB, available_bytes, share_out


def test_memory_is_shared_out():
    """Tests that solvers, helpers and the service fit into the container together, and what does not is refused."""
    for total in (1, 2, 3, 4, 6, 8, 16, 64):
        for solvers, helpers, asked in product((0, 1, 2), (0, 8), (None, 1, 2, 4, 9)):
            least = GIB // 2 + (GIB if helpers else 0) + solvers * (asked or 1) * GIB
            bytes_asked = None if asked is None else asked * GIB
            if least > total * GIB:
                with pytest.raises(ValueError, match=rf"do not fit into the {total}\.0 GiB"):
                    share_out(total * GIB, asked_bytes=bytes_asked, num_solvers=solvers, num_helpers=helpers)
                continue
            shares = share_out(total * GIB, asked_bytes=bytes_asked, num_solvers=solvers, num_helpers=helpers)
            held = GIB // 2 + solvers * shares.solver_bytes
            held += shares.num_helpers * shares.helper_bytes if helpers else 0
            assert held <= total * GIB, (total, solvers, helpers, asked)
            assert min(shares.solver_bytes, shares.helper_bytes) >= GIB
            assert asked is None or shares.solver_bytes == asked * GIB


@pytest.mark.parametrize(
    ("total", "asked", "solvers", "said"),
    [
        (4, 4, 1, r"4 GiB and 1.5 GiB for the service and a helper .* give solvers at most 2.5 GiB, or fewer"),
        (8, 5, 2, r"2 solver processes of 5 GiB .* at most 3.25 GiB"),
        (3, None, 2, r"2 solver processes of 1 GiB .* give at most 1 --workers, or the container at least 3.5 GiB"),
        (2, None, 1, r"give the container at least 2.5 GiB"),
        (1, None, 0, r"^1.5 GiB for the service and a helper do .* give the container at least 1.5 GiB"),
    ],
)
def test_what_does_not_fit_says_what_would(total: int, asked: int | None, solvers: int, said: str):
    """Tests that a refusal of memory names what would fit."""
    with pytest.raises(ValueError, match=said):
        share_out(
            total * GIB,
            asked_bytes=None if asked is None else asked * GIB,
            num_solvers=solvers,
            num_helpers=1,
        )


def test_the_limit_is_the_containers(tmp_path: Path):
    """Tests that what there is to share is the container's limit, or the machine's memory where there is none."""
    (tmp_path / "max").write_text("max\n")
    (tmp_path / "limit").write_text("1048576\n")
    assert available_bytes((str(tmp_path / "max"), str(tmp_path / "none"))) == os.sysconf("SC_PAGE_SIZE") * os.sysconf(
        "SC_PHYS_PAGES"
    )
    assert available_bytes((str(tmp_path / "max"), str(tmp_path / "limit"))) == 1048576
