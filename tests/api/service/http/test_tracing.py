"""Spans of requests: tests of api/service/http/tracing.py."""

import asyncio
from types import SimpleNamespace

import pytest

from api.service.http import tracing


class Span:
    """Remembers what it is told; a context of its own."""

    def __init__(self) -> None:
        self.name, self.attributes = "", {}

    def __enter__(self) -> "Span":
        return self

    def __exit__(self, *_: object) -> None:
        """Nothing to close."""

    def set_attribute(self, name: str, value: object) -> None:
        """Kept."""
        self.attributes[name] = value

    def update_name(self, name: str) -> None:
        """The last one counts."""
        self.name = name


def test_a_span_names_the_route_and_never_the_path(monkeypatch: pytest.MonkeyPatch):
    """Tests that method, route and status are told, and that other scopes make no span."""
    spans: list[Span] = []

    def start(*_: object, **__: object) -> Span:
        spans.append(Span())
        return spans[-1]

    tracer = SimpleNamespace(start_as_current_span=start)
    monkeypatch.setattr(tracing.trace, "get_tracer", lambda name: tracer)
    sent: list[dict[str, object]] = []

    async def app(scope, receive, send) -> None:
        if scope["type"] == "http":
            scope["route"] = SimpleNamespace(path_format="/v1/plans/{plan}")
        await send({"type": "http.response.start", "status": 404})

    async def send(message) -> None:
        sent.append(message)

    traced = tracing.traced(app)
    asyncio.run(traced({"type": "http", "method": "GET", "path": "/v1/plans/secret"}, None, send))
    asyncio.run(traced({"type": "lifespan"}, None, send))
    assert len(sent) == 2
    (span,) = spans
    assert span.name == "GET /v1/plans/{plan}"
    assert span.attributes["http.response.status_code"] == 404
    assert "secret" not in repr(span.attributes)
