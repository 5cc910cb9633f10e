"""The service itself, without its doors: tests of api/service/core.py."""

from tests.api.service.servers import Running, wait_ready
from tests.api.service.test_http import request


def test_life_and_readiness(running: Running):
    """Tests that the service lives at once and is ready when it has solved and verified a toy plan."""
    assert request(running, "GET", "/livez")[0] == 200
    wait_ready(running)
    assert request(running, "GET", "/readyz")[0] == 200
