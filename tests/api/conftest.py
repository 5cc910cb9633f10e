"""What the tests of the command line share."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.api.postgres import PostgresServer
from tests.api.worlds import Shell


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A PostgreSQL server for the whole session."""
    server = PostgresServer()
    yield server
    server.close()


@pytest.fixture
def shell(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Shell:
    """A command line in an empty folder that holds `workload.json` and `plan.json`."""
    shell = Shell(tmp_path, capsys, monkeypatch)
    shell.write_world()
    return shell
