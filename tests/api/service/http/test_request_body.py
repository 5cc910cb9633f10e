"""Bodies that nobody sends by mistake: each is answered soon, shortly and with a problem, and the service lives on."""

import contextlib
import gzip
import json
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from api.jobs.request import BODIES as CEILING
from api.service.handlers.route_notes import example_submission
from api.settings import ClientLimits
from tests.api.service.servers import Running, serving, wait_ready

MAX_ANSWER = 64 * 1024
MAX_WORK_S = 0.1
"""Processor time that a refusal may cost the service, so that a busy machine does not count."""
MAX_FULL_S = 1.0
"""The same for bodies that hold as much as a body may."""
TRIES = 3
"""Of which the best counts: noise only adds."""


def spoiled(change: Callable[[Any], Any]) -> bytes:
    """The example with something changed in it."""
    body = json.loads(json.dumps(example_submission()))
    return json.dumps(change(body) or body).encode()


def with_number(text: str) -> bytes:
    """The example with a number written in another way."""
    return json.dumps(example_submission()).replace("1000000,", f"{text},", 1).encode()


def with_microbatches(text: str) -> bytes:
    return json.dumps(example_submission()).replace('"num_microbatches": 4', f'"num_microbatches": {text}').encode()


def with_name(text: str) -> bytes:
    return json.dumps(example_submission()).replace('"embed"', text).encode("utf-8", "surrogatepass")


def with_limits(text: str) -> bytes:
    body = json.loads(json.dumps(example_submission()))
    body["limits"] = "LIMITS"
    return json.dumps(body).replace('"LIMITS"', text).encode()


def filled(item: bytes, last: bytes = b"0") -> bytes:
    """A list that is as long as a list may be, in a field that is not known."""
    count = CEILING.containers - 10 if item[:1] in b"[{" else CEILING.values - 10
    return b'{"filling": [' + (item + b",") * count + last + b"]}"


FILLERS = {
    "numbers": b"0",
    "fractions": b"1.5",
    "large numbers": b"1e200",
    "texts": b'"a"',
    "nothings": b"null",
    "lists": b"[]",
    "objects": b"{}",
}
"""What a body may be full of."""

BODIES: dict[str, bytes] = {
    "empty": b"",
    "blank": b"   \n",
    "NUL": b"\0",
    "NUL inside": b'{"workload": "\0"}',
    "byte order mark": b"\xef\xbb\xbf{}",
    "UTF-16": '{"a": 1}'.encode("utf-16"),
    "UTF-32": '{"a": 1}'.encode("utf-32"),
    "latin-1": b'{"\xe9": 1}',
    "broken UTF-8": b'{"a": "\xff\xfe"}',
    "overlong UTF-8": b'{"a": "\xc0\x80"}',
    "gzip without saying so": gzip.compress(b"{}"),
    "null": b"null",
    "true": b"true",
    "number": b"1",
    "string": b'"workload"',
    "array": b"[]",
    "array of requests": b"[" + json.dumps(example_submission()).encode() + b"]",
    "empty object": b"{}",
    "open object": b"{",
    "open string": b'{"a": "',
    "comma at the end": b'{"a": 1,}',
    "two documents": b"{}{}",
    "comment": b"{} // nothing",
    "single quotes": b"{'a': 1}",
    "XML": b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]><a>&b;</a>",
    "YAML": b"workload: !!python/object/apply:os.system ['true']",
    "pickle": b"\x80\x04\x95\x1d\x00\x00\x00\x00\x00\x00\x00.",
    "form": b"workload=1&limits=2",
    "NaN": with_number("NaN"),
    "Infinity": with_number("Infinity"),
    "-Infinity": with_number("-Infinity"),
    "1e400": with_number("1e400"),
    "-1e400": with_number("-1e400"),
    "-0.5": with_number("-0.5"),
    "-1": with_number("-1"),
    "1e-400": with_number("1e-400"),
    "1.5": with_number("1.5"),
    "2^53": with_number(str(2**63)),
    "2^64": with_number(str(2**64)),
    "-2^63": with_number(str(-(2**63))),
    "100 digits": with_number("1" * 100),
    "5000 digits": with_number("9" * 5000),
    "a million digits": with_number("9" * 1_000_000),
    "5000 digits behind the point": with_number("0." + "9" * 5000),
    "huge exponent": with_number("1e999999999999"),
    "hexadecimal": with_number("0x10"),
    "octal": with_number("010"),
    "plus": with_number("+1"),
    "text as number": with_number('"1000000"'),
    "true as number": with_number("true"),
    "null as number": with_number("null"),
    "list as number": with_number("[1]"),
    "no microbatches": with_microbatches("0"),
    "negative microbatches": with_microbatches("-4"),
    "2^31 microbatches": with_microbatches(str(2**31)),
    "2^63 microbatches": with_microbatches(str(2**63)),
    "a million microbatches": with_microbatches("1000000"),
    "half a microbatch": with_microbatches("0.5"),
    "lone surrogate": with_name('"\\ud800"'),
    "lone low surrogate": with_name('"\\udfff"'),
    "raw surrogate": with_name('"\ud800"'),
    "escaped NUL in a name": with_name('"\\u0000"'),
    "empty name": with_name('""'),
    "long name": with_name('"' + "n" * 100_000 + '"'),
    "surrogate as key": b'{"\\ud800": 1}',
    "NUL as key": b'{"\\u0000": 1}',
    "__proto__": b'{"__proto__": {"a": 1}}',
    "repeated key": b'{"workload": {}, "workload": {}}',
    "unknown key": spoiled(lambda body: body.update(surprise=1)),
    "marked-up key": spoiled(lambda body: body.update({"<script>alert(1)</script>": 1})),
    "long key": spoiled(lambda body: body.update({"k" * 100_000: 1})),
    "depth 100,000": b"[" * 100_000 + b"]" * 100_000,
    "depth 100,000 of objects": b'{"a":' * 100_000 + b"1" + b"}" * 100_000,
    "depth 100,000 not closed": b"[" * 100_000,
    "depth 200 inside": spoiled(lambda body: body.update(options=json.loads("[" * 200 + "]" * 200))),
    "ten thousand fields": json.dumps({f"k{number}": 1 for number in range(10_000)}).encode(),
    "ten thousand unknown layers": spoiled(lambda body: body["workload"]["profile"].update(layers=[{"a": 1}] * 10_000)),
    "a million zeros": b"[" + b"0," * 999_990 + b"0]",
    "workload as text": spoiled(lambda body: body.update(workload="demo:resnet50")),
    "workload as path": spoiled(lambda body: body.update(workload="/etc/passwd")),
    "workload as address": spoiled(lambda body: body.update(workload="http://169.254.169.254/")),
    "workload as number": spoiled(lambda body: body.update(workload=1)),
    "workload as null": spoiled(lambda body: body.update(workload=None)),
    "no cluster": spoiled(lambda body: body["workload"].pop("cluster") and None),
    "no layers": spoiled(lambda body: body["workload"]["profile"].update(layers=[])),
    "edge to nowhere": spoiled(lambda body: body["workload"]["profile"]["edges"][0].update(consumer="nowhere")),
    "edge to itself": spoiled(lambda body: body["workload"]["profile"]["edges"][0].update(consumer="embed")),
    "device twice": spoiled(lambda body: body["workload"]["cluster"]["devices"][0].update(name="gpu1")),
    "unmeasured type": spoiled(lambda body: body["workload"]["cluster"]["devices"][0].update(type="moon")),
    "unknown format": spoiled(lambda body: body["workload"].update(format="pipeline-workload/999")),
    "unknown option": spoiled(lambda body: body.update(options={"sudo": True})),
    "option of another type": spoiled(lambda body: body.update(options={"max_replicas": "many"})),
    "pinned nowhere": spoiled(lambda body: body.update(options={"pinned": [{"layer": "x", "device": "y"}]})),
    "limits as list": with_limits("[]"),
    "no time": with_limits('{"time_limit_s": 0}'),
    "negative time": with_limits('{"time_limit_s": -1}'),
    "endless time": with_limits('{"time_limit_s": 1e300}'),
    "gap of one": with_limits('{"gap": 1}'),
    "negative seed": with_limits('{"seed": -1}'),
    "large seed": with_limits('{"seed": 4294967296}'),
    "rounds in 2^63": with_limits('{"max_rounds": 9223372036854775808}'),
    "negative patience": with_limits('{"patience_s": -1, "gap": 7}'),
    "priority of a king": spoiled(lambda body: body.update(priority=10**9)),
    "priority as text": spoiled(lambda body: body.update(priority="high")),
    "shell text": spoiled(lambda body: body.update(workload="$(reboot)")),
    "template text": spoiled(lambda body: body.update(workload="{{7*7}}${7*7}")),
}


FULL: dict[str, bytes] = {
    **{what: filled(item) for what, item in FILLERS.items()},
    **{f"{what} before a fault": filled(item, b"NaN") for what, item in FILLERS.items()},
    "texts before half a character": filled(b'"a"', b'"\\ud800"'),
    "large numbers in the workload": b'{"workload": ' + filled(b"1e200") + b"}",
}
"""Bodies that hold as much as a body may."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """A raw HTTP answer."""

    status: int
    head: str
    body: bytes
    work_s: float
    """Processor time that the service spent meanwhile."""


def send(running: Running, data: bytes, *, timeout_s: float = 60.0) -> Answer:
    """Raw bytes to the service, and all that it says until it closes."""
    before = running.worked_s()
    received = b""
    with socket.create_connection(("127.0.0.1", running.port), timeout=timeout_s) as connection:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it has heard enough
            connection.sendall(data)
        with contextlib.suppress(ConnectionResetError):
            while chunk := connection.recv(65536):
                received += chunk
    head, _, body = received.partition(b"\r\n\r\n")
    words = head.split(b" ", 2)
    assert len(words) > 1, received[:200]
    work_s = running.worked_s() - before
    return Answer(status=int(words[1]), head=head.decode("latin-1").lower(), body=body, work_s=work_s)


def post(path: str, body: bytes, **headers: str) -> bytes:
    """A request as bytes, headers as given."""
    lines = {"Host": "127.0.0.1", "Connection": "close", "Content-Type": "application/json"}
    lines |= {"Content-Length": str(len(body))} | {name.replace("_", "-"): value for name, value in headers.items()}
    head = "".join(f"{name}: {value}\r\n" for name, value in lines.items() if value)
    return f"POST {path} HTTP/1.1\r\n{head}\r\n".encode() + body


def assert_refused(answer: Answer) -> None:
    """A short problem with a 4xx status and without an echo."""
    assert 400 <= answer.status < 500, (answer.status, answer.body[:300])
    assert "application/problem+json" in answer.head, answer.body[:300]
    assert len(answer.body) < MAX_ANSWER
    assert b"<script>" not in answer.body
    problem = json.loads(answer.body)
    assert problem["status"] == answer.status
    assert len(problem.get("errors", ())) <= 20


def test_the_corpus_is_large():
    """Tests that there are at least sixty bodies."""
    assert len(BODIES) >= 60


ENVELOPES: dict[str, Callable[[bytes], bytes]] = {
    "/v1/plans": lambda body: body,
    "/v1/verifications": lambda body: body,
    "/v1/playbacks": lambda body: body,
    "/v1/what-if": lambda body: body,
    "/v1/audits": lambda body: body,
    "/v1/audits as config": lambda body: b'{"program": "megatron", "config": ' + body + b"}",
    "/v1/plans as workload": lambda body: b'{"workload": ' + body + b"}",
    "/v1/verifications as plan": lambda body: b'{"plan": ' + body + b"}",
    "/v1/verifications as workload": lambda body: b'{"plan": {}, "workload": ' + body + b"}",
    "/v1/playbacks as plan": lambda body: b'{"what": "view", "plan": ' + body + b"}",
    "/v1/what-if as base": lambda body: b'{"change": {}, "base": ' + body + b"}",
    "/v1/what-if as change": lambda body: b'{"base": "", "change": ' + body + b"}",
}
"""Where a body is sent, and as which part of a larger one."""


@pytest.mark.parametrize("path", ENVELOPES)
def test_hostile_bodies(running: Running, path: str):
    """Tests that every body of the corpus, wherever it is sent, is refused shortly, soon and without an echo."""
    wait_ready(running)
    for name, body in BODIES.items():
        assert_cheap(running, name, post(path.split()[0], ENVELOPES[path](body)), most_s=MAX_WORK_S)


@pytest.mark.parametrize("name", FULL)
def test_full_bodies(running: Running, name: str):
    """Tests that whatever a body is full of, up to the limits, its refusal costs less than a second."""
    wait_ready(running)
    assert_cheap(running, name, post("/v1/plans", FULL[name]), most_s=MAX_FULL_S)


def assert_cheap(running: Running, name: str, data: bytes, *, most_s: float) -> None:
    """The request is refused with little work."""
    try:
        answer = send(running, data)
        assert_refused(answer)
        costs = [answer.work_s]
        while min(costs) >= most_s and len(costs) < TRIES:
            costs.append(send(running, data).work_s)
        assert min(costs) < most_s, f"seconds of work: {costs}"
    except AssertionError as failure:
        raise AssertionError(f"{name}: {failure}") from None


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": "application/xml"}, 415),
        ({"Content_Type": "multipart/form-data; boundary=x"}, 415),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
        ({"Content_Type": "application/json; charset=utf-16"}, 415),
        ({"Content_Encoding": "gzip"}, 415),
        ({"Content_Encoding": "br"}, 415),
        ({"Content_Length": str(10**12)}, 413),
        ({"Origin": "https://evil.example"}, 403),
        ({"Host": "evil.example"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Idempotency_Key": "a" * 201}, 400),
        ({"Authorization": "Basic eDp5"}, 401),
        ({"Authorization": "Bearer pp_000000000000_" + "0" * 48}, 401),
    ],
)
def test_hostile_headers(running: Running, headers: dict[str, str], status: int):
    """Tests that a good body under a wrong header is refused with the right status."""
    answer = send(running, post("/v1/plans", json.dumps(example_submission()).encode(), **headers))
    assert_refused(answer)
    assert answer.status == status


def test_chunks_without_length(tmp_path: Path):
    """Tests that a body in chunks is cut off at the size limit, whatever it said about its length."""
    with serving(tmp_path, traffic=ClientLimits(max_body_bytes=100_000)) as running:
        chunk = b"8000\r\n" + b" " * 0x8000 + b"\r\n"
        head = post("/v1/plans", b"", Content_Length="", Transfer_Encoding="chunked")
        answer = send(running, head + chunk * 10 + b"0\r\n\r\n")
        assert_refused(answer)
        assert answer.status == 413


def test_slow_bodies(tmp_path: Path):
    """Tests that a body that does not come is given up after its time, and that others are served meanwhile."""
    with serving(tmp_path, traffic=ClientLimits(body_timeout_s=1.0)) as running:
        with socket.create_connection(("127.0.0.1", running.port), timeout=30) as slow:
            slow.sendall(post("/v1/plans", b"", Content_Length="1000") + b"{")
            assert running.client().jobs() == []
            text = slow.recv(65536)
        assert b" 408 " in text.split(b"\r\n")[0]
        assert b"application/problem+json" in text


def test_the_service_lives_on(running: Running):
    """Tests that after all of it the service still answers a good question with a verified plan."""
    job = json.loads(send(running, post("/v1/plans", json.dumps(example_submission()).encode(), Prefer="wait=60")).body)
    assert (job["state"], job["verdict"]) == ("succeeded", {"passed": True})
