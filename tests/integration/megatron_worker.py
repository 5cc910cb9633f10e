"""Megatron-LM's own code on what is exported for it: its parser, its checks, its configuration, its schedules.

Reads cases as JSON (`arguments`, `world_size`) from the file named first, writes what came of each to the second. Runs
in an environment that has Megatron-LM; what a machine without an accelerator lacks stands in for it, and nothing else:
the architecture of a device, tensors on it, and the messages between ranks.
"""

import json
import os
import sys
import typing
from pathlib import Path
from typing import Any

import torch
from lacking_triton import stand_in  # type: ignore[import-not-found]

if not hasattr(typing, "override"):  # Python 3.12 has it, which Megatron-LM asks for
    typing.override = lambda method: method  # type: ignore[attr-defined]
stand_in()

from megatron.core.parallel_state import RankGenerator  # type: ignore[import-not-found]  # noqa: E402
from megatron.core.pipeline_parallel import schedules  # type: ignore[import-not-found]  # noqa: E402
from megatron.core.process_groups_config import ProcessGroupCollection  # type: ignore[import-not-found]  # noqa: E402
from megatron.training import arguments as megatron_arguments  # type: ignore[import-not-found]  # noqa: E402

OWN = (
    *("--hidden-size", "64", "--num-attention-heads", "4", "--seq-length", "32", "--max-position-embeddings", "32"),
    *("--vocab-size", "128", "--tokenizer-type", "NullTokenizer", "--position-embedding-type", "rope", "--bf16"),
    *("--train-iters", "1", "--lr", "0.001", "--transformer-impl", "local"),
    *("--no-persist-layer-norm", "--no-rope-fusion"),
)
"""What users write themselves: the model's shape, the data, the steps."""
LETTERS = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}

zeros = torch.zeros


def zeros_here(*shape: Any, **how: Any) -> torch.Tensor:
    return zeros(*shape, **{**how, "device": "cpu"})


class Group:
    """A process group as far as a schedule asks it."""

    def __init__(self, size: int = 1, rank: int = 0) -> None:
        self._size, self._rank = size, rank

    def size(self) -> int:
        return self._size

    def rank(self) -> int:
        return self._rank


class Handle:
    def wait(self) -> None:
        pass


class Messages:
    """Stands in for the messages of one rank: they have always come."""

    def __init__(self, config: Any, group: Group) -> None:
        self.config, self.pp_group = config, group
        self.virtual_pipeline_model_parallel_size = config.virtual_pipeline_model_parallel_size
        self.total_stages, self.current_stage = group.size(), group.rank()
        self.is_pp_first_stage, self.is_pp_last_stage = group.rank() == 0, group.rank() == group.size() - 1

    def send_forward_recv_forward(self, output: Any, recv_prev: bool, overlap_p2p_comm: bool = False, **_: Any) -> Any:
        handles = {"recv_prev": Handle()} if recv_prev else {}
        return (None, handles | ({} if output is None else {"send_next": Handle()})) if overlap_p2p_comm else None

    def send_backward_recv_backward(
        self, gradient: Any, recv_next: bool, overlap_p2p_comm: bool = False, **_: Any
    ) -> Any:
        handles = {"recv_next": Handle()} if recv_next else {}
        return (None, handles | ({} if gradient is None else {"send_prev": Handle()})) if overlap_p2p_comm else None

    def send_forward_backward_recv_forward_backward(self, *_: Any, **__: Any) -> Any:
        return None, None

    def __getattr__(self, name: str) -> Any:
        if name.startswith(("send_", "recv_")):
            return lambda *_, **__: None
        raise AttributeError(name)


def order_of(config: Any, *, rank: int, num_microbatches: int) -> list[str]:
    """What Megatron's own function runs on a rank, as actions with the number of the stage."""
    order: list[str] = []
    chunks = config.virtual_pipeline_model_parallel_size or 1
    size = config.pipeline_model_parallel_size

    def forward(*_: Any, current_microbatch: int, vp_stage: int | None = None, **__: Any) -> tuple[str, int]:
        action = f"{(vp_stage or 0) * size + rank}F{current_microbatch}"
        order.append(action)
        return action, 0

    def backward(_: Any, output: Any, *__: Any) -> str:
        order.append(str(output).replace("F", "B"))
        return order[-1]

    schedules.forward_step, schedules.backward_step = forward, backward
    schedules.deallocate_output_tensor = lambda *_: None
    models = []
    for _ in range(chunks):
        model = torch.nn.Module()
        model.config, model.model_type = config, None  # type: ignore[assignment]
        models.append(model)
    groups = ProcessGroupCollection()
    groups.tp, groups.cp = Group(), Group()
    run = (
        schedules.forward_backward_pipelining_with_interleaving
        if chunks > 1
        else schedules.forward_backward_pipelining_without_interleaving
    )
    run(
        forward_step_func=None,
        data_iterator=[None] * chunks,
        model=models,
        num_microbatches=num_microbatches,
        seq_length=config.max_position_embeddings if hasattr(config, "max_position_embeddings") else 32,
        micro_batch_size=1,
        p2p_communicator=Messages(config, Group(size, rank)),
        pg_collection=groups,
    )
    return order


def taken(case: dict[str, Any]) -> dict[str, Any]:
    """What Megatron makes of the flags; raises what it raises."""
    sys.argv = ["pretrain_gpt.py", *OWN, *case["arguments"]]
    os.environ |= {"RANK": "0", "WORLD_SIZE": str(case["world_size"]), "CUDA_DEVICE_MAX_CONNECTIONS": "1"}
    arguments = megatron_arguments.parse_args()
    megatron_arguments.validate_args(arguments)
    config = megatron_arguments.core_transformer_config_from_args(arguments)
    ranks = range(config.pipeline_model_parallel_size)
    layout = None if arguments.hybrid_layer_pattern else config.pipeline_model_parallel_layout.layout
    count = arguments.global_batch_size // (arguments.micro_batch_size * arguments.data_parallel_size)
    generator = RankGenerator(
        tp=arguments.tensor_model_parallel_size,
        ep=1,
        dp=arguments.data_parallel_size,
        pp=config.pipeline_model_parallel_size,
        cp=arguments.context_parallel_size,
        order="tp-cp-ep-dp-pp",
    )
    has_pipeline = len(ranks) > 1
    return {
        "layout": layout and [["".join(LETTERS[layer.name] for layer in stage) for stage in row] for row in layout],
        "hybrid": [arguments.hybrid_layer_pattern, arguments.num_layers],
        "chunks": config.virtual_pipeline_model_parallel_size,
        "num_microbatches": count,
        "orders": [order_of(config, rank=rank, num_microbatches=count) for rank in ranks] if has_pipeline else None,
        "pipelines": generator.get_ranks("pp"),
        "tensor_groups": generator.get_ranks("tp-cp"),
        "tensor": arguments.tensor_model_parallel_size,
        "context": arguments.context_parallel_size,
        "experts": arguments.expert_model_parallel_size,
        "recompute": [config.recompute_granularity, config.recompute_method, config.recompute_num_layers],
        "use_distributed_optimizer": arguments.use_distributed_optimizer,
        "mtp_num_layers": config.mtp_num_layers,
    }


def attempt(case: dict[str, Any]) -> dict[str, Any]:
    try:
        return taken(case)
    except (Exception, SystemExit) as error:
        return {"refused": f"{type(error).__name__}: {error}"}


if __name__ == "__main__":
    torch.zeros = zeros_here  # type: ignore[assignment]
    megatron_arguments.get_device_arch_version = lambda: 9
    cases, answers = map(Path, sys.argv[1:])
    answers.write_text(json.dumps([attempt(case) for case in json.loads(cases.read_text())]))
