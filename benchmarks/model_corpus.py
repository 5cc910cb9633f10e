"""Well-known models as they are: profiled, planned, trained on two processes, and compared with one process.

`python -m benchmarks.model_corpus -o out/benchmarks/model_corpus.md`, `--only llama t5` for some. Needs transformers,
torchvision and timm: `pip install '.[models,vision]'`, and torchtitan (tests/planner/export/test_torchtitan.py),
without which its rows fail. Differences are the largest of all microbatches' losses, and of all weights and buffers
after the last step, in float32. AdamW divides by the size of gradients: where they are nothing but rounding, as of
biases of keys, weights differ by a part of the learning rate of 0.001. transformers leaves out the mask of a microbatch
without padding, and cut models never do: another kernel of attention rounds otherwise.
"""

import importlib
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from benchmarks.processes import fork
from benchmarks.records import Records
from benchmarks.report import Table, describe_commit, make_parser
from planner.execute.model.cut.whole_model import BatchReader
from planner.execute.training import Training
from tests.free_ports import free_port

MODELS = {
    "gpt2": "GPT-2 (transformers)",
    "llama": "Llama (transformers)",
    "mistral": "Mistral (transformers)",
    "qwen": "Qwen3 (transformers)",
    "mixtral": "Mixtral (transformers)",
    "bert": "BERT (transformers)",
    "t5": "T5 (transformers)",
    "vit": "ViT (transformers)",
    "whisper": "Whisper (transformers)",
    "resnet18": "ResNet-18 (torchvision)",
    "resnet50": "ResNet-50 (torchvision)",
    "torchvision_vit": "ViT (torchvision)",
    "convnext": "ConvNeXt-T (torchvision)",
    "mobilenetv3": "MobileNetV3-S (torchvision)",
    "timm_vit": "ViT-Ti (timm)",
    "efficientnet": "EfficientNet-B0 (timm)",
    "albert": "ALBERT (transformers)",
    "densenet": "DenseNet-121 (torchvision)",
    "titan_llama": "Llama 3 (torchtitan)",
    "titan_qwen": "Qwen3 (torchtitan)",
    "titan_deepseek": "DeepSeek-V3 (torchtitan)",
}
"""Functions of benchmarks.corpus_models, and what the table calls them."""

NUM_MICROBATCHES, STEPS = 4, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class CorpusRow:
    """What became of one model."""

    name: str
    layers: int = 0
    blocks: str = ""
    """The first and the last layer's names."""
    stages: str = ""
    """Layers of each stage."""
    loss_difference: float | None = None
    """Largest, of all microbatches of all iterations."""
    weight_difference: float | None = None
    """Largest of all weights after the last step."""
    failed: str = ""
    """What did not work, and what it said."""


class Stopped(Exception):
    """A command failed."""


def make_row(name: str, folder: Path) -> CorpusRow:
    """All commands of one model."""
    model = f"benchmarks.corpus_models:{name}"
    row: dict[str, Any] = {"name": name}
    workload, plan, losses, weights = (
        str(folder / f"{name}.{end}") for end in ("json", "plan.json", "jsonl", "weights")
    )
    try:
        links = ["--links", str(folder / "links.json"), "--alone", "--repetitions", "2", "-q"]
        sizes = ["-m", str(NUM_MICROBATCHES), "--devices", "2"]
        _run("profiling", [partial(_pipeplan, "profile", model, *sizes, *links, "-o", workload)], folder)
        _run(
            "planning", [partial(_pipeplan, "plan", workload, "--no-replication", "-t", "2", "-q", "-o", plan)], folder
        )
        stages = json.loads(Path(plan).read_text())["stages"]
        names = [layer for stage in stages for layer in stage["layers"]]
        row |= {"layers": len(names), "blocks": f"{names[0]} … {names[-1]}"}
        row["stages"] = " + ".join(str(len(stage["layers"])) for stage in stages)
        arguments = [plan, "--model", model, "--steps", str(STEPS), "--losses", losses, "--save-weights", weights]
        count = len({device for stage in stages for group in stage["replicas"] for device in group})
        port = free_port()
        ranks = [partial(_execute, arguments, rank=rank, count=count, port=port) for rank in range(count)]
        _run("training", ranks, folder)
        answer = folder / f"{name}.answer"
        _run("one process", [lambda: answer.write_text(json.dumps(compare(name, Path(losses), Path(weights))))], folder)
        row |= json.loads(answer.read_text())
    except Stopped as stopped:
        row["failed"] = str(stopped)
    return CorpusRow(**row)


def _pipeplan(*arguments: str) -> None:
    from api.cli import main as pipeplan

    sys.exit(int(pipeplan(list(arguments))))


def _execute(arguments: list[str], *, rank: int, count: int, port: int) -> None:
    """As torchrun starts it."""
    from planner.execute.program import main as execute

    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ |= where | {"WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}
    execute(arguments)


def _run(what: str, calls: Sequence[Callable[[], Any]], folder: Path) -> None:
    """Each in a fork of this process, which has imported what they need; that is most of their work."""
    logs = [folder / f"{what}.{number}.log" for number in range(len(calls))]
    processes = [fork(call, log) for call, log in zip(calls, logs, strict=True)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
    if any(codes):
        text = "\n".join(log.read_text() for log in logs)
        lines = [line for line in text.splitlines() if "planner.execute:" in line or "rror" in line]
        raise Stopped(f"{what}: {(lines or text.splitlines() or ['?'])[0][:300]}")


def compare(name: str, losses: Path, weights: Path) -> dict[str, Any]:
    """Train the uncut model in this process, as people do, and compare."""
    torch.set_num_threads(1)
    module, told = train_uncut(name)
    found = [json.loads(line)["losses"] for line in losses.read_text().splitlines()]
    saved, pairs = read_state(module, weights), zip(told, found, strict=True)
    return {
        "loss_difference": max(abs(a - b) for one, other in pairs for a, b in zip(one, other, strict=True)),
        "weight_difference": max(
            float((saved[key] - value).abs().max()) for key, value in module.state_dict().items() if value.numel()
        ),
    }


def read_state(module: Any, weights: Path) -> dict[str, torch.Tensor]:
    """What was saved, as a model's user reads it: by transformers where it is one of its models."""
    from planner.execute.model.weight_files import WeightFiles

    if (weights / "config.json").exists():
        return dict(type(module).from_pretrained(weights).state_dict())
    with WeightFiles(weights) as files:
        return {key: files.read([key], shape=value.shape, layer="") for key, value in module.state_dict().items()}


def given_by(name: str) -> dict[str, Any]:
    """The `module` that a function of the corpus makes, and what else it gives `Training.from_module`."""
    from benchmarks import corpus_models

    given: dict[str, Any] = {}
    torch.manual_seed(0)
    with mock.patch.object(
        Training, "from_module", side_effect=lambda module, **more: given.update(more, module=module)
    ):
        getattr(corpus_models, name)()
    return given


def train_uncut(name: str) -> tuple[torch.nn.Module, list[list[float]]]:
    """A model of the corpus as it was trained, and the losses of every iteration."""
    given = given_by(name)
    return given["module"], train_alone(**given)


def train_alone(*, module: Any, batch: Any, optimizer: Any, loss: Any = None) -> list[list[float]]:
    """Train the uncut model, microbatch by microbatch; the losses of every iteration."""
    optimizer, reader, told = optimizer(list(module.parameters())), BatchReader(batch, has_own_loss=loss is None), []
    for step in range(STEPS):
        inputs, target = reader.read(reader.given(step))
        told.append([])
        for number in range(NUM_MICROBATCHES):
            cut = partial(_part, number=number)
            if isinstance(inputs, dict):
                output = module(**{key: cut(value) for key, value in inputs.items()})
            else:
                output = module(*map(cut, inputs))
            found = output.loss if loss is None else loss(output, cut(target))
            found.backward()
            told[-1].append(float(found.detach()))
        for parameter in module.parameters():
            if parameter.grad is not None:
                parameter.grad /= NUM_MICROBATCHES
        optimizer.step()
        optimizer.zero_grad()
    return told


def _part(tensor: torch.Tensor, *, number: int) -> torch.Tensor:
    size = tensor.shape[0] // NUM_MICROBATCHES
    return tensor[number * size : (number + 1) * size]


HEADER = (
    "model", "layers", "first … last", "per stage", "profiled, planned, trained", "losses differ", "weights differ",
)  # fmt: skip


def cells(row: CorpusRow) -> Iterator[str]:
    """Of a row, by `HEADER`."""
    yield from (MODELS[row.name], str(row.layers or ""), row.blocks, row.stages, row.failed.replace("|", "/") or "yes")
    yield from ("" if x is None else f"{x:.1e}" if x else "0" for x in (row.loss_difference, row.weight_difference))


def main() -> None:
    """Rows that are missing, and the table of all."""
    parser = make_parser(__doc__)
    parser.add_argument("--records", type=Path, help="rows made so far; a file of its own per commit if left out")
    parser.add_argument("--only", nargs="*", choices=MODELS, default=list(MODELS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    sys.path.insert(0, str(Path.cwd()))
    for module in (
        "benchmarks.corpus_models",
        "api.cli",
        "api.planning_run",
        "api.profiling",
        "planner.execute.program",
    ):
        importlib.import_module(module)
    rows = Records(options.records or Path("out/model_corpus", f"{describe_commit()}.jsonl"), CorpusRow)
    with tempfile.TemporaryDirectory() as folder:
        for name in options.only[: 1 if options.quick else None]:
            if name not in {row.name for row in rows}:
                rows.add(make_row(name, Path(folder)))
    table = Table.about("# Models as they are", __doc__, header=HEADER, output=options.output)
    for row in rows:
        table.add(cells(row))
    table.close(f"{sum(not row.failed for row in rows)} of {len(rows)} were profiled, planned and trained.")


if __name__ == "__main__":
    main()
