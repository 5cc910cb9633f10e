"""Webhooks: what is written down with the end of a job is said, signed, until it is heard."""

import json
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from api.jobs.stores.postgres import PostgresDatabase
from api.jobs.stores.sql_store import SqlStore
from api.jobs.stores.sqlite import SqliteDatabase
from api.jobs.stores.transactions import Database
from api.running.notices import notify_service
from api.service import webhooks as service_webhooks
from api.service.webhooks import MOST_ATTEMPTS, MOST_PER_TENANT, Webhooks, WebhookSender
from api.signatures import is_signed
from tests.api.jobs.stores.test_store import DONE, claim, submit
from tests.api.listening import Listener, listening
from tests.api.service.servers import serving
from tests.api.service.test_http import request
from tests.api.worlds import Shell


@pytest.fixture
def listener() -> Iterator[Listener]:
    with listening() as made:
        yield made


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Database]:
    """An empty store on each engine."""
    if request.param == "sqlite":
        made: Database = SqliteDatabase(tmp_path / "jobs.sqlite")
    else:
        made = PostgresDatabase(request.getfixturevalue("postgres").fresh_database())
    SqlStore(made)
    yield made
    made.close_all()


def end_a_job(database: Database, tenant: str = "a") -> str:
    store = SqlStore(database)
    submit(store, tenant, project="p", tags=" t ")
    job = claim(store)
    store.finish(job, DONE)
    return job.id


def test_the_end_of_a_job_is_said_once(database: Database, listener: Listener):
    """Tests that the tenant's webhook hears of the end with its signature, and nobody else's does."""
    webhooks = Webhooks(database, hosts=["127.0.0.*"])
    _, secret = webhooks.create("a", listener.url)
    webhooks.create("b", listener.url)
    job_id = end_a_job(database)
    for _ in range(2):
        WebhookSender(webhooks).deliver_due()
    ((signature, body),) = listener.heard
    assert is_signed(secret, body, header=signature, now=time.time())
    told = json.loads(body)
    assert (told["event"], told["id"], told["state"], told["tags"]) == ("plan.ended", job_id, "succeeded", ["t"])


def test_a_clock_that_is_set_back_delays_no_delivery(tmp_path: Path, listener: Listener):
    """Tests that what is due at a time that is hours off again is said at once."""
    database = SqliteDatabase(tmp_path / "jobs.sqlite")
    SqlStore(database)
    webhooks = Webhooks(database, hosts=["127.0.0.1"])
    webhooks.create("a", listener.url)
    end_a_job(database)
    earlier = database.now() - 24 * 3600
    database.now = lambda: earlier  # type: ignore[method-assign]
    WebhookSender(webhooks).deliver_due()
    assert len(listener.heard) == 1


@pytest.mark.parametrize("status", [500, 302, 404])
def test_who_does_not_hear_is_told_again(tmp_path: Path, listener: Listener, status: int):
    """Tests that an answer other than 2xx is followed by another try, later and later, and at last by none."""
    database = SqliteDatabase(tmp_path / "jobs.sqlite")
    SqlStore(database)
    webhooks = Webhooks(database, hosts=["127.0.0.1"])
    webhooks.create("a", listener.url)
    end_a_job(database)
    listener.status, begin, waits = status, database.now(), []
    now = begin
    database.now = lambda: now  # type: ignore[method-assign]
    for _ in range(MOST_ATTEMPTS):
        WebhookSender(webhooks).deliver_due()
        with database.transaction() as cursor:
            cursor.execute("SELECT due_at FROM deliveries")
            row = cursor.fetchone()
        if row is not None:
            waits.append(row[0] - now)
            now = row[0]
    assert len(listener.heard) == MOST_ATTEMPTS
    assert waits == sorted(waits)
    assert row is None
    database.close_all()


def trickle(server: socket.socket, said: list[int]) -> None:
    """An answer whose status line comes byte by byte, for ten seconds at most."""
    with suppress(OSError):
        connection, _ = server.accept()
        with connection:
            for _ in range(100):
                connection.sendall(b"H")
                said[0] += 1
                time.sleep(0.1)


def test_sides_that_are_slow_keep_no_other_waiting(tmp_path: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch):
    """Tests that beside one that never answers and one whose answer trickles, a third hears, and all ends in time."""
    monkeypatch.setattr(service_webhooks, "ANSWER_S", 0.5)
    database = SqliteDatabase(tmp_path / "jobs.sqlite")
    SqlStore(database)
    webhooks, said = Webhooks(database, hosts=["127.0.0.1"]), [0]
    with socket.create_server(("127.0.0.1", 0)) as silent, socket.create_server(("127.0.0.1", 0)) as slow:
        for tenant, server in {"a": silent, "b": slow}.items():
            webhooks.create(tenant, f"http://127.0.0.1:{server.getsockname()[1]}/")
        webhooks.create("c", listener.url)
        for tenant in "abc":
            end_a_job(database, tenant)
        trickling = threading.Thread(target=trickle, args=(slow, said))
        trickling.start()
        WebhookSender(webhooks).deliver_due()
        trickling.join()
    assert len(listener.heard) == 1
    assert said[0] < 90, "waited for all of the answer"
    assert len(database.read("SELECT job_id FROM deliveries WHERE attempts = 1")) == 2
    database.close_all()


def test_two_doors_say_it_once(database: Database, listener: Listener):
    """Tests that of two doors that look at the same time one delivers, and a door that dies leaves it to another."""
    webhooks = Webhooks(database, hosts=["127.0.0.1"])
    webhooks.create("a", listener.url)
    end_a_job(database)
    first, second = webhooks.take_due(), webhooks.take_due()
    assert (len(first), len(second)) == (1, 0)
    later = database.now() + 61.0
    database.now = lambda: later  # type: ignore[method-assign]
    assert len(webhooks.take_due()) == 1


@pytest.mark.parametrize(
    "url",
    [
        "http://10.0.0.1/",
        "http://169.254.169.254/latest",
        "ftp://hooks.example.com/",
        "http://user:pw@hooks.example.com/",
        "http://hooks.example.com:99999/",
        "http://hooks.example.com.evil.org/",
        "http://[::1/",
        "hooks.example.com",
        "",
        "http://hooks.example.com/a b",
        "http://hooks.example.com/a?b= c",
        " http://hooks.example.com/",
        "http://hooks.example.com/ ",
        "http://hooks .example.com/",
        "http:// hooks.example.com/",
        "http://hooks.example.com/\t",
        "http://hooks.example.com\r\nX: y/",
        "http://hooks.example.com/\u00a0",
        "http://hooks.example.com/\x7f",
        "http://hooks.example.com/%zz",
        "http://hooks.example.com/a|b",
        "http://hooks.example.com\\@evil.org/",
        "http://user@hooks.example.com/",
        "http://@hooks.example.com/",
        "http:///a",
        "http://?.example.com",
        "http://:80/",
        "http://.example.com/",
        "http://a..example.com/",
        "http://-a.example.com/",
        "http://%61.example.com/",
        "http://hooks.example.com:0/",
        "http://hooks.example.com:-1/",
        "http://hooks.example.com:+80/",
        "http://hooks.example.com:8o/",
        "//hooks.example.com/",
        "javascript://hooks.example.com/",
    ],
)
def test_only_allowed_hosts(tmp_path: Path, url: str):
    """Tests that an address that the operator did not allow, or that is none, is refused."""
    assert not Webhooks(SqliteDatabase(tmp_path / "s"), hosts=["*.example.com"]).allows(url)
    assert not Webhooks(SqliteDatabase(tmp_path / "s"), hosts=["*"]).allows(url) or is_elsewhere(url)


def is_elsewhere(url: str) -> bool:
    """Whether it is an address, of a host that was not allowed."""
    return url.startswith(("http://10.", "http://169.")) or "evil" in url


@pytest.mark.parametrize(
    ("url", "hosts"),
    [
        ("https://hooks.example.com/a?b=c", "*.example.com"),
        ("HTTPS://Hooks.Example.com/a%20b", "*.example.com"),
        ("http://hooks.example.com", "*.example.com"),
        ("http://hooks.example.com:8080?a=[1]&b=(x)!#part", "hooks.example.com"),
        ("http://hooks_1.example.com./", "*.example.com."),
        ("http://[::1]:80/", "::1"),
        ("http://127.0.0.1:8000/hook", "127.0.0.*"),
    ],
)
def test_right_addresses_are_taken(tmp_path: Path, url: str, hosts: str):
    """Tests that whatever RFC 3986 lets stand in the address of an allowed host is taken."""
    assert Webhooks(SqliteDatabase(tmp_path / "s"), hosts=[hosts]).allows(url)


def test_webhooks_over_http(tmp_path: Path, listener: Listener):
    """Tests that a webhook that is named over HTTP hears of a plan, is listed without its secret, and is taken back."""
    with serving(tmp_path, webhook_hosts=("127.0.0.1",), num_workers=0) as running:
        status, headers, text = request(running, "POST", "/v1/webhooks", {"url": listener.url})
        made = json.loads(text)
        assert status == 201, text
        listed = json.loads(request(running, "GET", "/v1/webhooks")[2])["webhooks"]
        assert [row["url"] for row in listed] == [listener.url]
        assert made["secret"] not in json.dumps(listed)
        job_id = end_a_job(running.service.database, "local")
        until = time.monotonic() + 30
        while not listener.heard:
            assert time.monotonic() < until
            time.sleep(0.05)
        assert json.loads(listener.heard[0][1])["id"] == job_id
        assert request(running, "DELETE", headers["location"])[0] == 204
        assert request(running, "DELETE", headers["location"])[0] == 404
        for _ in range(MOST_PER_TENANT):
            assert request(running, "POST", "/v1/webhooks", {"url": listener.url})[0] == 201
        for url in (listener.url, "http://example.org/", "http://127.0.0.1/a b"):
            status, headers, text = request(running, "POST", "/v1/webhooks", {"url": url})
            assert (status, headers["content-type"]) == (422, "application/problem+json")
            assert json.loads(text)["errors"][0]["pointer"] == "/url"
        assert request(running, "POST", "/v1/webhooks", {"url": 5})[0] == 422


def test_notices_reach_webhooks(
    tmp_path: Path, listener: Listener, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """Tests that what `watch` and launched jobs tell of a plan at its address is heard, signed, every time anew; that a
    service that is not there only costs a line; and that another tenant's plan cannot be told of."""
    with serving(tmp_path, webhook_hosts=("127.0.0.1",), num_workers=0) as running:
        secret = json.loads(request(running, "POST", "/v1/webhooks", {"url": listener.url})[2])["secret"]
        job_id = submit(SqlStore(running.service.database), "local").id
        elsewhere = submit(SqlStore(running.service.database), "other").id
        notify_service("drifted", {"factor": 1.5}, url=f"{running.url}/?plan={job_id}")
        monkeypatch.setenv("PIPEPLAN_NOTIFY", f"{running.url}/v1/plans/{job_id}")
        for _ in range(2):
            notify_service("device_lost", {"lost": ["gpu3"]}, url=None)
        until = time.monotonic() + 120
        while len(listener.heard) < 3:
            assert time.monotonic() < until
            time.sleep(0.05)
        told = [json.loads(body) for _, body in listener.heard]
        assert sorted(each["event"] for each in told) == ["plan.device_lost", "plan.device_lost", "plan.drifted"]
        assert {each["id"] for each in told} == {job_id}
        assert all(is_signed(secret, body, header=sign, now=time.time()) for sign, body in listener.heard)
        body = {"event": "drifted", "detail": {}}
        assert request(running, "POST", f"/v1/plans/{elsewhere}:notify", body)[0] == 404
        large = {"event": "drifted", "detail": {"a": "x" * 20_000}}
        for wrong in ({"event": "done", "detail": {}}, large):
            assert request(running, "POST", f"/v1/plans/{job_id}:notify", wrong)[0] == 422
    assert "tells 1 webhooks: drifted" in capsys.readouterr().err
    notify_service("drifted", {}, url=None)
    assert "the service was not notified" in capsys.readouterr().err


def test_watch_tells_of_losses(shell: Shell, listener: Listener):
    """Tests that `watch --notify` tells the service what was lost, and plans for the rest whatever the answer."""
    lost = json.loads((shell.folder / "workload.json").read_text())["cluster"]["devices"][0]["name"]
    url = f"http://127.0.0.1:{listener.port}/v1/plans/{'0' * 32}"
    asked = ("watch", "plan.json", "-w", "workload.json", "--lost", lost, "-o", "rest.json", "-t", "1")
    outcome = shell.run(*asked, "--notify", url)
    assert outcome.code == 0, outcome.err
    assert [json.loads(body) for _, body in listener.heard] == [{"event": "device_lost", "detail": {"lost": [lost]}}]
    assert "the service was not notified" in outcome.err
    assert (shell.folder / "rest.json").exists()
