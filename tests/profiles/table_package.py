"""A small package of tables in the form of aiconfigurator-core, with times that follow from shapes by hand."""

import itertools
from collections.abc import Iterable, Mapping
from pathlib import Path

import pyarrow
from pyarrow import parquet

from profiles.importers.aiconfigurator.tables import PACKAGE, TablePackage

CONFIG = """{"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 512, "num_attention_heads": 8,
"num_key_value_heads": 2, "intermediate_size": 1024, "vocab_size": 1024, "head_dim": 64}"""

SHEET = """
gpu: {mem_bw: 1000000000000, mem_bw_empirical_scaling_factor: 0.8, mem_empirical_constant_latency: 0.000001,
      mem_capacity: 85899345920, fp8_tc_flops: 200000000000}
node: {num_gpus_per_node: 8, inter_node_bw: 50000000000, intra_node_bw: 400000000000, p2p_latency: 0.00001}
"""

SIZES = (64, 256, 1024, 4096)


def product_ms(rows: int, columns: int, inner: int) -> float:
    """10^11 operations a second."""
    return 2 * rows * columns * inner / 1e11 * 1e3


def attention_ms(samples: int, sequence: int, heads: int, width: int) -> float:
    """10^11 operations a second."""
    return 2 * samples * sequence**2 * heads * width / 1e11 * 1e3


def write_table(path: Path, rows: Iterable[Mapping[str, object]]) -> None:
    """One parquet file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    parquet.write_table(pyarrow.Table.from_pylist(list(rows)), path)


def make_package(folder: Path) -> TablePackage:
    """`toy_sxm` with products, attention, experts and collectives; `empty_sxm` with a sheet alone."""
    systems = folder / PACKAGE / "systems"
    data = systems / "data" / "toy_sxm"
    systems.mkdir(parents=True)
    for name in ("toy_sxm", "empty_sxm"):
        (systems / f"{name}.yaml").write_text(SHEET, encoding="utf-8")
    shapes = list(itertools.product(SIZES, SIZES, SIZES))
    write_table(
        data / "gemm/trtllm/1.0.0rc9/gemm_perf.parquet",
        [{"gemm_dtype": "bfloat16", "m": 64, "n": 64, "k": 64, "latency": 99.0}],
    )
    write_table(
        data / "gemm/trtllm/1.0.0rc10/gemm_perf.parquet",
        [
            {"gemm_dtype": "bfloat16", "m": m, "n": n, "k": k, "latency": product_ms(m, n, k)}
            for m, n, k in shapes
            if (m, n, k) != (64, 64, 4096)
        ],
    )
    write_table(data / "attention/vllm/1.0.0/context_attention_perf.parquet", _attention())
    write_table(data / "moe/trtllm/1.0.0/moe_perf.parquet", _experts())
    write_table(
        data / "comm/nccl/2.0/nccl_perf.parquet",
        [
            {"nccl_dtype": "half", "op_name": kind, "num_gpus": count, "message_size": size, "latency": size / 1e6}
            for kind in ("all_gather", "reduce_scatter", "alltoall")
            for count in (2, 4)
            for size in (1024, 1_048_576)
        ],
    )
    configs = folder / PACKAGE / "model_configs"
    configs.mkdir()
    (configs / "toy--llama_config.json").write_text(CONFIG, encoding="utf-8")
    return TablePackage(folder=systems, version="0.1")


def _attention() -> Iterable[Mapping[str, object]]:
    for heads, sequence, samples, (own, window) in itertools.product(
        (1, 8), (256, 4096), (1, 4), ((2, 0), (0, 0), (2, 128))
    ):
        yield {
            "attn_dtype": "bfloat16",
            "kv_cache_dtype": "bfloat16",
            "batch_size": samples,
            "isl": sequence,
            "num_heads": heads,
            "num_key_value_heads": own or heads,
            "head_dim": 64,
            "window_size": window,
            "latency": attention_ms(samples, sequence, heads, 64) / (4 if window else 1),
        }


def _experts() -> Iterable[Mapping[str, object]]:
    for dtype, tokens in itertools.product(("bfloat16", "fp8_block"), (1024, 4096)):
        yield {
            "moe_dtype": dtype,
            "distribution": "balanced",
            "hidden_size": 512,
            "inter_size": 256,
            "topk": 2,
            "num_experts": 8,
            "moe_tp_size": 1,
            "moe_ep_size": 1,
            "num_tokens": tokens,
            "latency": tokens / 4096,
        }


def install(folder: Path) -> None:
    """Make the folder's package look installed to whoever has the folder on its path."""
    (folder / PACKAGE / "__init__.py").write_text("", encoding="utf-8")
    described = folder / "aiconfigurator_core-0.1.dist-info"
    described.mkdir()
    text = "Metadata-Version: 2.1\nName: aiconfigurator-core\nVersion: 0.1\n"
    (described / "METADATA").write_text(text, encoding="utf-8")
