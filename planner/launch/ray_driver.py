"""Runs on a Ray cluster, as `python3 ray_driver.py`: one Ray Train worker per host, pinned to it, with its agent.

Needs Ray and the standard library; the agents' interpreter is the job's own. It stands in the job's folder as a copy.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

JOB_FILE = "ray-job.json"
"""File with the job, beside the driver."""
FOLDER = "{folder}"
"""In an agent's words: the folder with the plan."""
MASTER = "{master}"
"""In an agent's words: the address of the first host."""
_NODE_LABEL = "ray.io/node-id"
"""The label that every node of Ray has."""
_PR_SET_PDEATHSIG = 1
_KEEPER = (
    "import ctypes, signal, subprocess, sys\n"
    "end = lambda: ctypes.CDLL(None).prctl(1, signal.SIGTERM)\n"
    "sys.exit(subprocess.Popen(sys.argv[1:], preexec_fn=end).wait())\n"
)
"""Ray kills a worker's whole process group without leaving it time, and an agent killed so leaves its ranks behind.

So this, in a session of its own, dies with the worker, and the agent is then told to end its ranks.
"""


def main() -> None:
    """Start the workers and wait for them; exits with a message if a host of the plan is no node of Ray."""
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

    job = json.loads(Path(JOB_FILE).read_text(encoding="utf-8"))
    documents = {
        name: Path(name).read_text(encoding="utf-8") for name in ("plan.json", "cluster.json") if Path(name).exists()
    }
    ray.init()
    try:
        nodes = find_nodes(job["hosts"], ray.nodes())
    except ValueError as error:
        sys.exit(str(error))
    gpus = job["gpus_per_host"]
    trainer = DataParallelTrainer(
        run_agent,
        train_loop_config=job | {
            "documents": documents,
            "nodes": [node["NodeID"] for node in nodes],
            "master": nodes[0]["NodeManagerAddress"],
        },
        scaling_config=ScalingConfig(
            num_workers=len(nodes),
            use_gpu=gpus > 0,
            resources_per_worker={"CPU": 1} | ({"GPU": gpus} if gpus else {}),
            label_selector=[{_NODE_LABEL: node["NodeID"]} for node in nodes],
        ),
        run_config=RunConfig(failure_config=FailureConfig(max_failures=job["max_failures"])),
    )  # fmt: skip
    trainer.fit()


def find_nodes(hosts: list[str], nodes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The node of every host, by id, address or name; raises ValueError that lists the nodes if one is missing."""
    alive = [node for node in nodes if node["Alive"]]
    known = {node[key]: node for key in ("NodeID", "NodeManagerAddress", "NodeManagerHostname") for node in alive}
    if missing := [host for host in hosts if host not in known]:
        names = ", ".join(sorted({node["NodeManagerHostname"] for node in alive}))
        raise ValueError(
            f"host {missing[0]!r} is not a node of this Ray cluster; it has {names}: give --host {missing[0]}=NAME"
        )
    return [known[host] for host in hosts]


def run_agent(job: dict[str, Any]) -> None:
    """On a worker: run the agent of the host that this is; raises RuntimeError if it fails."""
    import ray

    number = job["nodes"].index(ray.get_runtime_context().get_node_id())
    with tempfile.TemporaryDirectory(prefix="pipeplan-") as folder:
        for name, text in job["documents"].items():
            (Path(folder) / name).write_text(text, encoding="utf-8")
        arguments, program = _split_program(job["agents"][number])
        arguments = [argument.replace(MASTER, job["master"]).replace(FOLDER, folder) for argument in arguments]
        agent = subprocess.Popen(
            [sys.executable, "-c", _KEEPER, *arguments, *program],
            env=os.environ | {job["variable"]: job["hosts"][number]},
            cwd=job["folder"] if Path(job["folder"]).is_dir() else None,
            preexec_fn=_end_with_worker,
            start_new_session=True,
        )
        code = agent.wait()
    if code:
        raise RuntimeError(f"the agent of host {job['hosts'][number]} ended with {code}; see its log above")


def _split_program(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The agent's own words, and the user's from `--` on, which stay as they are."""
    cut = arguments.index("--")
    return arguments[:cut], arguments[cut:]


def _end_with_worker() -> None:
    """Ray ends workers without a word: the kernel then ends their agent's keeper."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


if __name__ == "__main__":
    main()
