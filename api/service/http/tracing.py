"""OpenTelemetry spans of requests, where the operator asks for them and has configured an SDK."""

from collections.abc import MutableMapping
from typing import Any

from opentelemetry import trace

from api.service.http.request_admission import AsgiApp, Message, Receive, Send


def traced(app: AsgiApp) -> AsgiApp:
    """A span for every request: method, route and status, never a path, a body or a key."""
    tracer = trace.get_tracer("pipeplan")

    async def handle(scope: MutableMapping[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await app(scope, receive, send)
            return
        with tracer.start_as_current_span("request", kind=trace.SpanKind.SERVER) as span:
            span.set_attribute("http.request.method", scope["method"])

            async def tell(message: Message) -> None:
                if message["type"] == "http.response.start":
                    span.set_attribute("http.response.status_code", message["status"])
                await send(message)

            await app(scope, receive, tell)
            route = getattr(scope.get("route"), "path_format", "unknown")
            span.update_name(f"{scope['method']} {route}")
            span.set_attribute("http.route", route)

    return handle
