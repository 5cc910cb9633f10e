"""What the service is, has and can do; whether it lives and is ready; its metrics; its page."""

from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

from fastapi import APIRouter, Depends, Request
from fastapi.responses import Response

from api.jobs.request import BODIES
from api.service.core import Service
from api.service.keys import SCOPES
from api.service.metrics import CONTENT_TYPE
from api.service.openapi import make_document
from api.service.plan_handlers import Reader, service_of
from api.service.problem_json import not_found
from api.service.responses import EXPORTS, answer, is_known, not_modified, render_json
from profiles.load import demo_names, load_workload

router = APIRouter()

PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "frame-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_PAGE = {
    "page.js": "text/javascript; charset=utf-8",
    "page.css": "text/css; charset=utf-8",
}


@router.get("/livez")
async def live() -> Response:
    """The process answers."""
    return answer({"status": "alive"})


@router.get("/readyz")
async def ready(request: Request) -> Response:
    """A toy plan was solved and verified, the store answers, and no shutdown has begun."""
    await service_of(request).check_ready()
    return answer({"status": "ready"})


async def metrics_reader(request: Request) -> None:
    """A caller who may read the metrics."""
    service = service_of(request)
    await service.executor.call(service.gate.admit, request, "metrics")


@router.get("/metrics", dependencies=[Depends(metrics_reader)])
async def metrics(request: Request) -> Response:
    """Prometheus' text form."""
    service = service_of(request)
    states = await service.executor.call(service.store.count_states)
    gauges = [("pipeplan_jobs", f'{{state="{state}"}}', float(count)) for state, count in sorted(states.items())]
    gauges += [("pipeplan_streams", "", float(service.num_streams)), ("pipeplan_ready", "", float(service.is_ready))]
    return Response(service.metrics.render(gauges), media_type=CONTENT_TYPE)


@router.get("/v1/capabilities")
async def capabilities(request: Request, caller: Reader) -> Response:
    """Every limit, so that a client need not run into it."""
    del caller
    return answer(describe(service_of(request)))


def describe(service: Service) -> dict[str, Any]:
    """What this service does and how much of it."""
    settings = service.settings
    traffic, ceilings = settings.traffic, settings.ceilings
    return {
        "version": version("pipeline-planner"),
        "solvers": {name: version(name) for name in ("ortools", "highspy", "pulp")},
        "limits": {
            "max_body_bytes": traffic.max_body_bytes,
            "body_timeout_s": traffic.body_timeout_s,
            "requests_per_s": traffic.requests_per_s,
            "burst": traffic.burst,
            "hourly_jobs": traffic.hourly_jobs,
            "unfinished_jobs": traffic.unfinished_jobs,
            "streams": traffic.streams,
            "tenant_streams": traffic.tenant_streams,
            "stored_bytes": traffic.stored_bytes,
            "header_timeout_s": traffic.header_timeout_s,
            "max_wait_s": traffic.max_wait_s,
            "max_values": BODIES.values,
            "max_containers": BODIES.containers,
            "max_layers": ceilings.max_layers,
            "max_devices": ceilings.max_devices,
            "max_actions": ceilings.max_actions,
            "max_time_limit_s": ceilings.max_time_limit_s,
            "max_memory_bytes": settings.process.memory_bytes,
            "max_threads": settings.process.num_threads,
            "inspection_s": settings.inspection_s,
            "retention_s": settings.retention_s,
        },
        "exports": sorted(EXPORTS),
        "scopes": list(SCOPES),
        "num_workers": settings.num_workers if settings.database_url is None else None,
        "engine": "sqlite" if settings.database_url is None else "postgres",
    }


@router.get("/v1/demo-profiles")
async def list_demos(caller: Reader) -> Response:
    """The workloads that come along."""
    del caller
    links = [{"name": name, "href": f"/v1/demo-profiles/{name}"} for name in demo_names()]
    return answer({"demo_profiles": links})


@router.get("/v1/demo-profiles/{name}")
async def get_demo(request: Request, caller: Reader) -> Response:
    """A body for `POST /v1/plans`."""
    del caller
    name = request.path_params["name"]
    if name not in demo_names():
        raise not_found()
    return Response(await service_of(request).executor.call(_demo, name), media_type="application/json")


@cache
def _demo(name: str) -> bytes:
    from profiles.workload import workload_to_plain

    workload = load_workload(f"demo:{name}")
    return render_json({"workload": workload_to_plain(workload), "limits": {"time_limit_s": 10.0}})


@router.get("/v1/openapi.json")
async def openapi_document() -> Response:
    """This interface, as OpenAPI 3.1."""
    return answer(make_document())


@router.get("/")
async def page() -> Response:
    """The page."""
    return _static("page.html", "text/html; charset=utf-8", headers={"Content-Security-Policy": PAGE_POLICY})


@router.get("/static/{name}")
async def static(request: Request) -> Response:
    """The page's script and style."""
    name = request.path_params["name"]
    if name not in _PAGE:
        raise not_found()
    tag = f'"{version("pipeline-planner")}-{len(_asset(name))}"'
    if is_known(request, tag):
        return not_modified(tag, cache_control="no-cache")
    return _static(name, _PAGE[name], headers={"ETag": tag})


def _static(name: str, media_type: str, *, headers: dict[str, str]) -> Response:
    return Response(_asset(name), media_type=media_type, headers={"Cache-Control": "no-cache"} | headers)


@cache
def _asset(name: str) -> bytes:
    return files("api.service.page").joinpath(name).read_bytes()
