"""OpenTelemetry spans of requests, where the operator asks for them and has configured an SDK."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from opentelemetry import trace

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Tracing:
    """A span for every request: method, route and status, never a path, a body or a key."""

    def __init__(self, app: Callable[[MutableMapping[str, Any], Receive, Send], Awaitable[None]]) -> None:
        self._app = app
        self._tracer = trace.get_tracer("pipeplan")

    async def __call__(self, scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        """One request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        with self._tracer.start_as_current_span("request", kind=trace.SpanKind.SERVER) as span:
            span.set_attribute("http.request.method", scope["method"])

            async def tell(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                await send(message)

            await self._app(scope, receive, tell)
            route = getattr(scope.get("route"), "path", "unknown")
            span.update_name(f"{scope['method']} {route}")
            span.set_attribute("http.route", route)
