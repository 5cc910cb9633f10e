"""nginx before the service, with the file of `docker/nginx`: what the operating page says; skipped where it is not."""

import http.client
import json
import os
import shutil
import ssl
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from api.client import workload_document
from api.doctor import make_toy_problem
from api.service.http.request_body import too_large
from api.settings import ClientLimits
from tests.api.jobs.workers.test_pool import large_problem
from tests.api.service.servers import Running, serving
from tests.free_ports import free_port

CONFIGURATION = Path(__file__).resolve().parents[2] / "docker" / "nginx" / "pipeplan.conf"

NGINX = shutil.which("nginx") or "/usr/sbin/nginx"

pytestmark = pytest.mark.skipif(
    not Path(NGINX).exists() or shutil.which("openssl") is None, reason="nginx or openssl is not installed"
)

SURROUNDINGS = """
{user}
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
events {{ }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/pipeplan.conf;
}}
"""


@dataclass(frozen=True, kw_only=True)
class Site:
    """The service behind nginx."""

    running: Running
    port: int
    certificate: Path
    key: str

    def connect(self) -> http.client.HTTPSConnection:
        """A connection that trusts this certificate and no other."""
        trusted = ssl.create_default_context(cafile=str(self.certificate))
        return http.client.HTTPSConnection("127.0.0.1", self.port, timeout=60, context=trusted)

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
        """One request: status, headers in lower case, body."""
        connection = self.connect()
        data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        given = {"Authorization": f"Bearer {self.key}"} | ({} if data is None else {"Content-Type": "application/json"})
        try:
            connection.request(method, path, body=data, headers=given | headers)
            answer = connection.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        finally:
            connection.close()


def make_certificate(folder: Path) -> Path:
    """Signed by itself, for this address."""
    names = ("-subj", "/CN=127.0.0.1", "-addext", "subjectAltName=IP:127.0.0.1")
    files = ("-keyout", str(folder / "pipeplan.key"), "-out", str(folder / "pipeplan.crt"))
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", *names, *files]
    subprocess.run(command, check=True, capture_output=True)
    return folder / "pipeplan.crt"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The file as it is, but for ports and places."""
    folder, port = tmp_path_factory.mktemp("nginx"), free_port()
    certificate = make_certificate(folder)
    with serving(tmp_path_factory.mktemp("data"), needs_keys=True) as running:
        text = CONFIGURATION.read_text(encoding="utf-8")
        for stated, here in (
            ("127.0.0.1:8765", f"127.0.0.1:{running.port}"),
            ("listen 443 ssl", f"listen 127.0.0.1:{port} ssl"),
            ("/etc/nginx/pipeplan", f"{folder}/pipeplan"),
        ):
            assert stated in text
            text = text.replace(stated, here)
        (folder / "pipeplan.conf").write_text(text)
        around = SURROUNDINGS.format(folder=folder, user="user root;" if os.getuid() == 0 else "")
        (folder / "nginx.conf").write_text(around)
        nginx = subprocess.Popen([NGINX, "-p", str(folder), "-c", str(folder / "nginx.conf")], stderr=subprocess.PIPE)
        made = Site(running=running, port=port, certificate=certificate, key=running.key("team"))
        try:
            wait_for(made, nginx)
            yield made
        finally:
            nginx.terminate()
            nginx.communicate(timeout=30)


def wait_for(site: Site, nginx: "subprocess.Popen[bytes]") -> None:
    """Until nginx answers for the service."""
    until = time.monotonic() + 30
    while True:
        assert nginx.poll() is None, nginx.communicate()
        try:
            if site.ask("GET", "/livez")[0] == 200:
                return
        except OSError:
            assert time.monotonic() < until
            time.sleep(0.05)


def test_a_plan_over_https(site: Site):
    """Tests that a plan is made over HTTPS, that the browser is told to stay there, and that request ids are kept."""
    body = {"workload": workload_document(make_toy_problem()), "limits": {"max_rounds": 1}}
    status, headers, text = site.ask("POST", "/v1/plans", body, Prefer="wait=60")
    assert (status, json.loads(text)["state"]) == (200, "succeeded")
    assert headers["strict-transport-security"].startswith("max-age=")
    named = {"X-Request-ID": "asked-by-me"}
    assert site.ask("GET", "/v1/plans", **named)[1]["x-request-id"] == "asked-by-me"
    assert len(site.ask("GET", "/v1/plans")[1]["x-request-id"]) == 32


def test_events_come_as_they_happen(site: Site):
    """Tests that nginx does not keep events back: the first is here while the search is on."""
    body = {"workload": workload_document(large_problem()), "limits": {"time_limit_s": 600, "threads": 1}}
    job = json.loads(site.ask("POST", "/v1/plans", body)[2])
    connection = site.connect()
    try:
        connection.request("GET", job["links"]["events"], headers={"Authorization": f"Bearer {site.key}"})
        stream = connection.getresponse()
        assert stream.getheader("content-type", "").startswith("text/event-stream")
        assert b":" in stream.readline()
        assert json.loads(site.ask("GET", job["links"]["self"])[2])["state"] in ("queued", "running")
    finally:
        connection.close()
        site.ask("DELETE", job["links"]["self"])


def test_refusals_are_as_the_services(site: Site):
    """Tests that bodies reach the service, larger ones are refused in its words, and refusals stay as they are."""
    for method, path, body, expected in (
        ("POST", "/v1/plans", b'"' + b"x" * (8 * 2**20 - 2) + b'"', 422),
        ("POST", "/v1/plans", b'"' + b"x" * (8 * 2**20) + b'"', 413),
        ("GET", "/v1/plans/" + "0" * 32, None, 404),
    ):
        status, headers, text = site.ask(method, path, body)
        assert (status, headers["content-type"]) == (expected, "application/problem+json")
        assert json.loads(text)["status"] == expected
        if expected == 413:
            assert json.loads(text) == too_large(ClientLimits().max_body_bytes).document()
    status, headers, _ = site.ask("GET", "/v1/plans", Authorization="Bearer nobody")
    assert (status, headers["content-type"]) == (401, "application/problem+json")


def test_metrics_stay_inside(site: Site):
    """Tests that nobody reads metrics through the proxy."""
    assert site.ask("GET", "/metrics")[0] == 403
