"""What pods ask for to get devices of other makers than NVIDIA."""

import pytest

from planner.launch.cluster_facts import ClusterFacts
from planner.launch.device_resources import resource_of
from planner.launch.kubernetes import PodNeeds, render_kubernetes
from tests.planner.launch.test_slurm import job_on


@pytest.mark.parametrize(
    ("kind", "resource"),
    [
        ("NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu"),
        ("h100", "nvidia.com/gpu"),
        ("AMD_Instinct_MI300X_OAM", "amd.com/gpu"),
        ("mi250", "amd.com/gpu"),
        ("habana.ai/gaudi", "habana.ai/gaudi"),
        ("huawei.com/Ascend910", "huawei.com/Ascend910"),
        ("nvidia.com/mig-1g.10gb", "nvidia.com/mig-1g.10gb"),
        ("tpu-v5-lite-podslice", "google.com/tpu"),
        ("trainium", "aws.amazon.com/neuron"),
    ],
)
def test_types_say_their_resource(kind: str, resource: str):
    """Tests that the name of a type, as discovery files it, leads to the resource of its maker's plugin."""
    assert resource_of(kind, host="a") == resource


@pytest.mark.parametrize(
    "kind", ["NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "a100_3g.20gb", "AMD-MI300X-cpx_nps4", "Ascend910B"]
)
def test_what_several_resources_offer_is_refused(kind: str):
    """Tests that a slice, or a chip with several resources, is refused by host, type and remedy."""
    with pytest.raises(ValueError, match=rf"host 'a': several resources may offer its '{kind}'; .*--patch"):
        resource_of(kind, host="a")


def test_pods_ask_for_what_their_hosts_have():
    """Tests that a pod asks for its maker's devices, up to the highest that the plan uses, by resource."""
    facts = ClusterFacts(types={"a": ("AMD_Instinct_MI300X_OAM",) * 3, "b": ("h100", "habana.ai/gaudi")})
    job = job_on(("a", 0), ("a", 2), ("b", 1), cluster=facts)
    needs = PodNeeds(image="i", with_gpus=True)
    text = render_kubernetes(job, kind="jobset", needs=needs, plan_text=None, folder="/job").files["job.json"]
    assert '{"limits": {"amd.com/gpu": "3"}}' in text
    assert '{"limits": {"nvidia.com/gpu": "1", "habana.ai/gaudi": "1"}}' in text
