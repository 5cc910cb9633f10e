"""Bodies become what they ask for, and what is wrong with them a problem document."""

from asyncio import to_thread
from typing import Any

from fastapi import Request

from api.jobs.job import Search
from api.jobs.request import SOURCE, TooLargeError, parse_tree
from api.jobs.stores.store import IdempotencyConflictError, QuotaError, UnknownPageError
from api.service.core import Service
from api.service.http.problem_json import Complaint, ServiceError, complaints_of, invalid
from api.service.http.request_body import read_body
from profiles.documents.strict_json import UnreadableError
from profiles.documents.validation import validate


class refusing:
    """A context in which mistakes of the input, and what the store does not take, end the request."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, IdempotencyConflictError):
            told = "this Idempotency-Key came with another body before; use a new key"
            raise ServiceError(422, "idempotency_key_reused", detail=told) from None
        if isinstance(error, QuotaError):
            raise _too_much(error) from None
        if isinstance(error, UnknownPageError):
            raise invalid("/after", f"give {Search.model_fields['after'].description}") from None
        if isinstance(error, TooLargeError):
            raise ServiceError(422, "too_large", errors=(Complaint(pointer="", code="limit", detail=str(error)),))
        if isinstance(error, ValueError):
            status = 400 if isinstance(error, UnreadableError) else 422
            raise ServiceError(status, "invalid", errors=complaints_of(error)) from None


def read_order(kind: type, body: bytes) -> Any:
    """What a body asks for; raises ServiceError 400 or 422."""
    with refusing():
        return validate(kind, parse_tree(body), source=SOURCE)


async def read_as(kind: type, request: Request, *, service: Service) -> Any:
    """The body of the request, and what it asks for."""
    return await to_thread(read_order, kind, await read_body(request, service.open_requests))


_QUOTAS = {
    "too_many_jobs": ("{most:,} jobs may be queued or running", "10"),
    "hourly_limit": ("{most:,} jobs may be submitted in an hour", "600"),
    "too_many_bytes": ("the requests of a tenant may hold {most:,} bytes; delete plans that are not needed", "600"),
}


def _too_much(error: QuotaError) -> ServiceError:
    detail, wait_s = _QUOTAS[error.code]
    return ServiceError(429, error.code, detail=detail.format(most=error.most), headers={"Retry-After": wait_s})
