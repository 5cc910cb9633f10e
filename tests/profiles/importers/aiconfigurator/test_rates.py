"""The tables' times, row by row and between rows; every expected number follows by hand from `table_package`."""

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from profiles.estimates.composed_profile import CompositionQuestion, compose
from profiles.estimates.networks import RING_SHARE
from profiles.estimates.operations import CausalAttention, Exchange, ExpertProducts, Movement, Product
from profiles.importers.aiconfigurator.rates import MeasuredRates
from profiles.importers.aiconfigurator.tables import NoTablesError, TablePackage, read_columns
from profiles.importers.aiconfigurator.workloads import find_shape, make_cluster

pytest.importorskip("pyarrow")

from tests.profiles.table_package import attention_ms, make_package, product_ms, write_table


@pytest.fixture
def package(tmp_path: Path) -> TablePackage:
    return make_package(tmp_path)


@pytest.fixture
def rates(package: TablePackage) -> MeasuredRates:
    return MeasuredRates(package=package, gpu="toy_sxm")


def attention(**given: int) -> CausalAttention:
    return CausalAttention(
        **({"samples": 1, "sequence": 256, "heads": 8, "key_value_heads": 2, "head_width": 64} | given)
    )


def experts(**given: object) -> ExpertProducts:
    own = {"tokens": 4096, "hidden": 512, "inner": 256, "chosen": 2, "experts": 8, "groups": 1}
    return ExpertProducts(**(own | given))  # type: ignore[arg-type]


def test_device_types_by_name(package: TablePackage):
    """Tests that a type is found in any case and without its form, and others are answered with those there are."""
    assert package.gpus == ("toy_sxm",)
    assert package.find_gpu("TOY") == package.find_gpu("toy-sxm") == "toy_sxm"
    with pytest.raises(NoTablesError, match=r'no measured tables of "empty_sxm"; give one of toy_sxm'):
        package.find_gpu("empty_sxm")


def test_a_row_is_a_row(rates: MeasuredRates):
    """Tests that a product that was measured takes what its row says, of the newest version, and says so."""
    found = rates.price(Product(rows=256, columns=1024, inner=64))
    assert found.ns == pytest.approx(product_ms(256, 1024, 64) * 1e6)
    assert (found.source, found.rows, found.table) == ("row", 1, "gemm/trtllm/1.0.0rc10")


def test_between_rows(rates: MeasuredRates):
    """Tests that logarithms are linear between rows, which is exact for times in proportion to operations."""
    found = rates.price(Product(rows=100, columns=700, inner=300))
    assert found.ns == pytest.approx(product_ms(100, 700, 300) * 1e6)
    assert (found.source, found.rows) == ("interpolated", 8)
    assert found.error == pytest.approx(0, abs=1e-9)


def test_beyond_the_rows(rates: MeasuredRates):
    """Tests that what lies beyond is in proportion to the edge, and smaller shapes take what the edge takes."""
    found = rates.price(Product(rows=8192, columns=8192, inner=1024))
    assert found.ns == pytest.approx(product_ms(8192, 8192, 1024) * 1e6)
    assert found.source == "assumed"
    assert "in proportion" in found.table
    small = rates.price(Product(rows=8, columns=64, inner=256))
    assert small.ns == pytest.approx(product_ms(64, 64, 256) * 1e6)
    assert small.source == "assumed"


def test_a_hole_is_filled_from_the_nearest_row(rates: MeasuredRates):
    """Tests that a shape whose neighbour was not measured is taken from the nearest row in proportion."""
    found = rates.price(Product(rows=64, columns=64, inner=4000))
    assert found.ns == pytest.approx(product_ms(64, 64, 4000) * 1e6)
    assert found.source == "assumed"
    assert "nearest row" in found.table


def test_unmeasured_numbers_are_refused(rates: MeasuredRates):
    """Tests that a type of numbers without rows is refused with those that have some."""
    with pytest.raises(NoTablesError, match="matrix products in fp8 were not measured; give one of bf16"):
        rates.price(Product(rows=64, columns=64, inner=64, dtype="fp8"))


def write_narrow(package: TablePackage, *, casts: bool) -> None:
    """Rows of both kinds of fp8 whose casts take 1 ns per value, and, if wanted, measured casts of 3 and 2 ns."""
    data = package.folder / "data" / "toy_sxm"
    shapes = list(itertools.product((64, 4096), repeat=3))
    rows = [
        {"gemm_dtype": dtype, "m": m, "n": n, "k": k, "latency": product_ms(m, n, k) + 5 * m * k / 1e6}
        for dtype in ("fp8", "fp8_block")
        for m, n, k in shapes
    ]
    write_table(data / "gemm/trtllm/1.0.0/gemm_perf.parquet", rows)
    for name, ns in (("computescale", 3), ("scale_matrix", 2)) if casts else ():
        steps = [{"quant_dtype": "fp8", "m": m, "k": k, "latency": ns * m * k / 1e6} for m, _, k in shapes]
        write_table(data / f"quantize/trtllm/1.0.0/{name}_perf.parquet", steps)


def test_casts_are_no_part_of_narrow_products(package: TablePackage):
    """Tests that measured casts are taken off the rows of fp8, and a reading and a writing off others and without."""
    write_narrow(package, casts=False)
    wanted, alone = Product(rows=4096, columns=64, inner=64, dtype="fp8"), product_ms(4096, 64, 64) * 1e6
    row_ns, once_ns = alone + 5 * 4096 * 64, 3 * 4096 * 64 / 800
    found = MeasuredRates(package=package, gpu="toy_sxm").price(wanted)
    assert found.ns == pytest.approx(row_ns - once_ns)
    write_narrow(package, casts=True)
    rates = MeasuredRates(package=package, gpu="toy_sxm")
    measured, blocks = rates.price(wanted), rates.price(replace(wanted, dtype="fp8_block"))
    assert measured.ns == pytest.approx(alone)
    assert measured.table.endswith("less its casts as measured")
    assert blocks.ns == pytest.approx(row_ns - once_ns)
    assert blocks.table.endswith("less its casts at 800 GB/s")


def test_products_without_casts_keep_to_the_peak(package: TablePackage):
    """Tests that no product is left faster than the sheet's peak, however long its casts took alone."""
    write_narrow(package, casts=True)
    data = package.folder / "data" / "toy_sxm"
    steps = [{"quant_dtype": "fp8", "m": m, "k": 64, "latency": 99.0} for m in (64, 4096)]
    write_table(data / "quantize/trtllm/1.0.0/computescale_perf.parquet", steps)
    wanted = Product(rows=64, columns=64, inner=64, dtype="fp8")
    found = MeasuredRates(package=package, gpu="toy_sxm").price(wanted)
    assert found.ns == pytest.approx(1e9 * wanted.operations / 2e11)


def test_attention(rates: MeasuredRates):
    """Tests that plain attention is apart from grouped, and that what was not measured is nearest, or in proportion."""
    assert rates.price(attention()).ns == pytest.approx(attention_ms(1, 256, 8, 64) * 1e6)
    assert rates.price(attention()).source == "row"
    assert rates.price(attention(key_value_heads=8)).source == "row"
    other = rates.price(attention(key_value_heads=4))
    assert (other.source, other.table) == ("assumed", "attention/vllm/1.0.0, as with 2 key-value heads")
    long = rates.price(attention(sequence=8192))
    assert long.ns == pytest.approx(attention_ms(1, 8192, 8, 64) * 1e6)


def test_windows(rates: MeasuredRates):
    """Tests that a window has its own rows, and without any takes its share of all scores."""
    assert rates.price(attention(window=128)).ns == pytest.approx(attention_ms(1, 256, 8, 64) * 1e6 / 4)
    share = rates.price(attention(window=64))
    assert share.ns == pytest.approx(attention_ms(1, 256, 8, 64) * 1e6 / 2)
    assert share.source == "assumed"


def test_latent_attention_without_rows(rates: MeasuredRates):
    """Tests that latent attention that was not measured is plain attention with heads of the mean width."""
    found = rates.price(attention(is_latent=True, head_width=160))
    assert found.ns == pytest.approx(attention_ms(1, 256, 8, 160) * 1e6)
    assert found.source == "assumed"


def test_experts(rates: MeasuredRates):
    """Tests that experts take what a row says, another type's where theirs has none, never more than one by one."""
    assert rates.price(experts(tokens=4096)).ns == pytest.approx(1e6)
    assert rates.price(experts(tokens=2048)).source == "interpolated"
    rows = 4096 * 2 // 8
    moved = 6 * rows * 1024 / 0.8e12 * 1e9 + 1000
    products = (product_ms(rows, 2048, 512) + product_ms(rows, 512, 1024)) * 1e6
    alone = rates.price(experts(inner=1024))
    assert alone.ns == pytest.approx(8 * (products + moved))
    assert alone.source == "assumed"


def test_movements_and_exchanges(rates: MeasuredRates):
    """Tests that movements follow the sheet, exchanges the rows, and those beyond a node its network cards."""
    assert rates.price(Movement(num_bytes=8 * 10**6)).ns == pytest.approx(11_000)
    found = rates.price(Exchange(kind="all_gather", num_bytes=2 * 1_048_576, devices=4))
    assert (found.ns, found.source) == (pytest.approx(1_048_576), "row")
    wide = rates.price(Exchange(kind="reduce_scatter", num_bytes=16 * 10**6, devices=16))
    assert wide.ns == pytest.approx(15 * 10**6 / (RING_SHARE * 400e9) * 1e9)
    with pytest.raises(NoTablesError, match="all_reduce was not measured"):
        rates.price(Exchange(kind="all_reduce", num_bytes=1024, devices=2))


def test_cards_of_known_systems(package: TablePackage):
    """Tests that a system's own card counts where the package's sheet names a faster one, between nodes or racks."""
    sheet = (package.folder / "toy_sxm.yaml").read_text(encoding="utf-8").replace("50000000000,", "100000000000,")
    (package.folder / "b200_sxm.yaml").write_text(sheet, encoding="utf-8")
    (package.folder / "gb200.yaml").write_text(sheet.replace("p2p", "inter_rack_bw: 1, p2p"), encoding="utf-8")
    assert package.sheet("b200_sxm")["node"]["inter_node_bw"] == 50 * 10**9
    assert package.sheet("gb200")["node"]["inter_rack_bw"] == 50 * 10**9
    assert package.sheet("gb200")["node"]["inter_node_bw"] == 100 * 10**9


def test_models_and_clusters(package: TablePackage, tmp_path: Path):
    """Tests that models are found by name and path, others answered with a list, and that hosts become a cluster."""
    shape = find_shape(package, "toy/llama")
    own = tmp_path / "config.json"
    own.write_text((package.folder.parent / "model_configs/toy--llama_config.json").read_text())
    assert find_shape(package, str(own)).hidden == shape.hidden == 512
    with pytest.raises(NoTablesError, match=r'no model "toy"; give one of llama3-8b'):
        find_shape(package, "toy")
    cluster = make_cluster(package, [("toy_sxm", 2)])
    assert len(cluster.devices) == 16
    inside = cluster.route("toy_sxm-0", "toy_sxm-7", num_bytes=400_000)
    outside = cluster.route("toy_sxm-0", "toy_sxm-8", num_bytes=400_000)
    assert (inside.duration_ns(400_000), outside.duration_ns(400_000)) == (11_000, 18_000)


def test_every_figure_says_where_it_is_from(package: TablePackage, rates: MeasuredRates):
    """Tests that a profile put together states each operation of each layer, width and size with its source."""
    shape = find_shape(package, "toy/llama")
    question = CompositionQuestion(shape=shape, rates=[rates], sequence=256, sizes=(1, 2), degrees=(1, 2))
    profile, figures = compose(question)
    assert [layer.name for layer in profile.layers] == ["embedding", "block.0", "block.1", "head"]
    assert len(profile.measurements) == len(figures)
    assert {each.what for each in profile.measurements} == {"table row", "interpolated", "assumed"}
    subject = "block F (toy_sxm, width 1, 1 samples): up, 256 x 2048 x 512 bf16"
    assert next(each for each in profile.measurements if each.subject == subject).source == "gemm/trtllm/1.0.0rc10"
    assert "aiconfigurator-core 0.1 (Apache-2.0) for toy_sxm" in profile.provenance
    assert [(cost.width, cost.microbatch_size) for cost in profile.layers[1].costs] == [
        (1, None),
        (1, 2),
        (2, None),
        (2, 2),
    ]


def test_broken_packages(package: TablePackage, tmp_path: Path):
    """Tests that files that are no tables or sheets are refused in a sentence."""
    broken = tmp_path / "broken.parquet"
    broken.write_bytes(b"no table")
    with pytest.raises(NoTablesError, match=r"broken.parquet: cannot be read"):
        read_columns(broken)
    (package.folder / "toy_sxm.yaml").write_text("- a list", encoding="utf-8")
    with pytest.raises(NoTablesError, match="states no gpu and node"):
        package.sheet("toy_sxm")
