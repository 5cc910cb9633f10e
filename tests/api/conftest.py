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
    from api.jobs.stores.sql_store import SqlStore
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


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SqlStore]:
    """An empty store on each engine."""
    from api.jobs.stores.sql_store import SqlStore

    if request.param == "sqlite":
        from api.jobs.stores.sqlite import SqliteDatabase

        made = SqlStore(SqliteDatabase(tmp_path / "jobs.sqlite"))
    else:
        from api.jobs.stores.postgres import PostgresDatabase

        made = SqlStore(PostgresDatabase(request.getfixturevalue("postgres").fresh_database()))
    yield made
    made.close_all()
