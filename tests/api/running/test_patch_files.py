"""Files with patches of manifests: tests of api/running/patch_files.py."""

import json
from pathlib import Path

import pytest

from api.failures import InputError
from api.inputs import reading
from api.running.patch_files import read_patches
from tests.planner.launch.test_kubernetes import require_known
from tests.planner.launch.test_manifest_patch import EXAMPLES, patched, pods, render

kubernetes_validate = pytest.importorskip("kubernetes_validate")


def test_what_the_examples_ask_for():
    """Tests that the fields of each example stand where Kubernetes, Kueue and Volcano look for them."""
    files = [str(EXAMPLES / f"{name}.yaml") for name in ("shared-memory", "checkpoints", "tolerations", "rdma")]
    job = render(read_patches([*files, str(EXAMPLES / "kueue.yaml")]))
    assert job["metadata"]["labels"] == {"kueue.x-k8s.io/queue-name": "training"}
    assert "annotations" in job["metadata"]
    spec = pods(job)[0]["spec"]
    (container,) = spec["containers"]
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    assert container["resources"]["limits"] == {"nvidia.com/gpu": "3", "rdma/hca": "1"}
    assert container["securityContext"]["capabilities"]["add"] == ["IPC_LOCK"]
    assert {volume["name"] for volume in spec["volumes"]} == {"plan", "shm", "checkpoints"}
    assert spec["tolerations"][0]["key"] == "nvidia.com/gpu"
    volcano = render(read_patches([str(EXAMPLES / "volcano-queue.yaml")]), kind="volcano")
    assert volcano["spec"]["queue"] == "training"


def test_a_train_job_takes_what_its_pods_may_have(monkeypatch, record_property):
    """Tests that volumes reach the patch of the runtime, and that a field a TrainJob does not take is refused."""
    job = render(read_patches([str(EXAMPLES / "tolerations.yaml")]), kind="trainjob", placement="2 0")
    require_known(job, "TrainerV1alpha1TrainJob", monkeypatch, record_property)
    assert "tolerations" in json.dumps(job["spec"]["runtimePatches"])
    with pytest.raises(ValueError, match=r"p0\.spec: a pod of a TrainJob has no field 'hostNetwork'"):
        patched({"kind": "Pod", "spec": {"hostNetwork": True}}, kind="trainjob", placement="2 0")
    with pytest.raises(ValueError, match=r"containers\[rank\] has no image; the program's container is 'node'"):
        patched({"kind": "Pod", "spec": {"containers": [{"name": "rank"}]}}, kind="trainjob", placement="2 0")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "p.yaml: is empty"),
        ("a: 1\n  b: 2\n", "p.yaml, line 2: not YAML"),
        ("kind: Pod\nkind: JobSet\n", "p.yaml, line 2: kind is written twice; write it once"),
        (b"\xff\xfe\x00", "p.yaml"),
    ],
)
def test_a_file_that_is_no_patch_is_one_message(text: str | bytes, message: str, tmp_path: Path, monkeypatch):
    """Tests that broken files are told with their name and line."""
    monkeypatch.chdir(tmp_path)
    Path("p.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as caught, reading():
        read_patches(["p.yaml"])
    assert message in str(caught.value)


def test_documents_and_lists_are_patches_each(tmp_path: Path):
    """Tests that JSON and YAML, several documents and lists are read in their order."""
    (tmp_path / "a.json").write_text('[{"kind": "Pod"}, {"kind": "JobSet"}]')
    (tmp_path / "b.yaml").write_text("kind: ConfigMap\n---\nkind: Pod\n")
    found = read_patches([str(tmp_path / "a.json"), str(tmp_path / "b.yaml")])
    assert [patch.document["kind"] for patch in found] == ["Pod", "JobSet", "ConfigMap", "Pod"]
    assert found[1].source.endswith("a.json (2)")
