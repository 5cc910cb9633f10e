"""Images, compose and manifests, as far as they can be checked without a container engine.

No engine runs where these tests run: what an engine would start is started here directly, and the files are compared
with the schemas and with the command line that they call.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import yaml
from typer.testing import CliRunner

from api.cli import app
from api.jobs.job_metrics import JobMetrics
from api.jobs.stores.sql_store import SqlStore
from api.jobs.stores.sqlite import SqliteDatabase
from api.jobs.workers.container import GIB, share_out
from api.service.keys import KeyRing
from api.service.metrics import Metrics
from tests.api.service.servers import serving

ROOT = Path(__file__).resolve().parents[2]
DOCKER = ROOT / "docker"


MANIFESTS = ("kubernetes/pipeplan.yaml", "autoscaling/autoscaler.yaml", "webhooks/egress.yaml")
"""Files of Kubernetes objects."""


def manifests() -> list[dict[str, Any]]:
    """Every Kubernetes object."""
    files = (DOCKER / name for name in MANIFESTS)
    texts = (file.read_text(encoding="utf-8") for file in files)
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def compose() -> dict[str, Any]:
    """The compose file, merged as compose merges it."""
    loaded: dict[str, Any] = yaml.safe_load((DOCKER / "compose.yaml").read_text(encoding="utf-8"))
    return loaded


def pods() -> list[dict[str, Any]]:
    """The pod of every deployment."""
    return [item["spec"]["template"]["spec"] for item in manifests() if item["kind"] == "Deployment"]


def assert_is_command(words: list[str]) -> None:
    """The words are a command of ours, with options that exist."""
    number = 2 if words[0] == "keys" else 1
    shown = CliRunner().invoke(app, [*words[:number], "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert shown.exit_code == 0, words
    for option in (word for word in words if word.startswith("--")):
        assert option in shown.output, (words, option)


@pytest.mark.parametrize("number", range(len(manifests())))
def test_manifests_are_kubernetes(number: int):
    """Tests that every object is what Kubernetes' own schemas ask for, without an unknown field."""
    kubernetes_validate.validate(manifests()[number], kubernetes_validate.latest_version(), strict=True)


def test_pods_are_restricted():
    """Tests that every pod meets the restricted security standard and asks for exactly what it may use."""
    for pod in pods():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert pod["automountServiceAccountToken"] is False
        for container in pod["containers"]:
            context = container["securityContext"]
            assert context["allowPrivilegeEscalation"] is False
            assert context["readOnlyRootFilesystem"] is True
            assert context["capabilities"] == {"drop": ["ALL"]}
            assert container["resources"]["requests"] == container["resources"]["limits"]


def built(folder: Path) -> list[dict[str, Any]]:
    """What kustomize makes of a folder, each as Kubernetes asks for."""
    done = subprocess.run(["kubectl", "kustomize", str(folder)], check=True, capture_output=True, text=True)
    made = [document for document in yaml.safe_load_all(done.stdout) if document]
    for document in made:
        kubernetes_validate.validate(document, kubernetes_validate.latest_version(), strict=True)
    return made


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize(("folder", "num_more"), [("kubernetes", 0), ("autoscaling", 1)])
def test_kustomize_builds(folder: str, num_more: int):
    """Tests that kustomize makes the manifests, and with autoscaling one object more, each as Kubernetes asks for."""
    assert len(built(DOCKER / folder)) == len(manifests()) - 2 + num_more


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="kubectl is not installed")
@pytest.mark.parametrize("base", ["kubernetes", "autoscaling"])
def test_webhooks_leave_the_cluster(tmp_path: Path, base: str):
    """Tests that the component lets doors, and only them, reach port 443, and names hosts by a variable of ours."""
    places = {name: os.path.relpath(DOCKER / name, tmp_path) for name in (base, "webhooks")}
    overlay = {"resources": [places[base]], "components": [places["webhooks"]]}
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump(overlay))
    made = built(tmp_path)
    (policy,) = (item["spec"] for item in made if item["metadata"]["name"] == "pipeplan-webhooks")
    assert policy["podSelector"]["matchLabels"] == {"app": "pipeplan", "part": "api"}
    assert policy["egress"][0]["ports"] == [{"protocol": "TCP", "port": 443}]
    named = {
        item["metadata"]["name"]: {entry["name"] for entry in item["spec"]["template"]["spec"]["containers"][0]["env"]}
        for item in made
        if item["kind"] == "Deployment"
    }
    variable = "PIPEPLAN_WEBHOOK_HOSTS"
    assert {name for name, variables in named.items() if variable in variables} == {"pipeplan-api"}
    assert variable in (ROOT / "api" / "cli" / "serving_commands.py").read_text(encoding="utf-8")


def memory_bytes(amount: str) -> int:
    """Bytes of what compose or Kubernetes calls memory."""
    number, unit = re.fullmatch(r"(\d+)(g|Gi)", amount).groups()  # type: ignore[union-attr]
    assert unit in ("g", "Gi")
    return int(number) * GIB


def started_with() -> list[tuple[list[str], str, bool]]:
    """Command, memory limit, and whether solvers run elsewhere, of everything that compose and Kubernetes start."""
    found = []
    for pod in pods():
        (container,) = pod["containers"]
        names = {entry["name"] for entry in container["env"]}
        found.append((container["args"], container["resources"]["limits"]["memory"], "PIPEPLAN_DATABASE_URL" in names))
    for service in compose()["services"].values():
        if "command" in service:
            found.append((service["command"], service["mem_limit"], "PIPEPLAN_DATABASE_URL" in service["environment"]))
    return found


@pytest.mark.parametrize("number", range(len(started_with())))
def test_memory_limits_hold_what_is_started(number: int):
    """Tests that service, solvers and helpers fit together into the memory that compose and Kubernetes allow."""
    command, limit, has_database = started_with()[number]
    given = {name: command[command.index(name) + 1] for name in ("--workers", "--memory-gib") if name in command}
    is_serving = command[0] == "serve"
    asked = given.get("--memory-gib")
    shares = share_out(
        memory_bytes(limit),
        asked_bytes=None if asked is None else int(asked) * GIB,
        num_solvers=0 if is_serving and has_database else int(given.get("--workers", 1)),
        num_helpers=4 if is_serving else 0,
    )
    assert shares.solver_bytes >= GIB


def test_probes_wait_for_a_busy_service():
    """Tests that every probe waits for five seconds, as the image's own health check does, not for one."""
    probes = [probe for pod in pods() for name, probe in pod["containers"][0].items() if name.endswith("Probe")]
    assert len(probes) == 4
    assert {probe.get("timeoutSeconds", 1) for probe in probes} == {5}


def test_autoscaling_asks_for_what_there_is():
    """Tests that the autoscaler scales a deployment of ours by a metric that the doors export."""
    (scaler,) = (item["spec"] for item in manifests() if item["kind"] == "HorizontalPodAutoscaler")
    names = {item["metadata"]["name"] for item in manifests() if item["kind"] == scaler["scaleTargetRef"]["kind"]}
    assert scaler["scaleTargetRef"]["name"] in names
    (metric,) = scaler["metrics"]
    assert metric["external"]["metric"]["name"] in exported()


def exported() -> set[str]:
    """Names of all metrics, as doors and workers render them."""
    metrics = Metrics()
    metrics.observe("GET", "/", status=200, seconds=0.1)
    text = (metrics.render() + JobMetrics().render()).decode()
    gauges = (ROOT / "api" / "service" / "handlers" / "health.py").read_text(encoding="utf-8")
    named = set(re.findall(r"# TYPE (\w+) (?:counter|gauge)", text)) | set(re.findall(r'"(pipeplan_\w+)"', gauges))
    histograms = set(re.findall(r"# TYPE (\w+) histogram", text))
    return named | {f"{name}_{part}" for name in histograms for part in ("bucket", "sum", "count")}


def test_alerts_and_dashboard_ask_for_what_there_is():
    """Tests that every metric of the rules and of the dashboard is exported, and every runbook is in the docs."""
    rules = yaml.safe_load((DOCKER / "monitoring" / "alerts.yaml").read_text(encoding="utf-8"))["groups"][0]["rules"]
    dashboard = json.loads((DOCKER / "monitoring" / "dashboard.json").read_text(encoding="utf-8"))
    asked = [rule["expr"] for rule in rules]
    asked += [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    used = {name for text in asked for name in re.findall(r"pipeplan_\w+", text)}
    assert used
    assert used - exported() == set()
    for rule in rules:
        page, _, heading = rule["annotations"]["runbook"].partition(", ")
        assert f"### {json.loads(heading)}" in (ROOT / page).read_text(encoding="utf-8")


def test_the_first_key_is_made_by_a_script(tmp_path: Path):
    """Tests that the script makes a key that the service takes, puts it where compose and Kubernetes find it, once."""
    script = str(DOCKER / "first-key.sh")
    made = subprocess.run([script, "compose", str(tmp_path / ".env")], check=True, capture_output=True, text=True)
    key = made.stdout.strip()
    assert (tmp_path / ".env").read_text() == f"PIPEPLAN_FIRST_KEY={key}\n"
    assert (tmp_path / ".env").stat().st_mode & 0o077 == 0
    again = subprocess.run([script, "compose", str(tmp_path / ".env")], check=False, capture_output=True)
    assert again.returncode == 2
    (tmp_path / "kubectl").write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\ncat > {tmp_path}/secret\n')
    (tmp_path / "kubectl").chmod(0o755)
    path = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    made = subprocess.run([script, "kubernetes"], check=True, capture_output=True, text=True, env=path)
    assert (tmp_path / "secret").read_text() == made.stdout.strip() != key
    assert "create secret generic pipeplan-first-key" in (tmp_path / "asked").read_text()
    database = SqliteDatabase(tmp_path / "jobs.sqlite")
    SqlStore(database)
    assert KeyRing(database).adopt(key, tenant="default")
    database.close_all()


def test_there_is_what_a_platform_asks_for():
    """Tests that there are probes, budgets, a network policy, and that no secret stands in the file."""
    kinds = [item["kind"] for item in manifests()]
    assert {"Deployment", "Service", "PodDisruptionBudget", "NetworkPolicy", "Namespace"} <= set(kinds)
    assert "Secret" not in kinds
    (api,) = (pod["containers"][0] for pod in pods() if pod["containers"][0]["name"] == "api")
    assert api["readinessProbe"]["httpGet"]["path"] == "/readyz"
    assert api["livenessProbe"]["httpGet"]["path"] == "/livez"
    selected = {item["spec"]["selector"]["matchLabels"]["part"] for item in manifests() if item["kind"] == "Deployment"}
    budgets = {
        item["spec"]["selector"]["matchLabels"]["part"] for item in manifests() if item["kind"] == "PodDisruptionBudget"
    }
    assert budgets == selected


def test_commands_exist():
    """Tests that every command of images, compose and manifests is one of ours, with its options."""
    for pod in pods():
        assert_is_command(pod["containers"][0]["args"])
    for service in compose()["services"].values():
        if "command" in service:
            assert_is_command(service["command"])
    text = (DOCKER / "Dockerfile").read_text(encoding="utf-8")
    (command,) = re.findall(r"^CMD (\[.*\])$", text, flags=re.MULTILINE)
    assert_is_command(yaml.safe_load(command))


def test_images_are_careful():
    """Tests that images do not run as root, have an init and exec-form commands, and copy only what exists."""
    for name in ("Dockerfile", "Dockerfile.executor"):
        text = (DOCKER / name).read_text(encoding="utf-8")
        assert re.search(r"^USER 10001:10001$", text, flags=re.MULTILINE)
        assert re.search(r'^ENTRYPOINT \["tini", "--", ', text, flags=re.MULTILINE)
        assert not re.search(r"^(CMD|ENTRYPOINT) [^\[]", text, flags=re.MULTILINE)
        for line in re.findall(r"^COPY (?!--from)(.*) \S+$", text, flags=re.MULTILINE):
            for source in line.split():
                assert (ROOT / source).exists(), source


def test_compose_has_no_default_password():
    """Tests that the database has no password unless one is given, and waits to be healthy."""
    services = compose()["services"]
    assert services["database"]["environment"]["POSTGRES_PASSWORD"] == "${POSTGRES_PASSWORD:-}"
    assert services["database"]["healthcheck"]["test"][0] == "CMD"
    assert {name for name, service in services.items() if "profiles" not in service} == {"service"}
    for name in ("service", "api", "worker"):
        assert services[name]["read_only"] is True
        assert services[name]["cap_drop"] == ["ALL"]
    for name in ("api", "worker"):
        assert services[name]["depends_on"]["database"] == {"condition": "service_healthy"}


def test_the_entry_point_brings_the_kernels(tmp_path: Path):
    """Tests that the image's entry point copies the compiled kernels to a writable place and becomes the command."""
    kernels, programs = tmp_path / "kernels", tmp_path / "bin"
    kernels.mkdir()
    (kernels / "one.nbi").write_text("compiled")
    programs.mkdir()
    (programs / "pipeplan").write_text('#!/bin/sh\necho "$@" && cat "$NUMBA_CACHE_DIR/one.nbi"\n')
    (programs / "pipeplan").chmod(0o755)
    environment = {
        "PATH": f"{programs}:/usr/bin:/bin",
        "PIPEPLAN_KERNELS": str(kernels),
        "NUMBA_CACHE_DIR": str(tmp_path / "copy"),
    }
    for _ in range(2):
        command = [sys.executable, str(DOCKER / "entrypoint.py"), "serve", "--port", "1"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        assert done.stdout == "serve --port 1\ncompiled"


def test_the_health_check_tells_life_from_death(tmp_path: Path):
    """Tests that the image's health check succeeds on a service that lives, and fails where there is none."""
    script = [sys.executable, str(DOCKER / "healthcheck.py")]
    with serving(tmp_path) as running:
        assert subprocess.run([*script, f"{running.url}/livez"], check=False).returncode == 0
        assert subprocess.run([*script, f"{running.url}/nowhere"], check=False, capture_output=True).returncode == 1
    assert subprocess.run([*script, f"{running.url}/livez"], check=False, capture_output=True).returncode == 1
