"""Hybrid models' stages beside an even split: `python -m benchmarks.hybrids -o FILE`.

Models are those of `examples/post_training/modelopt/conf/nvidia` in Megatron-LM at commit d98e8a6, on H100 by
estimates: nothing was run, and memory is left aside. Even: equally many layers of the pattern per rank, as Megatron-LM
cuts a pattern without `|`.
"""

from dataclasses import dataclass

from api.auditing.audited_problem import make_audited_problem
from api.auditing.configuration_audit import audit
from benchmarks.report import Table, make_parser, percent
from profiles.configurations.argument_forms import ReadArguments, Value
from profiles.configurations.known_models import find_sheet
from profiles.configurations.megatron_run import read_megatron

SECONDS = 8.0
"""Per model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hybrid:
    """A published model on so many ranks, each of `tensor` devices."""

    name: str
    pattern: str
    ranks: int
    tensor: int
    flags: dict[str, int]

    def options(self) -> dict[str, Value]:
        """Megatron-LM's, by name."""
        common: dict[str, Value] = {"bf16": True, "sequence_parallel": True, "use_distributed_optimizer": True,
                                    "group_query_attention": True, "hybrid_layer_pattern": self.pattern}  # fmt: skip
        sizes = {"seq_length": 8192, "micro_batch_size": 1, "vocab_size": 131_072, "kv_channels": 128,
                 "global_batch_size": 8 * self.ranks, "pipeline_model_parallel_size": self.ranks,
                 "tensor_model_parallel_size": self.tensor, **self.flags}  # fmt: skip
        return common | {name: str(value) for name, value in sizes.items()}


H_8B = "M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-"
H_47B = "M-M-M-M-M-M-M-M-M*-M-M-M-M-M-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M*-M-M-M-M-M-M-M---MM---M-M*-M-M-M-M-M-"
NANO_9B = "M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-"
NANO_30B = "MEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEM*EMEMEMEM*EMEMEMEME"
SUPER_120B = "MEMEMEM*EMEMEMEM*EMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEMEM*EMEMEMEM*EMEMEMEME"


def _sizes(
    hidden: int, inner: int, heads: int, groups: int, mamba: tuple[int, int, int], **more: int
) -> dict[str, int]:
    """`mamba`: heads, their width, state."""
    return {"hidden_size": hidden, "ffn_hidden_size": inner, "num_attention_heads": heads, "num_query_groups": groups,
            "mamba_num_heads": mamba[0], "mamba_head_dim": mamba[1], "mamba_state_dim": mamba[2], **more}  # fmt: skip


def _experts(number: int, chosen: int, shared: int) -> dict[str, int]:
    return {"num_experts": number, "moe_router_topk": chosen, "moe_shared_expert_intermediate_size": shared,
            "expert_model_parallel_size": 8, "expert_tensor_parallel_size": 1, "world_size": 64}  # fmt: skip


MODELS = (
    Hybrid(name="Nemotron-H-8B", pattern=H_8B, ranks=4, tensor=2, flags=_sizes(4096, 21504, 32, 8, (128, 64, 128))),
    Hybrid(name="Nemotron-H-4B", pattern=H_8B, ranks=4, tensor=1, flags=_sizes(3072, 12288, 32, 8, (112, 64, 128))),
    Hybrid(name="Nemotron-H-47B", pattern=H_47B, ranks=7, tensor=8, flags=_sizes(8192, 30720, 64, 8, (256, 64, 256))),
    Hybrid(name="Nemotron-Nano-9B-v2", pattern=NANO_9B, ranks=8, tensor=1,
           flags=_sizes(4480, 15680, 40, 8, (128, 80, 128))),
    Hybrid(name="Nemotron-3-Nano-30B-A3B", pattern=NANO_30B, ranks=4, tensor=1,
           flags=_sizes(2688, 1856, 32, 2, (64, 64, 128)) | _experts(128, 6, 3712)),
    Hybrid(name="Nemotron-3-Super-120B-A12B", pattern=SUPER_120B, ranks=8, tensor=2,
           flags=_sizes(4096, 2688, 32, 2, (128, 64, 128)) | _experts(512, 22, 5376)),
)  # fmt: skip


def main() -> None:
    """Print the table, and write it to `-o`."""
    given = make_parser(__doc__).parse_args()
    header = ("model", "layers", "ranks", "even split, s", "plan, s", "ratio", "gap", "stages")
    table = Table(preface=["## Hybrid models", ""], header=header, output=given.output)
    for model in MODELS[: 1 if given.quick else None]:
        run = read_megatron(ReadArguments(values={}, kind="options"), options=model.options(), model=None)
        found = audit(make_audited_problem(run, gpu=find_sheet("h100", memory_gib=4096)), time_limit_s=SECONDS)
        assert found.played is not None
        even, best, bound = found.played.timeline.makespan_ns, found.best_ns, found.lower_bound_ns
        stages = 0 if found.better is None else len(found.better.stages)
        if best is None or bound is None:
            raise ValueError(f"{model.name}: no plan in {SECONDS} s; give more")
        table.add([model.name, str(run.shape.blocks), str(model.ranks), f"{even / 1e9:.3f}", f"{best / 1e9:.3f}",
                   f"{best / even:.3f}", percent(1 - bound / best), str(stages)])  # fmt: skip
    table.close()


if __name__ == "__main__":
    main()
