"""One service for all tests that do not change its settings."""

from collections.abc import Iterator

import pytest

from tests.api.service.servers import Running, serving


@pytest.fixture(scope="session")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A service without keys, with one worker."""
    with serving(tmp_path_factory.mktemp("service")) as started:
        yield started
