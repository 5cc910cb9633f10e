"""The one port of a worker: tests of api/jobs/workers/metrics_port.py."""

from http.client import HTTPConnection

import pytest

from api.jobs.job_metrics import CONTENT_TYPE
from api.jobs.workers.metrics_port import MetricsPort


class Figures:
    """As much of the metrics as the port asks for."""

    def render(self) -> bytes:
        """Nothing but a comment."""
        return b"# none\n"


def test_metrics_and_life_are_told(monkeypatch: pytest.MonkeyPatch):
    """Tests that both paths answer, others are not there, and nobody listens in the end."""
    monkeypatch.setattr("api.jobs.workers.metrics_port.PAUSE_S", 0.01)
    port = MetricsPort(Figures(), ("127.0.0.1", 0))  # type: ignore[arg-type]
    answers = {}
    for path in ("/metrics", "/metrics?x=1", "/livez", "/"):
        connection = HTTPConnection("127.0.0.1", port.port, timeout=5)
        connection.request("GET", path)
        answer = connection.getresponse()
        answers[path] = answer.status, answer.read()
        assert answer.headers["Content-Type"] == CONTENT_TYPE
        connection.close()
    assert answers["/metrics"] == answers["/metrics?x=1"] == (200, b"# none\n")
    assert answers["/livez"] == (200, b"alive\n")
    assert answers["/"] == (404, b"not here\n")
    number = port.port
    port.close()
    with pytest.raises(OSError, match="refused"):
        HTTPConnection("127.0.0.1", number, timeout=5).connect()
