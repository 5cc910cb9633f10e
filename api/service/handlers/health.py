"""What the service is, has and can do; whether it lives and is ready; its metrics; its page."""

import hashlib
from asyncio import to_thread
from dataclasses import asdict
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any, get_args
from urllib.parse import quote

from fastapi import Request, Security
from fastapi.responses import PlainTextResponse, Response

from api.jobs.job import State
from api.jobs.job_metrics import CONTENT_TYPE
from api.jobs.moments import moment
from api.jobs.plan_forms import Export
from api.jobs.request import BODIES, Submission
from api.jobs.workers.pool import Pool
from api.service.access import Reader, Serving, admitted
from api.service.core import Service
from api.service.handlers.responses import answer, is_known, not_modified, render_json
from api.service.handlers.route_notes import router_at
from api.service.http.problem_json import not_found
from api.service.keys import SCOPES
from api.service.metrics import Measured, render_gauges
from api.viewer import SHARED
from planner.release import RELEASE
from profiles.load import demo_names, load_workload

router = router_at()

_PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

_MOST_DIGITS = 4
"""Of a number of workers that is asked for."""

_TOLD_OF_TRAFFIC = (
    *("max_body_bytes", "body_timeout_s", "header_timeout_s", "requests_per_s", "burst", "hourly_jobs"),
    *("unfinished_jobs", "streams", "tenant_streams", "stored_bytes", "max_wait_s", "inspections"),
    "tenant_inspections",
)
"""Of the limits of clients those that a client may run into."""

_MEDIA_TYPES = {"js": "text/javascript; charset=utf-8", "css": "text/css; charset=utf-8", "svg": "image/svg+xml"}

_PAGE = sorted(each.name for each in files("api.service.page").iterdir() if each.name.partition(".")[2] in _MEDIA_TYPES)

_ASSETS = {
    **{f"page/{name}": "api.service.page" for name in _PAGE},
    **{f"viewer/{name}": "api.viewer" for name in (*SHARED, "viewer.css")},
}
"""The page's own files and those that it shares with the pictures, and their packages."""


_OPEN: dict[str, Any] = {"security": []}
"""Of what needs no key."""


@router.get("/livez", response_model=dict[str, Any], response_description="Alive", openapi_extra=_OPEN)
async def live() -> Response:
    """The process answers."""
    return answer({"status": "alive"})


@router.get("/readyz", response_model=dict[str, Any], response_description="Ready", openapi_extra=_OPEN)
async def ready(request: Request, service: Serving) -> Response:
    """It can solve and store: a toy plan was verified, the store answers, and no shutdown has begun; and who works.

    With `?workers=N` it is also ready only if at least so many workers live.
    """
    text = request.query_params.get("workers", "0")
    least = int(text) if text.isascii() and text.isdigit() and len(text) <= _MOST_DIGITS else 0
    strength = await service.check_ready(least_workers=least)
    return answer({"status": "ready", "workers": strength.num_workers, "slots": strength.num_slots})


@router.get("/metrics", response_class=PlainTextResponse, dependencies=[Security(admitted, scopes=["metrics"])])
async def metrics(service: Serving) -> Response:
    """For Prometheus, in its text form."""
    ask = to_thread
    states = dict.fromkeys(get_args(State), 0) | await ask(service.store.count_states)  # a row that goes ends no alarm
    strength = await ask(service.strength)
    gauges: list[Measured] = [
        *(("pipeplan_jobs", "Jobs by state.", {"state": state}, count) for state, count in sorted(states.items())),
        ("pipeplan_streams", "Clients that follow a job.", {}, len(service.streams)),
        ("pipeplan_ready", "1 if jobs are taken.", {}, service.is_ready),
        ("pipeplan_queue_age_seconds", "Age of the oldest waiting job.", {}, await ask(service.store.queue_age_s)),
        ("pipeplan_workers_alive", "Workers heard of lately.", {}, strength.num_workers),
        ("pipeplan_worker_slots", "Jobs that they solve at once.", {}, strength.num_slots),
    ]
    solved_here = service.engine.metrics.render() if isinstance(service.engine, Pool) else b""
    return Response(service.metrics.render() + render_gauges(gauges) + solved_here, media_type=CONTENT_TYPE)


@router.get("/v1/capabilities", response_model=dict[str, Any])
async def capabilities(service: Serving, caller: Reader) -> Response:
    """Every limit, so that a client need not run into it."""
    del caller
    return answer(describe(service))


def describe(service: Service) -> dict[str, Any]:
    """What this service does and how much of it."""
    settings = service.settings
    return {
        "version": RELEASE,
        "solvers": {name: version(name) for name in ("ortools", "highspy", "pulp")},
        "limits": {
            **{name: getattr(settings.traffic, name) for name in _TOLD_OF_TRAFFIC},
            **asdict(settings.ceilings),
            "max_values": BODIES.values,
            "max_containers": BODIES.containers,
            "max_memory_bytes": settings.process.memory_bytes,
            "max_threads": settings.process.num_threads,
            "inspection_s": settings.inspection_s,
            "retention_s": settings.retention_s,
        },
        "exports": sorted(get_args(Export)),
        "scopes": list(SCOPES),
        "num_workers": settings.num_workers if settings.database_url is None else None,
        "engine": "sqlite" if settings.database_url is None else "postgres",
    }


@router.get("/v1/projects", response_model=dict[str, Any])
async def list_projects(service: Serving, caller: Reader) -> Response:
    """The caller's projects, latest first."""
    rows = await to_thread(service.store.projects, caller.tenant)
    found = [
        {"name": name, "num_plans": count, "last_at": moment(last), "href": f"/v1/plans?project={quote(name, safe='')}"}
        for name, count, last in rows
    ]
    return answer({"projects": found}, headers={"Cache-Control": "private, no-cache"})


@router.get("/v1/demo-profiles", response_model=dict[str, Any])
async def list_demos(caller: Reader) -> Response:
    """The workloads that come along: what they are, and where."""
    del caller
    return answer({"demo_profiles": await to_thread(_demos)})


@router.get("/v1/demo-profiles/{name}", response_model=Submission)
async def get_demo(service: Serving, *, caller: Reader, name: str) -> Response:
    """A body for `POST /v1/plans`."""
    del caller
    if name not in demo_names():
        raise not_found()
    seconds = min(10.0, service.settings.ceilings.max_time_limit_s)
    return Response(await to_thread(_demo, name, seconds), media_type="application/json")


@cache
def _demos() -> list[dict[str, Any]]:
    found = []
    for name in demo_names():
        workload = load_workload(f"demo:{name}")
        profile, cluster = workload.profile, workload.cluster
        assert cluster is not None
        told = {"model": profile.name, "machine": cluster.name, "num_devices": len(cluster.devices)}
        told["num_layers"] = len(profile.layers)
        found.append({"name": name, "href": f"/v1/demo-profiles/{name}", **told})
    return found


@cache
def _demo(name: str, seconds: float) -> bytes:
    from profiles.workload import workload_to_plain

    workload = load_workload(f"demo:{name}")
    return render_json({"workload": workload_to_plain(workload), "limits": {"time_limit_s": seconds}})


@router.get("/v1/openapi.json", response_model=dict[str, Any])
async def openapi_document(request: Request) -> Response:
    """This interface, as OpenAPI 3.1."""
    return answer(request.app.openapi())


@router.get("/", include_in_schema=False)
async def page() -> Response:
    """The service's page: `index.html` with its modules."""
    headers = {"Cache-Control": "no-cache", "Content-Security-Policy": _PAGE_POLICY}
    return Response(_page(), media_type="text/html; charset=utf-8", headers=headers)


@router.get("/static/{folder}/{name:path}", include_in_schema=False)
async def static(request: Request) -> Response:
    """The page's modules and styles."""
    name = f"{request.path_params['folder']}/{request.path_params['name']}"
    if name not in _ASSETS:
        raise not_found()
    content, tag = _asset(name)
    if is_known(request, tag):
        return not_modified(tag, cache_control="no-cache")
    headers = {"Cache-Control": "no-cache", "ETag": tag}
    return Response(content, media_type=_MEDIA_TYPES[name.rpartition(".")[2]], headers=headers)


@cache
def _page() -> bytes:
    """Says at once which modules will be wanted, so that they are not found one by one."""
    modules = [name for name in _ASSETS if name.endswith(".js")]
    links = "\n".join(f'<link rel="modulepreload" href="static/{name}">' for name in modules)
    return _read("api.service.page", "page.html").replace(b"{{modules}}", links.encode())


@cache
def _asset(name: str) -> tuple[bytes, str]:
    """The file and its tag."""
    content = _read(_ASSETS[name], name.partition("/")[2])
    return content, f'"{hashlib.sha256(content).hexdigest()[:32]}"'


def _read(package: str, name: str) -> bytes:
    return files(package).joinpath(name).read_bytes()
