"""What a reader of a page has: the repository, what the tutorial makes, and the files that the page speaks of."""

import json
import re
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from planner.document import parse_plan, render_plan
from planner.documents.embedded_problem import enclosed_problem
from profiles.importers.nccl_tests import parse_nccl_tests
from profiles.measure.links import dump_links
from tests.long_runs import IS_LONG
from tests.profiles.discovery.test_kubernetes_nodes import GFD, node
from tests.profiles.discovery.test_slurm_nodes import MANY
from tests.profiles.importers.test_megatron_timers import log
from tests.profiles.importers.test_nccl_tests import output
from tests.profiles.importers.test_pipedream import GRAPH
from tests.test_documents import text_of
from tests.test_house_rules import ROOT

Source = str | Callable[[], str]
"""A file or folder of the repository, or what returns the text of a file."""


def model_of(page: str) -> str:
    """The first Python block of a page that defines a model, or nothing."""
    return next((block for block in blocks_of(page, "python") if "def make_training" in block), "")


def blocks_of(page: str, language: str) -> list[str]:
    """The fenced blocks of one language on a page."""
    return re.findall(rf"^```{language}\n(.*?)^```", text_of(page), re.DOTALL | re.MULTILINE)


def tutorial_workload(**of_devices: object) -> str:
    """The tutorial's workload, with more fields in every device."""
    workload = json.loads((ROOT / "examples/tutorial/workload.json").read_text(encoding="utf-8"))
    for device in workload["cluster"]["devices"]:
        device.update(of_devices)
    return json.dumps(workload)


def equal_pipelines() -> str:
    """A plan of two pipelines that train the layers of examples.sft, each on one device."""
    from tests.planner.execute.data.test_dealt_rows import named, one_by_one  # torch

    layers = ("embedding", "block0", "block1", "block2", "block3", "head")
    return render_plan(named(one_by_one("0/1", num_microbatches=2, cut=(len(layers),)), *layers).plan)


def plan_on_cards() -> str:
    """The tutorial's plan, as if its two devices were H100s."""
    text = (ROOT / "examples/tutorial/plan.json").read_text(encoding="utf-8")
    plan = parse_plan(re.sub('type": "cpu"', 'type": "H100"', text))
    problem = enclosed_problem(plan)
    assert problem is not None
    return render_plan(replace(plan, problem=problem.reference()))


def all_reduce_log() -> str:
    """What `all_reduce_perf` of nccl-tests prints on this host, if it has four GPUs."""
    return output("all_reduce_perf", hosts=(socket.gethostname(),) * 4, factor=1.5, sums=True)


COMMON: dict[str, Source] = {
    "my_model.py": lambda: model_of("docs/tutorial.md"),
    "workload.json": "examples/tutorial/workload.json",
    "plan.json": "examples/tutorial/plan.json",
    "trace": "examples/tutorial/trace",
    "traces": "examples/tutorial/trace",
    "examples": "examples",
}
"""On every page. In `make test` they are the results of commands that take long, too."""

OF_PAGES: dict[str, dict[str, Source]] = {
    "docs/how-to/ask-for-more.md": {"priced.json": lambda: tutorial_workload(price_per_hour=2.5)},
    "docs/how-to/audit.md": {"yours.json": "examples/tutorial/plan.json", "traces": "examples/tutorial/trace"},
    "docs/how-to/discover-the-cluster.md": {
        "hosts": lambda: "cpu1 slots=2\ncpu2 slots=2\n",
        "all_reduce_perf.txt": all_reduce_log,
        "links.json": lambda: dump_links(parse_nccl_tests(all_reduce_log(), source="all_reduce_perf.txt")),
    },
    "docs/how-to/launch.md": {"plan.json": plan_on_cards},
    "docs/how-to/plan-for-megatron.md": {"train.log": log},
    "docs/how-to/profile-my-model.md": {
        "graph.txt": lambda: GRAPH,
        "OPT-350": "tests/planner/planning/starts/sailor/OPT-350",
        "llm_info.json": "tests/planner/planning/starts/sailor/llm_info.json",
    },
    "docs/how-to/read-a-plan.md": {"other.json": "examples/tutorial/plan.json"},
    "docs/how-to/run-it.md": {"gpt2.json": "examples/tutorial/workload.json"},
    "docs/how-to/uneven-sequences.md": {"plan.json": equal_pipelines},
    "docs/how-to/write-a-workload.md": {
        "by-hand.json": lambda: blocks_of("docs/how-to/write-a-workload.md", "json")[0],
        "neutral.json": lambda: blocks_of("docs/how-to/write-a-workload.md", "json")[1],
    },
}
"""What a page tells its reader to write, or to bring."""

NODES = {
    "kind": "List",
    "items": [node(f"y{number}", labels={f"{GFD}.memory": "81559"}, **{GFD: "8"}) for number in (1, 2)],
}
GPUS = "".join(f"{number}, NVIDIA H100 80GB HBM3, 81559\n" for number in range(4))
ANSWERS = {
    "scontrol": {"*node*": MANY, "*": ""},
    "kubectl": {"*nodes*": json.dumps(NODES)},
    "nvidia-smi": {"*memory.total*": GPUS},
}
"""Programs of a cluster, and what they answer to arguments of a pattern; everything else they refuse."""


def furnish(folder: Path, page: str) -> None:
    """Put everything there, and the programs of a cluster into `bin`; a model that a page measures is its own."""
    own = OF_PAGES.get(page, {})
    for name, source in (COMMON | own).items():
        if callable(source):
            (folder / name).write_text(source(), encoding="utf-8")
        elif (ROOT / source).is_file():
            shutil.copy(ROOT / source, folder / name)
        elif name in own or name == "examples" or not IS_LONG:
            (folder / name).symlink_to(ROOT / source)
    if "pipeplan profile my_model:" in text_of(page) and (model := model_of(page)):
        (folder / "my_model.py").write_text(model, encoding="utf-8")
    programs = folder / "bin"
    programs.mkdir()
    for name, answers in ANSWERS.items():
        cases = "\n".join(f"{pattern}) cat <<'END'\n{text}\nEND\n;;" for pattern, text in answers.items())
        (programs / name).write_text(f'#!/bin/sh\ncase "$*" in\n{cases}\n*) exit 9 ;;\nesac\n', encoding="utf-8")
        (programs / name).chmod(0o755)
