"""The example of a job that is audited before it trains."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from api.cli import main
from tests.planner.launch.test_kubernetes import require_known
from tests.planner.launch.test_manifest_patch import require_valid

EXAMPLE = Path(__file__).parents[3] / "examples" / "audited-job" / "jobset.yaml"


def parts() -> tuple[dict[str, Any], dict[str, Any]]:
    config, job = yaml.safe_load_all(EXAMPLE.read_text())
    return config, job


def test_the_schemas_take_it(monkeypatch: pytest.MonkeyPatch, record_property: Any) -> None:
    """Tests that JobSet's and Kubernetes' schemas know every field, and that Kueue finds its queue."""
    config, job = parts()
    require_known(config, "IoK8sApiCoreV1ConfigMap", monkeypatch, record_property)
    require_known(job, "JobsetV1alpha2JobSet", monkeypatch, record_property)
    (only,) = job["spec"]["replicatedJobs"]
    require_valid(only["template"]["spec"]["template"])
    assert job["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "training"}


@pytest.mark.slow
def test_its_first_step_lets_it_train(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Tests that the audit of the example passes, and ends it with 4 or 2 where it is slow or has an unknown flag."""
    config, job = parts()
    pod = job["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    step = pod["initContainers"][0]
    script = tmp_path / "train.sh"
    words = [*step["command"][1:-1], str(script), *step["args"][:-1]]
    text = config["data"]["train.sh"]
    script.write_text(text)
    assert main([*words, "1"]) == 0, capsys.readouterr()
    slow = text.replace("--pipeline-model-parallel-size 4", "--pipeline-model-parallel-size 4 "
                        "--pipeline-model-parallel-layout 'Et|t|t*15|t*15L'")  # fmt: skip
    script.write_text(slow)
    assert main([*words, "1"]) == 4
    script.write_text(text.replace("--mock-data", "--mock-dta"))
    assert main([*words, "1"]) == 2
    assert "not known: --mock-dta" in capsys.readouterr().err
