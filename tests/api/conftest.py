"""What the tests of the command line share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from api.jobs.workers.solver_handle import Child
from tests.api.forked_solvers import fork_solver, load_solver
from tests.api.worlds import Shell

if TYPE_CHECKING:
    from tests.api.postgres import PostgresServer


@pytest.fixture(scope="session", autouse=True)
def _forked_solvers() -> Iterator[None]:
    """Solver processes are forks of one that has loaded the solvers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Child, "_open", fork_solver)
        yield


@pytest.fixture
def _real_solvers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Solver processes load the solvers, as they do for everybody else."""
    monkeypatch.setattr(Child, "_open", load_solver)


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server for the whole session."""
    from tests.api.postgres import PostgresServer  # quick tests go without its driver

    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A command line in an empty folder that holds `workload.json` and `plan.json`."""
    shell = Shell(tmp_path, capsys, monkeypatch)
    shell.write_world()
    return shell
