"""Somebody who hears what is posted, on a port of the loopback interface."""

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from api.signatures import HEADER


@dataclass
class Listener:
    """Somebody who hears webhooks and notices."""

    port: int = 0
    status: int = 200
    """What it answers."""
    heard: list[tuple[str, bytes]] = field(default_factory=list)
    """Signatures and bodies."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook?a=b"


@contextlib.contextmanager
def listening() -> Iterator[Listener]:
    """One that listens for as long as the context lasts."""
    made = Listener()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["Content-Length"]))
            made.heard.append((self.headers[HEADER], body))
            self.send_response(made.status)
            self.send_header("Location", "/elsewhere")
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    made.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield made
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
