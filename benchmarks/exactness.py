"""Models of transformers under plans of every kind: `python -m benchmarks.exactness [-o TABLE.md]`.

Each is compared with one process that trains the uncut model in a loop, all in float64, so that what is left is the
order in which numbers are added up. Losses of words are taken in float32 by transformers, so the mean over replicas is
off by its last places; gradients are not. Plans are made by hand, to be of many kinds. `--only gpt2 llama` for some.
Rows of torchtitan want it installed, as tests/planner/export/test_torchtitan.py says; without it they are left out.
"""

import copy
import importlib.util
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import distributed, nn

from benchmarks import corpus_models
from benchmarks.model_corpus import NUM_MICROBATCHES, STEPS, given_by, train_alone
from benchmarks.processes import fork
from benchmarks.records import Records
from benchmarks.report import Table, describe_commit, make_parser
from planner.execute.run.execution import Execution
from planner.execute.run.preparation import prepare
from planner.execute.state.state_dict import share_weights
from planner.execute.training import Training
from planner.plan import Plan
from tests.planner.execute.orders import make_random_plan

MODELS = ("gpt2", "llama", "mistral", "qwen", "mixtral", "bert", "t5", "vit", "whisper", "albert")
"""Of benchmarks.corpus_models; those whose library every development environment has."""

TITAN = ("titan_llama",)
"""Likewise, where torchtitan is there as well (tests/planner/export/test_torchtitan.py). Its Qwen3 rotates in float32,
where another last place of float64 may become another number; its DeepSeek counts tokens in buffers, per replica."""

WIDE = ("gpt2", "llama", "mistral", "qwen", "mixtral", "bert", "t5", "vit", "whisper")
"""Those that are known how to be cut (planner/execute/parallel/parallel_table.py)."""

WEIGHT_TARGET, LOSS_TARGET = 1e-12, 1e-6
"""Largest differences; transformers takes losses of words in float32, whatever the model is in: two of its last places
at 5."""

TIMEOUT_S = 900.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanKind:
    """Stages, where they are, and what of the executor that takes."""

    name: str
    placement: str
    """Per stage its replicas, or the devices of its group."""
    is_wide: bool = False
    is_sharded: bool = False
    is_fully_sharded: bool = False
    """Weights and gradients as well."""
    seed: int | None = None
    """Of the order of actions; None: I before F before W."""
    recompute: str = ""
    backward: str = "IW"

    @property
    def num_processes(self) -> int:
        """Ranks."""
        return len(set(self.placement.replace("/", " ").replace("+", " ").split()))

    @property
    def num_stages(self) -> int:
        """A model of fewer layers has no such plan."""
        return len(self.placement.split())

    def make(self, names: Sequence[str]) -> Plan:
        """The plan of a model with these layers."""
        count = self.num_stages
        cut = [len(names) * (n + 1) // count - len(names) * n // count for n in range(count)]
        made = make_random_plan(
            self.placement,
            cut=cut,
            num_microbatches=NUM_MICROBATCHES,
            seed=self.seed,
            recompute=self.recompute,
            backward=self.backward,
        )
        given, shard = iter(names), "optimizer" if self.is_sharded else "none"
        stages = tuple(
            replace(s, layers=tuple(next(given) for _ in s.layers), shard=shard if len(s.replicas) > 1 else "none")
            for s in made.stages
        )
        return replace(made, stages=stages)


KINDS = (
    PlanKind(name="2 ranks, order at random, I and W apart", placement="0 1", seed=1),
    PlanKind(name="2 ranks, two stages each, first half recomputed", placement="0 1 1 0", recompute="yynn"),
    PlanKind(name="2 ranks, replicas, sharded", placement="0/1 0/1", is_sharded=True),
    PlanKind(name="2 ranks, replicas, fully sharded", placement="0/1 0/1", is_sharded=True, is_fully_sharded=True),
    PlanKind(name="4 ranks, whole backward", placement="0 1 2 3", backward="B"),
    PlanKind(name="4 ranks, 1 to 2 to 1, order at random", placement="0 1/2 3", seed=3),
    PlanKind(name="2 ranks, a group of 2", placement="0+1", is_wide=True),
    PlanKind(name="4 ranks, two groups of 2", placement="0+1 2+3", is_wide=True),
    PlanKind(name="4 ranks, replicas of groups of 2, sharded", placement="0+1/2+3", is_wide=True, is_sharded=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactCase:
    """What became of a model under a plan."""

    model: str
    kind: str
    loss_difference: float | None = None
    weight_difference: float | None = None
    failed: str = ""

    @property
    def is_exact(self) -> bool:
        """Whether it ran and is within the targets."""
        if self.loss_difference is None or self.weight_difference is None:
            return False
        return self.loss_difference <= LOSS_TARGET and self.weight_difference <= WEIGHT_TARGET


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """A model trained in one process."""

    module: nn.Module
    """As it was."""
    training: Training
    losses: list[list[float]]
    weights: dict[str, torch.Tensor]


def train_one(name: str) -> Alone:
    """As people do it: the uncut model, microbatch by microbatch."""
    with mock.patch.object(corpus_models, "padded", _padded):
        given = given_by(name)
    if name == "mixtral":
        given["module"].set_experts_implementation("eager")  # torch's grouped product knows no float64
    trained = copy.deepcopy(given["module"])
    losses = train_alone(**given | {"module": trained})
    training = Training.from_module(**given)
    return Alone(module=given["module"], training=training, losses=losses, weights=trained.state_dict())


def _padded(step: int, *, padded: Callable[[int], Any] = corpus_models.padded) -> Any:
    """With a mask, and no label that does not count."""
    given = padded(step)
    return given | {"labels": given["input_ids"]}


def run_rank(name: str, kinds: Sequence[PlanKind], folder: Path, *, rank: int) -> None:
    """One rank of all cases of a model and of a number of processes; the first writes what came out."""
    torch.set_num_threads(1)
    torch.set_default_dtype(torch.float64)
    alone = train_one(name)
    store = distributed.FileStore(str(folder / f"{name}.{kinds[0].num_processes}.store"), kinds[0].num_processes)
    distributed.init_process_group(
        "gloo", store=store, rank=rank, world_size=kinds[0].num_processes, timeout=timedelta(seconds=TIMEOUT_S)
    )
    for kind in kinds:
        if len(alone.training.layers) < kind.num_stages:
            (folder / f"{name}.{KINDS.index(kind)}.none").touch()
            continue
        try:
            plan = kind.make(list(alone.training.layers))
            preparation = prepare(plan, alone.training, fully_shard=kind.is_fully_sharded)
        except ValueError as error:  # of the plan, and so on every rank
            if rank == 0:
                refused = ExactCase(model=name, kind=kind.name, failed=f"refused: {error}"[:200])
                (folder / f"{name}.{KINDS.index(kind)}.json").write_text(json.dumps(asdict(refused)))
            continue
        execution = Execution(preparation, device=torch.device("cpu"))
        told = [execution.step(number).losses for number in range(STEPS)]
        model = copy.deepcopy(alone.module)
        share_weights(execution, model)
        every: list[Any] = [None] * kind.num_processes
        distributed.all_gather_object(every, told)
        if rank == 0:
            found = ExactCase(
                model=name,
                kind=kind.name,
                loss_difference=max(_loss_differences(every, alone.losses)),
                weight_difference=max(
                    float((value - alone.weights[key]).abs().max())
                    for key, value in model.state_dict().items()
                    if value.numel()
                ),
            )
            (folder / f"{name}.{KINDS.index(kind)}.json").write_text(json.dumps(asdict(found)))
    distributed.destroy_process_group()


def _loss_differences(
    every: Sequence[Sequence[tuple[float, ...]]], alone: Sequence[Sequence[float]]
) -> Iterator[float]:
    """Of every microbatch, as each rank with the last stage told it."""
    for told in every:
        for mine, theirs in zip(told, alone, strict=True):
            if mine:
                yield from (abs(a - b) for a, b in zip(mine, theirs, strict=True))


def run_cases(name: str, folder: Path) -> Iterator[ExactCase]:
    """All of a model."""
    kinds = [kind for kind in KINDS if name in WIDE or not kind.is_wide]
    for count in (2, 4):
        mine = [kind for kind in kinds if kind.num_processes == count]
        logs = [folder / f"{name}.{count}.{rank}.log" for rank in range(count)]
        calls: list[Callable[[], Any]] = [partial(run_rank, name, mine, folder, rank=rank) for rank in range(count)]
        processes = [fork(call, log) for call, log in zip(calls, logs, strict=True)]
        codes = [os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) for process in processes]
        for kind in mine:
            path = folder / f"{name}.{KINDS.index(kind)}.json"
            if path.exists():
                yield ExactCase(**json.loads(path.read_text()))
            elif not path.with_suffix(".none").exists():
                said = [each for log in logs for each in log.read_text().splitlines() if "rror" in each]
                yield ExactCase(model=name, kind=kind.name, failed=(said or [f"exit codes {codes}"])[-1][:200])


def cells(case: ExactCase) -> Iterator[str]:
    """Of a row of the table."""
    yield from (case.model, case.kind)
    if case.failed:
        yield from (case.failed.replace("|", "/"), "")
        return
    yield from ("0" if not x else f"{x:.1e}" for x in (case.loss_difference, case.weight_difference))


def main() -> None:
    """Cases that are missing, and the table of all."""
    known = [*MODELS, *(TITAN if importlib.util.find_spec("torchtitan") else ())]
    parser = make_parser(__doc__)
    parser.add_argument("--records", type=Path, help="cases made so far; a file of its own per commit if left out")
    parser.add_argument("--only", nargs="*", choices=(*MODELS, *TITAN), default=known)
    options = parser.parse_args()
    sys.path.insert(0, str(Path.cwd()))
    cases = Records(options.records or Path("out/exactness", f"{describe_commit()}.jsonl"), ExactCase)
    begin = time.monotonic()
    for name in options.only[: 1 if options.quick else None]:
        if name not in {case.model for case in cases}:
            with tempfile.TemporaryDirectory() as folder:
                for case in list(run_cases(name, Path(folder))):
                    cases.add(case)
            sys.stderr.write(f"{name}: {len(cases)} cases after {time.monotonic() - begin:.0f} s\n")
    header = ("model", "plan", "losses differ", "weights differ")
    title = "# Foreign models under plans, against one process"
    table = Table.about(title, __doc__, header=header, output=options.output)
    for case in cases:
        table.add(cells(case))
    exact, worst = (
        sum(case.is_exact for case in cases),
        max((case.weight_difference or 0.0 for case in cases), default=0),
    )
    table.close(
        f"{exact} of {len(cases)} cases are within the targets; the largest difference of a weight: {worst:.1e}."
    )


if __name__ == "__main__":
    main()
