"""The one port of a worker: its metrics, and whether it lives."""

import logging
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from api.jobs.job_metrics import CONTENT_TYPE, JobMetrics

logger = logging.getLogger(__name__)

PAUSE_S = 0.5
"""Longest wait for the server to close."""


class _Server(ThreadingHTTPServer):
    """Logs what went wrong while it answered, where the standard library prints it."""

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Somebody hung up, most often."""
        del request, client_address
        logger.warning("a look at the metrics was not answered", exc_info=True)


class MetricsPort:
    """Answers `/metrics` and `/livez` from a thread."""

    def __init__(self, metrics: JobMetrics, address: tuple[str, int]) -> None:
        """Raises OSError if the port is taken."""

        class Handler(BaseHTTPRequestHandler):
            timeout = 5.0

            def do_GET(self) -> None:
                """Metrics, life, or nothing."""
                bodies = {"/metrics": metrics.render(), "/livez": b"alive\n"}
                found = bodies.get(self.path.partition("?")[0])
                body = found or b"not here\n"
                self.send_response(404 if found is None else 200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *arguments: object) -> None:
                """Looks at metrics are not logged."""

        self._server = _Server(address, Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(PAUSE_S,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """On which it listens."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Listen no longer."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
