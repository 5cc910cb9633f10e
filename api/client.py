"""A typed client of the service, on the standard library alone.

    client = Client("http://127.0.0.1:8765")
    job = client.plan(problem, limits=Limits(time_limit_s=10))
    print(job["incumbent_ns"], job["gap"])
    plan = client.fetch_plan(job["id"])

Requests that could not be answered are sent again. Looking twice changes nothing, stopping or deleting twice is as
once, and whatever else is asked for carries an idempotency key, so that none is done twice.
"""

import http.client
import json
import ssl
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from typing import Any, TypedDict, cast
from urllib.parse import quote, urlsplit

from api.jobs.job import State
from api.jobs.plan_forms import Form
from api.jobs.request_fields import SolutionStatus
from planner.batch_problem import Question, workload_of_question
from planner.document import parse_plan, plan_to_plain
from planner.plan import Plan, ProvedBy
from planner.problem import Problem
from planner.progress import Limits
from profiles.documents.canonical_json import to_plain
from profiles.workload import workload_to_plain

_MAX_ANSWER_BYTES = 512 * 2**20

_PASSING = (0, 408, 429, 500, 502, 503, 504)
"""Statuses after which a request is sent again; 0: there was no answer."""

_MAX_WAIT_S = 5.0
"""However long a service asks to be left alone, a client tries again after so much."""


class JobDocument(TypedDict):
    """What the service says about a plan; times are nanoseconds."""

    id: str
    name: str
    state: State
    solution_status: SolutionStatus
    proved_by: ProvedBy | None
    solver_bound_ns: int | None
    stopped_by: str | None
    phase: str | None
    incumbent_ns: int | None
    lower_bound_ns: int | None
    gap: float | None
    source: str | None
    verdict: dict[str, bool] | None
    plan_sha256: str | None
    error: dict[str, str] | None
    links: dict[str, str]


class ServerEvent(TypedDict):
    """One entry of a plan's story."""

    id: int
    kind: str
    data: dict[str, Any]


class ServerError(Exception):
    """The service refused, or could not be reached (`status` 0)."""

    def __init__(self, status: int, document: Mapping[str, Any]) -> None:
        self.status, self.document = status, dict(document)
        lines = [str(document.get("detail") or document.get("title") or f"status {status}")]
        lines += [f"{error['pointer'] or 'body'}: {error['detail']}" for error in document.get("errors", ())]
        super().__init__("\n".join(line for line in lines if line))

    @property
    def code(self) -> str:
        """The service's word for it."""
        return str(self.document.get("code", "unreachable"))

    @property
    def is_passing(self) -> bool:
        """Whether the same request may be answered later: nobody was there, or was busy, or failed under way."""
        return self.status in _PASSING


class Client:
    """One service, one key."""

    def __init__(self, url: str, *, key: str | None = None, timeout_s: float = 90.0, num_tries: int = 4) -> None:
        """`url` is the service's root; raises ValueError for anything but http and https."""
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"--server {url[:100]}: give http://HOST:PORT or https://HOST")
        self._parts, self._key = parts, key
        self._timeout_s, self._num_tries = timeout_s, num_tries

    # ------------------------------------------------------------ plans

    def plan(
        self,
        problem: Question,
        *,
        limits: Limits | None = None,
        on_event: Callable[[ServerEvent], None] | None = None,
        priority: int = 0,
    ) -> JobDocument:
        """Submit and follow to the end; `on_event` hears of every step. Raises ServerError."""
        job = self.submit(problem, limits=limits, priority=priority)
        if job["state"] in ("queued", "running"):
            for event in self.follow(job["id"]):
                if on_event is not None:
                    on_event(event)
        return self.job(job["id"])

    def submit(self, problem: Question, *, limits: Limits | None = None, priority: int = 0) -> JobDocument:
        """Submit a question and come back at once."""
        body: dict[str, Any] = {
            "workload": workload_document(problem),
            "limits": to_plain(limits or Limits(time_limit_s=10.0)),
            "priority": priority,
        }
        return cast(JobDocument, self._json("POST", "/v1/plans", body=body))

    def job(self, job_id: str, *, wait_s: int = 0) -> JobDocument:
        """The state and the figures of one plan."""
        headers = {"Prefer": f"wait={wait_s}"} if wait_s else {}
        return cast(JobDocument, self._json("GET", f"/v1/plans/{quote(job_id)}", headers=headers))

    def jobs(self, *, limit: int = 20) -> list[JobDocument]:
        """The newest plans, latest first."""
        return cast(list[JobDocument], self._json("GET", f"/v1/plans?limit={limit}")["plans"])

    def follow(self, job_id: str, *, after: int = 0) -> Iterator[ServerEvent]:
        """The story from `after` to its end; continues where it was when the connection breaks."""
        for number in range(1000):
            try:
                for event in self._events(job_id, after=after):
                    after = event["id"]
                    yield event
                    if event["kind"] == "done":
                        return
            except (OSError, http.client.HTTPException):
                time.sleep(min(5.0, 0.2 * 2**number))
            if self.job(job_id)["state"] not in ("queued", "running"):
                return

    def stop(self, job_id: str) -> JobDocument:
        """Finish now with the best verified plan."""
        return cast(JobDocument, self._json("POST", f"/v1/plans/{quote(job_id)}:stop"))

    def delete(self, job_id: str) -> None:
        """Cancel and forget."""
        self._bytes("DELETE", f"/v1/plans/{quote(job_id)}")

    def fetch(self, job_id: str, what: str) -> bytes:
        """An artefact: plan, trace, view, report or export/FORMAT."""
        return self._bytes("GET", f"/v1/plans/{quote(job_id)}/{quote(what)}")

    def fetch_plan(self, job_id: str) -> Plan:
        """The document of the best plan so far."""
        return parse_plan(self.fetch(job_id, "plan"), source=job_id)

    def what_if(self, job_id: str, *, limits: Limits | None = None, **change: object) -> JobDocument:
        """The same question with a change (devices, memory_bytes, link_speed, num_microbatches, lost)."""
        body: dict[str, Any] = {"base": job_id, "change": change}
        if limits is not None:
            body["limits"] = to_plain(limits)
        return cast(JobDocument, self._json("POST", "/v1/what-if", body=body))

    def notify(self, job_id: str, event: str, *, detail: Mapping[str, Any]) -> int:
        """Tell the webhooks of the plan's tenant that it `drifted`, or that a `device_lost`; how many there are."""
        body = {"event": event, "detail": dict(detail)}
        return int(self._json("POST", f"/v1/plans/{quote(job_id)}:notify", body=body)["num_webhooks"])

    # ------------------------------------------------------------ checks

    def verify(self, plan: Plan, problem: Problem | None = None, *, certificate: bool = False) -> dict[str, Any]:
        """The verdict on any plan."""
        body = _checked(plan, problem) | {"certificate": certificate}
        return self._json("POST", "/v1/verifications", body=body)

    def play(self, plan: Plan, problem: Problem | None = None, *, what: Form, other: Plan | None = None) -> str:
        """What becomes of any plan: JSON, a picture, a trace, a table."""
        body = _checked(plan, problem) | {"what": what}
        if other is not None:
            body["other"] = plan_to_plain(other)
        return self._bytes("POST", "/v1/playbacks", body=body).decode()

    def audit(self, program: str, **asked: object) -> dict[str, Any]:
        """What `pipeplan audit --json` says of a configuration; `asked` are the fields of `POST /v1/audits`."""
        return self._json("POST", "/v1/audits", body={"program": program, **asked})

    def demos(self) -> list[str]:
        """Names of the workloads that come along."""
        return [demo["name"] for demo in self._json("GET", "/v1/demo-profiles")["demo_profiles"]]

    def demo(self, name: str) -> dict[str, Any]:
        """A body that can be submitted as it is."""
        return self._json("GET", f"/v1/demo-profiles/{quote(name)}")

    def capabilities(self) -> dict[str, Any]:
        """Limits and versions of the service."""
        return self._json("GET", "/v1/capabilities")

    # ------------------------------------------------------------ transport

    def _json(
        self, method: str, path: str, *, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        return cast(dict[str, Any], json.loads(self._bytes(method, path, body=body, headers=headers)))

    def _bytes(self, method: str, path: str, *, body: Any = None, headers: Mapping[str, str] | None = None) -> bytes:
        """The answer's body; tries again while the service cannot be reached, fails or says that it is busy."""
        data = None if body is None else json.dumps(body).encode()
        sent = ({"Idempotency-Key": uuid.uuid4().hex} if method == "POST" else {}) | dict(headers or {})
        for number in range(self._num_tries):
            try:
                with self._response(method, path, data=data, headers=sent) as response:
                    text = response.read(_MAX_ANSWER_BYTES)
            except (OSError, http.client.HTTPException) as error:
                refusal = ServerError(0, {"detail": f"{self._parts.netloc} cannot be reached: {error}"})
                wait_s = 0.0
            else:
                if response.status < 400 or (response.status == 404 and method == "DELETE" and number):
                    return text
                refusal = ServerError(response.status, _problem(text))
                wait_s = _asked_wait_s(response)
            if not refusal.is_passing or number == self._num_tries - 1:
                raise refusal from None
            time.sleep(max(0.3 * 2**number, wait_s))
        raise AssertionError("the last try returns or raises")

    @contextmanager
    def _response(
        self, method: str, path: str, *, data: bytes | None = None, headers: Mapping[str, str] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        sent = {"Accept": "*/*", **(headers or {})}
        if data is not None:
            sent["Content-Type"] = "application/json"
        if self._key is not None:
            sent["Authorization"] = f"Bearer {self._key}"
        with closing(self._connect()) as connection:
            connection.request(method, self._parts.path.rstrip("/") + path, body=data, headers=sent)
            with connection.getresponse() as response:
                yield response

    def _connect(self) -> http.client.HTTPConnection:
        host = self._parts.hostname or ""
        if self._parts.scheme == "http":
            return http.client.HTTPConnection(host, self._parts.port, timeout=self._timeout_s)
        context = ssl.create_default_context()
        return http.client.HTTPSConnection(host, self._parts.port, timeout=self._timeout_s, context=context)

    def _events(self, job_id: str, *, after: int) -> Iterator[ServerEvent]:
        path = f"/v1/plans/{quote(job_id)}/events"
        with self._response("GET", path, headers={"Last-Event-ID": str(after)}) as response:
            if response.status != 200:
                raise ServerError(response.status, _problem(response.read(2**16)))
            fields: dict[str, str] = {}
            for line in response:
                name, _, value = line.decode().rstrip("\n").partition(": ")
                if name:
                    fields[name] = value
                elif "id" in fields:
                    data = json.loads(fields.get("data", "{}"))
                    yield ServerEvent(id=int(fields["id"]), kind=fields.get("event", ""), data=data)
                    fields = {}


def workload_document(question: Question) -> dict[str, Any]:
    """The document that states a question."""
    return {"options": {}, **workload_to_plain(workload_of_question(question))}


def _checked(plan: Plan, problem: Problem | None) -> dict[str, Any]:
    body: dict[str, Any] = {"plan": plan_to_plain(plan)}
    return body if problem is None else body | {"workload": workload_document(problem)}


def _asked_wait_s(response: http.client.HTTPResponse) -> float:
    """Seconds of Retry-After, as far as they are waited for."""
    asked = response.headers.get("Retry-After", "")
    return min(_MAX_WAIT_S, float(asked)) if asked.isascii() and asked.isdigit() and len(asked) < 9 else 0.0


def _problem(text: bytes) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        document = None
    return (
        document
        if isinstance(document, dict)
        else {"detail": "the server's answer does not come from pipeplan; check --server"}
    )
