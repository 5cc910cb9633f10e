"""What pods ask for to get devices of other makers than NVIDIA."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from planner.launch.cluster_facts import ClusterFacts
from planner.launch.device_resources import require_accelerators, resource_of
from planner.launch.kubernetes import PodNeeds, render_kubernetes
from planner.launch.launch_job import LaunchJob
from planner.launch.ray_train import RayNeeds, render_ray
from planner.launch.skypilot import SkyNeeds, render_sky
from planner.launch.slurm import render_slurm
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


PODS = PodNeeds(image="i", with_gpus=True)
LAUNCHERS: dict[str, Callable[[LaunchJob], object]] = {
    "slurm": lambda job: render_slurm(job, folder="/j", with_gpus=True),
    "kubernetes": lambda job: render_kubernetes(job, kind="jobset", needs=PODS, plan_text=None, folder="/j"),
    "ray": lambda job: render_ray(job, needs=RayNeeds(folder="/here", with_gpus=True), folder="/j"),
    "sky": lambda job: render_sky(job, needs=SkyNeeds(accelerators="H100:8"), folder="/j"),
}
"""Each asks for accelerators."""


@pytest.mark.parametrize("launcher", LAUNCHERS)
def test_processors_are_no_accelerators(launcher: str):
    """Tests that nobody asks for accelerators where the plan has processors, on any of its hosts, or runs on them."""
    option = "--accelerators" if launcher == "sky" else "--gpus"
    launch = LAUNCHERS[launcher]
    launch(job_on(("a", 0), ("b", 0), cluster=ClusterFacts(types={"a": ("H100",), "b": ("H100", "cpu")})))
    for kind in ("cpu", "CPU", "cpu_epyc"):
        job = job_on(("a", 0), ("b", 0), cluster=ClusterFacts(types={"a": ("H100",), "b": (kind,)}))
        with pytest.raises(ValueError, match=f"^{option}.*device 'd1' .* is of type '{kind}'; drop {option}, or plan"):
            launch(job)
    with pytest.raises(ValueError, match=f"^{option}.*: --processors runs on processors; leave one of them out"):
        launch(replace(job_on(("a", 0)), on_processors=True))


@pytest.mark.parametrize(
    ("kind", "named", "is_right"),
    [
        ("NVIDIA H100 80GB HBM3", "H100", True),
        ("NVIDIA-A100-SXM4-80GB", "A100-80GB", True),
        ("AMD_Instinct_MI300X_OAM", "MI300X", True),
        ("NVIDIA GeForce RTX 4090", "RTX4090", True),
        ("fast", "H100", True),
        ("core", "V100", True),
        ("NVIDIA H100 80GB HBM3", "A100", False),
        ("h200", "H100", False),
        ("NVIDIA L4", "T4", False),
        ("NVIDIA A100-SXM4-80GB", "MI300X", False),
    ],
)
def test_accelerators_of_another_model_are_refused(kind: str, named: str, is_right: bool):
    """Tests that a plan for one chip is not given to another, as far as names of chips tell."""
    job = job_on(("a", 0), cluster=ClusterFacts(types={"a": (kind,)}))
    option = f"--accelerators {named}:8"
    if is_right:
        require_accelerators(job, option=option, named=named)
        return
    with pytest.raises(ValueError, match=f"^{option}: device 'd0' .* '{kind}'; name that one, or plan for .* {named}"):
        require_accelerators(job, option=option, named=named)
