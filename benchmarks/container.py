"""How soon a container of the service answers: the image built, then started again and again with its own limits.

`--engine` is docker or podman, whichever is found first. Every container runs as `docker/compose.yaml` says: its root
file system cannot be written, its data lie in a volume of their own, it has two cores and no other privileges. Its
clock begins with the engine's command. `--image` takes an image that is there instead of building one.
"""

import json
import shutil
import statistics
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.report import Table, make_parser

ROOT = Path(__file__).resolve().parent.parent
SAMPLE = ROOT / "profiles" / "samples" / "alexnet-two-gpus.json"

PORT, KEY = 8795, f"pp_{12 * '0'}_{48 * '1'}"
LONGEST_S = 120.0
TARGET_S = 10.0

HEADER = ("container", "/livez s", "/readyz s", "first plan s", "health check passes s", "kept")


@dataclass(frozen=True, kw_only=True)
class Start:
    """Seconds from the engine's command on."""

    alive_s: float
    ready_s: float
    planned_s: float
    """To the verified plan of a small sample that was posted as soon as it was ready."""
    healthy_s: float
    """To the first time that the image's own health check succeeds in the container."""


def measure(engine: str, image: str, *, name: str) -> Start:
    """Start one container, and stop it when all has been seen."""
    begin = time.monotonic()
    with container(engine, image, name=name):
        alive = _seconds_until(lambda: _answers("/livez"), begin=begin)
        ready = _seconds_until(lambda: _answers("/readyz"), begin=begin)
        planned = _plan(begin)
        healthy = _seconds_until(lambda: _is_healthy(engine, name), begin=begin)
    return Start(alive_s=alive, ready_s=ready, planned_s=planned, healthy_s=healthy)


@contextmanager
def container(engine: str, image: str, *, name: str) -> Iterator[None]:
    """The service in the network of this machine, as compose would start it."""
    limits = ("--read-only", "--tmpfs", "/tmp", "--cap-drop", "ALL", "--security-opt", "no-new-privileges")
    volume = ("--volume", f"{name}:/var/lib/pipeplan", "--env", f"PIPEPLAN_FIRST_KEY={KEY}")
    serve = ("serve", "--host", "0.0.0.0", "--port", str(PORT), "--workers", "1")
    command = (engine, "run", "--detach", "--name", name, "--network", "host", *limits, *volume, image, *serve)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    try:
        yield
    except BaseException:
        subprocess.run((engine, "logs", name), check=False)
        raise
    finally:
        subprocess.run((engine, "stop", name), check=False, capture_output=True)
        subprocess.run((engine, "rm", name), check=False, capture_output=True)
        subprocess.run((engine, "volume", "rm", "--force", name), check=False, capture_output=True)


def _request(path: str, *, body: bytes | None = None) -> tuple[int, bytes]:
    headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
    request = urllib.request.Request(f"http://127.0.0.1:{PORT}{path}", data=body, headers=headers)
    with urllib.request.urlopen(request, timeout=LONGEST_S) as answer:
        return answer.status, answer.read()


def _answers(path: str) -> bool:
    try:
        return _request(path)[0] == 200
    except (OSError, urllib.error.HTTPError):
        return False


def _is_healthy(engine: str, name: str) -> bool:
    check = ("python", "/opt/pipeplan/healthcheck.py", f"http://127.0.0.1:{PORT}/readyz")
    return subprocess.run((engine, "exec", name, *check), check=False, capture_output=True).returncode == 0


def _seconds_until(condition: Callable[[], bool], *, begin: float) -> float:
    while not condition():
        if time.monotonic() - begin > LONGEST_S:
            raise SystemExit(f"not within {LONGEST_S:g} s")
        time.sleep(0.02)
    return time.monotonic() - begin


def _plan(begin: float) -> float:
    """Post a small sample and wait for its plan."""
    workload = json.loads(SAMPLE.read_text(encoding="utf-8"))
    body = json.dumps({"workload": workload, "limits": {"max_rounds": 0, "time_limit_s": 10}}).encode()
    _, text = _request("/v1/plans", body=body)
    job = json.loads(text)["id"]
    return _seconds_until(lambda: _answers(f"/v1/plans/{job}/plan"), begin=begin)


def find_engine() -> str:
    """The first engine on the path; SystemExit if there is none."""
    for engine in ("docker", "podman"):
        if shutil.which(engine):
            return engine
    raise SystemExit("neither docker nor podman is on the path: install one of them, or say --engine")


def main() -> None:
    """Build, start, count."""
    parser = make_parser(__doc__)
    parser.add_argument("--engine", default="", help="docker, podman or another with their commands")
    parser.add_argument("--image", default="", help="an image that is there; otherwise it is built")
    parser.add_argument("--starts", type=int, default=5)
    asked = parser.parse_args()
    engine, image = asked.engine or find_engine(), asked.image or "pipeplan"
    if not asked.image:
        subprocess.run((engine, "build", "-f", "docker/Dockerfile", "-t", image, "."), cwd=ROOT, check=True)
    table = Table(
        preface=[
            "# How soon a container answers",
            "",
            "`python -m benchmarks.container` makes it: the service's image, started with the limits of",
            f"`docker/compose.yaml` ({Path(engine).name}), an empty volume each time, `--workers 1`. Seconds count",
            "from the engine's command; the plan is that of a small sample (no rounds of search), posted when ready.",
            f"Target: an answer within {TARGET_S:g} s.",
            "",
        ],
        header=HEADER,
        output=asked.output,
    )
    starts = [_row(table, engine, image=image, number=number) for number in range(1 if asked.quick else asked.starts)]
    worst = max(start.ready_s for start in starts)
    median = statistics.median(start.ready_s for start in starts)
    table.close(f"Ready after {median:.1f} s on the median, {worst:.1f} s at worst; target {TARGET_S:g} s.")
    raise SystemExit(worst > TARGET_S)


def _row(table: Table, engine: str, *, image: str, number: int) -> Start:
    start = measure(engine, image, name=f"pipeplan-measured-{number}")
    seconds = (start.alive_s, start.ready_s, start.planned_s, start.healthy_s)
    kept = "yes" if start.ready_s <= TARGET_S else "**no**"
    table.add([str(number + 1), *(f"{value:.1f}" for value in seconds), kept])
    return start


if __name__ == "__main__":
    main()
