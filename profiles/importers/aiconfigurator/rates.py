"""Times of operations on one device type from the tables of aiconfigurator-core."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy

from profiles.estimates.networks import NodeNetwork
from profiles.estimates.operations import (
    CausalAttention,
    Dtype,
    Exchange,
    ExpertProducts,
    Movement,
    Operation,
    PricedOperation,
    Product,
    assumed,
)
from profiles.importers.aiconfigurator.grids import TimeGrid, make_grid
from profiles.importers.aiconfigurator.tables import Columns, NoTablesError, TablePackage, read_columns

_PRODUCTS_FROM = ("trtllm", "vllm", "sglang")
"""Whose matrix products count, the first that has them: trtllm's were measured on every device type and for every type
of number; the others differ by up to 10 % on large shapes."""

_ATTENTION_FROM = ("vllm", "sglang", "trtllm")
"""Whose attention counts: vLLM's is FlashAttention 2 and 3, which training runs as well."""

DTYPES: dict[Dtype, str] = {"bf16": "bfloat16", "fp8": "fp8", "fp8_block": "fp8_block", "nvfp4": "nvfp4"}
"""Our types of numbers by theirs."""

_SUBSTITUTES: dict[Dtype, Dtype] = {"fp8": "fp8_block"}
"""Where experts were not measured in one type of numbers."""

_CASTS = ("computescale", "scale_matrix")
"""The tables of what one scale for all of an input takes before its product in fp8."""

_CAST_BYTES: dict[Dtype, float] = {"fp8": 3, "fp8_block": 3, "nvfp4": 2.5625}
"""Per value: read in bf16, written with its share of a scale."""

_LATENT_WIDTHS = (192, 128)
"""Width of queries and keys, and of values, in DeepSeek-V3's attention."""


@dataclass(frozen=True, kw_only=True)
class MeasuredRates:
    """The tables of one device type; read when first asked."""

    package: TablePackage
    """Installed package with the measured tables."""
    gpu: str
    """By the package's name."""
    network_bytes_per_s: int | None = None
    """Of one device between nodes, for collectives that leave the node; None: as the package's sheet says."""

    @property
    def name(self) -> str:
        """The device type."""
        return self.gpu

    @property
    def origin(self) -> str:
        """What the times rest on, in a sentence."""
        return f"measured tables of aiconfigurator-core {self.package.version} (Apache-2.0) for {self.gpu}"

    @cached_property
    def _sheet(self) -> dict[str, dict[str, float]]:
        return self.package.sheet(self.gpu)

    @cached_property
    def network(self) -> NodeNetwork:
        """Between nodes, or between racks."""
        node = self._sheet["node"]
        outside = self.network_bytes_per_s or node.get("inter_rack_bw", node["inter_node_bw"])
        return NodeNetwork(node=int(node.get("num_gpus_per_rack", node["num_gpus_per_node"])), bytes_per_s=outside)

    @cached_property
    def _grids(self) -> dict[tuple[object, ...], TimeGrid | None]:
        return {}

    @cached_property
    def _files(self) -> dict[tuple[str, str], Columns]:
        return {}

    @property
    def is_fitted(self) -> bool:
        """Whether times are by lines fitted to tables, not by their rows."""
        return False

    def price(self, operation: Operation) -> PricedOperation:
        """The time of an operation; raises NoTablesError where neither a row nor a rule says."""
        match operation:
            case Product():
                return self._product(operation)
            case CausalAttention():
                return self._attention(operation)
            case ExpertProducts():
                return self._experts(operation)
            case Movement():
                return self._movement(operation)
            case Exchange():
                return self.network.price(operation, inside=self._exchange_inside, name=f"{self.gpu}.yaml")

    def dtypes(self) -> tuple[str, ...]:
        """The types of numbers that matrix products were measured in."""
        return tuple(dtype for dtype in DTYPES if self._product_grid(dtype) is not None)

    def _product(self, wanted: Product) -> PricedOperation:
        grid = self._product_grid(wanted.dtype)
        if grid is None:
            raise NoTablesError(
                f"{self.gpu}: matrix products in {wanted.dtype} were not measured; "
                f"give one of {', '.join(self.dtypes())}"
            )
        found, tokens = grid.read((wanted.rows, wanted.columns, wanted.inner)), wanted.rows
        if found.source == "assumed" and wanted.rows < wanted.columns:  # the transposed product is the same work
            turned = grid.read((wanted.columns, wanted.rows, wanted.inner))
            if turned.source != "assumed":
                found, tokens = turned, wanted.columns
        return found if wanted.dtype == "bf16" else self._without_cast(found, wanted, shape=(tokens, wanted.inner))

    def _without_cast(self, found: PricedOperation, wanted: Product, *, shape: tuple[int, int]) -> PricedOperation:
        """Rows of narrow numbers begin with an input in bf16: what finding its scales and casting it took is taken off.

        Both were measured for one scale per input; with scales of blocks it is read and written once. What is left is
        never faster than the sheet's peak.
        """
        gpu = self._sheet["gpu"]
        peak = gpu.get("fp4_tc_flops" if wanted.dtype == "nvfp4" else "fp8_tc_flops")
        if peak is None:
            return found
        framework = found.table.split("/")[1]
        steps = [self._cast_grid(step, framework) for step in _CASTS] if wanted.dtype == "fp8" else []
        measured = [step.read(shape).ns for step in steps if step is not None]
        if len(measured) == len(_CASTS):
            cast_ns, said = sum(measured), "as measured"
        else:
            rate = gpu["mem_bw"] * gpu.get("mem_bw_empirical_scaling_factor", 0.8)
            cast_ns, said = 1e9 * _CAST_BYTES[wanted.dtype] * math.prod(shape) / rate, f"at {rate / 1e9:.0f} GB/s"
        left_ns = max(found.ns - cast_ns, 1e9 * wanted.operations / peak)
        return replace(found, ns=left_ns, table=f"{found.table}, less its casts {said}")

    def _cast_grid(self, step: str, framework: str) -> TimeGrid | None:
        key = ("quantize", step, framework)
        if key not in self._grids:
            self._grids[key] = self._make_grid(
                "quantize",
                f"{step}_perf.parquet",
                frameworks=(framework,),
                where={"quant_dtype": "fp8"},
                axes=("m", "k"),
                powers=(1, 1),
            )
        return self._grids[key]

    def _product_grid(self, dtype: Dtype) -> TimeGrid | None:
        key = ("gemm", dtype)
        if key not in self._grids:
            self._grids[key] = self._make_grid(
                "gemm",
                "gemm_perf.parquet",
                frameworks=_PRODUCTS_FROM,
                where={"gemm_dtype": DTYPES[dtype]},
                axes=("m", "n", "k"),
                powers=(1, 1, 1),
            )
        return self._grids[key]

    def _make_grid(
        self,
        table: str,
        file: str,
        *,
        frameworks: Sequence[str],
        where: dict[str, object],
        axes: Sequence[str],
        powers: Sequence[float],
    ) -> TimeGrid | None:
        """Of the first file that has such rows; None: there is none."""
        for path in self.package.find(self.gpu, table, file=file, frameworks=frameworks):
            columns = self._columns(table, str(path))
            keep = numpy.ones(len(columns["latency"]), dtype=bool)
            for name, value in where.items():
                if name in columns:
                    keep &= columns[name] == value
            if keep.any():
                rows = {name: columns[name][keep].astype(float) for name in (*axes, "latency")}
                place = "/".join(path.parts[-4:-1])
                return make_grid(rows, axes=axes, powers=powers, table=place)
        return None

    def _columns(self, table: str, path: str) -> Columns:
        key = (table, path)
        if key not in self._files:
            from pathlib import Path

            self._files[key] = read_columns(Path(path))
        return self._files[key]

    def _attention(self, wanted: CausalAttention) -> PricedOperation:
        if wanted.is_latent:
            grid = self._latent_grid()
            if grid is not None:
                return grid.read((wanted.heads, wanted.samples, wanted.sequence))
            width = sum(_LATENT_WIDTHS) // 2
            plain = replace(wanted, is_latent=False, head_width=width, key_value_heads=wanted.heads)
            return self._attention(plain).times(1, because=f"as attention with heads of {width}")
        kinds = self._key_value_heads(wanted.window)
        if not kinds and wanted.window:
            share = min(1.0, 2 * wanted.window / wanted.sequence)
            return self._attention(replace(wanted, window=0)).times(share, because="the window's share of all scores")
        is_plain = wanted.heads == wanted.key_value_heads
        grouped = [kind for kind in kinds if kind]
        kind = 0 if is_plain and 0 in kinds else min(grouped, key=lambda have: abs(have - wanted.key_value_heads))
        grid = self._attention_grid(wanted.window, kind)
        assert grid is not None
        found = grid.read((wanted.head_width, wanted.heads, wanted.samples, wanted.sequence))
        is_exact = kind == (0 if is_plain else wanted.key_value_heads)
        return found if is_exact else found.times(1, because=f"as with {kind or 'as many'} key-value heads")

    def _key_value_heads(self, window: int) -> tuple[int, ...]:
        """The numbers of key-value heads that were measured at a window; 0: as many as heads."""
        columns, _ = self._attention_rows(window)
        return tuple(sorted({int(value) for value in numpy.unique(columns["kind"])}))

    def _attention_rows(self, window: int) -> tuple[Columns, str]:
        """The bf16 rows of the first file that has any at a window, with `kind`: key-value heads, or 0 if all."""
        key = ("attention", str(window))
        for path in self.package.find(
            self.gpu, "attention", file="context_attention_perf.parquet", frameworks=_ATTENTION_FROM
        ):
            columns = self._columns("attention", str(path))
            if window and "window_size" not in columns:
                continue
            keep = (columns["attn_dtype"] == "bfloat16") & (columns["kv_cache_dtype"] == "bfloat16")
            if "window_size" in columns:
                keep &= columns["window_size"] == window
            if keep.any():
                rows = {name: values[keep] for name, values in columns.items()}
                own = rows["num_key_value_heads"]
                rows["kind"] = numpy.where(own == rows["num_heads"], 0, own)
                self._files[key] = rows
                return rows, "/".join(path.parts[-4:-1])
        return {"kind": numpy.zeros(0)}, ""

    def _attention_grid(self, window: int, kind: int) -> TimeGrid | None:
        key = ("attention", window, kind)
        if key not in self._grids:
            columns, place = self._attention_rows(window)
            keep = columns["kind"] == kind
            axes = ("head_dim", "num_heads", "batch_size", "isl")
            rows = {name: columns[name][keep].astype(float) for name in (*axes, "latency")}
            self._grids[key] = make_grid(rows, axes=axes, powers=(1, 1, 1, 1 if window else 2), table=place)
        return self._grids[key]

    def _latent_grid(self) -> TimeGrid | None:
        key = ("mla",)
        if key not in self._grids:
            self._grids[key] = self._make_grid(
                "mla",
                "context_mla_perf.parquet",
                frameworks=_PRODUCTS_FROM,
                where={"mla_dtype": "bfloat16", "kv_cache_dtype": "bfloat16"},
                axes=("num_heads", "batch_size", "isl"),
                powers=(1, 1, 2),
            )
        return self._grids[key]

    def _experts(self, wanted: ExpertProducts) -> PricedOperation:
        """The row, unless its kernel is slower than the experts one after another, which a program is free to do."""
        found = [self._one_by_one(wanted)]
        for dtype in dict.fromkeys((wanted.dtype, _SUBSTITUTES.get(wanted.dtype, wanted.dtype))):
            grid = self._experts_grid(replace(wanted, dtype=dtype))
            if grid is not None:
                row = grid.read((wanted.tokens,))
                found.append(row if dtype == wanted.dtype else row.times(1, because=f"measured in {dtype}"))
                break
        return min(found, key=lambda each: each.ns)

    def _one_by_one(self, wanted: ExpertProducts) -> PricedOperation:
        local = wanted.experts // wanted.groups
        rows = max(1, wanted.tokens * wanted.chosen // wanted.experts)
        inside = self.price(Movement(num_bytes=6 * rows * wanted.inner)).ns
        times = [
            sum(
                self.price(Product(rows=rows, columns=columns, inner=inner, dtype=dtype)).ns
                for columns, inner in ((2 * wanted.inner, wanted.hidden), (wanted.hidden, wanted.inner))
            )
            for dtype in dict.fromkeys((wanted.dtype, "bf16"))
        ]
        rule = f"{local} experts one after another as products of {rows} rows"
        return assumed(local * (min(times) + inside), rule=rule)

    def _experts_grid(self, wanted: ExpertProducts) -> TimeGrid | None:
        key = ("moe", wanted.hidden, wanted.inner, wanted.chosen, wanted.experts, wanted.groups, wanted.dtype)
        if key not in self._grids:
            self._grids[key] = self._make_grid(
                "moe",
                "moe_perf.parquet",
                frameworks=_PRODUCTS_FROM,
                where={
                    "moe_dtype": DTYPES[wanted.dtype],
                    "distribution": "balanced",
                    "hidden_size": wanted.hidden,
                    "inter_size": wanted.inner,
                    "topk": wanted.chosen,
                    "num_experts": wanted.experts,
                    "moe_tp_size": 1,
                    "moe_ep_size": wanted.groups,
                },
                axes=("num_tokens",),
                powers=(1,),
            )
        return self._grids[key]

    def _movement(self, wanted: Movement) -> PricedOperation:
        gpu = self._sheet["gpu"]
        rate = gpu["mem_bw"] * gpu.get("mem_bw_empirical_scaling_factor", 0.8)
        start = gpu.get("mem_empirical_constant_latency", 0.0)
        return assumed(1e9 * (wanted.num_bytes / rate + start), rule=f"{self.gpu}.yaml: {rate / 1e9:.0f} GB/s")

    def _exchange_inside(self, wanted: Exchange) -> PricedOperation:
        grid = self._exchange_grid(wanted.kind)
        if grid is None:
            raise NoTablesError(f"{self.gpu}: {wanted.kind} was not measured")
        return grid.read((wanted.devices, max(1, wanted.num_bytes // 2)))

    def _exchange_grid(self, kind: str) -> TimeGrid | None:
        """By devices and elements of two bytes, which is what the tables call the size of a message."""
        key = ("nccl", kind)
        if key not in self._grids:
            folder = self.package.folder / "data" / self.gpu / "comm"
            versions = sorted(path.name for path in folder.glob("nccl*")) or ["nccl"]
            self._grids[key] = self._make_grid(
                "comm",
                "nccl_perf.parquet",
                frameworks=versions,
                where={"nccl_dtype": "half", "op_name": kind},
                axes=("num_gpus", "message_size"),
                powers=(0, 1),
            )
        return self._grids[key]
