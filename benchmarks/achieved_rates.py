"""How far the achieved rates that come along are from the measured tables of aiconfigurator-core.

`python -m benchmarks.achieved_rates -o out/benchmarks/achieved_rates.md` needs the extra `tables`; with `--fit` it
first fits `profiles/estimates/achieved_rates.json` anew: the least sum of absolute relative errors, to the operations
of the models of `pipeplan import aiconfigurator` at degrees 1 to 8 and one to four sequences of 2,048 to
8,192. The table says how far the sums of whole blocks are apart, F, I and W each, also for two models to which nothing
was fitted: Qwen3-32B and Mixtral 8x22B. GPT-OSS's experts have no rows in bf16 and fp8: what is compared there is one
rule with another. `--operators FILE`, SimuMax's `configs/system/b200_bf16_ceperm.json`, prints how much longer its
products take than by tables and by lines.
"""

import itertools
import json
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

import numpy
from numpy.typing import NDArray

from benchmarks.report import Table, make_parser
from profiles.estimates.achieved_rates import FILE, AchievedRates, RateLine, features, known_rates
from profiles.estimates.composed_profile import CompositionQuestion, compose
from profiles.estimates.operations import Dtype, Product, Rates
from profiles.importers.aiconfigurator.rates import MeasuredRates
from profiles.importers.aiconfigurator.tables import TablePackage, find_package
from profiles.importers.aiconfigurator.workloads import find_shape
from profiles.model_profile import ModelProfile

MULTIPROCESSORS = {"a100_sxm": 108, "h100_sxm": 132, "h200_sxm": 132, "b200_sxm": 148, "gb200": 152}
"""By the makers' data sheets."""
FITTED = (
    "llama3-8b",
    "llama3-70b",
    "llama3-405b",
    "qwen3-8b",
    "qwen3-30b-a3b",
    "deepseek-v3",
    "mixtral-8x7b",
    "gpt-oss-120b",
)
HELD_OUT = ("qwen3-32b", "mixtral-8x22b")
DTYPES: dict[str, tuple[Dtype, ...]] = {"a100_sxm": ("bf16",)}
ALL_DTYPES: tuple[Dtype, ...] = ("bf16", "fp8")
Floats = NDArray[numpy.float64]
ROUNDS, LEAST_ERROR = 20, 0.01
LONG_NS = 1e6
"""Shorter products are over before a clock falls."""
SIZES = ((2048, (1, 4)), (4096, (1, 2)), (8192, (1,)))


def questions(package: TablePackage, rates: Rates, models: Sequence[str]) -> Iterator[CompositionQuestion]:
    """Every model at all its degrees, types of numbers and lengths of sequences."""
    for model, dtype, (sequence, sizes) in itertools.product(models, DTYPES.get(rates.name, ALL_DTYPES), SIZES):
        shape = find_shape(package, model)
        yield CompositionQuestion(
            shape=shape, rates=[rates], sequence=sequence, sizes=sizes, degrees=shape.degrees(), dtype=dtype
        )


def fit(package: TablePackage, gpu: str) -> AchievedRates:
    """The lines that come closest to what the tables say."""
    rates = MeasuredRates(package=package, gpu=gpu)
    figures = [figure for asked in questions(package, rates, FITTED) for figure in compose(asked)[1]]
    by_line: dict[str, list[tuple[float, float, float]]] = {}
    for figure in figures:
        if figure.step.because:
            continue
        key, operations, num_bytes = features(figure.step.operation, multiprocessors=MULTIPROCESSORS[gpu])
        alone = rates.price(figure.step.operation).ns  # the figure's own is as in training
        by_line.setdefault(key, []).append((operations, num_bytes, alone))
    lines = {key: _line(sorted(set(rows))) for key, rows in sorted(by_line.items())}
    return AchievedRates(
        name=gpu, multiprocessors=MULTIPROCESSORS[gpu], lines=lines, fitted_to="", network=rates.network
    )


def _line(rows: Sequence[tuple[float, float, float]]) -> RateLine:
    table = numpy.array(rows)
    columns = numpy.stack([numpy.ones(len(table)), table[:, 0] / 1e9, table[:, 1] / 1e6], axis=1) / table[:, 2:]
    weights = numpy.ones(len(table))
    for _ in range(ROUNDS):  # towards the least sum of absolute errors
        found = _least_squares(columns * weights[:, None], weights)
        weights = 1 / numpy.sqrt(numpy.maximum(numpy.abs(columns @ found - 1), LEAST_ERROR))
    start, per_gigaop, per_megabyte = (float(f"{value:.6g}") for value in found)
    return RateLine(start_ns=start, ns_per_gigaop=per_gigaop, ns_per_megabyte=per_megabyte)


def _least_squares(columns: Floats, wanted: Floats) -> Floats:
    """The non-negative solution with the least sum of squares: the best over all sets of columns."""
    best, least = numpy.zeros(columns.shape[1]), float("inf")
    for chosen in itertools.product((False, True), repeat=columns.shape[1]):
        if not any(chosen):
            continue
        found = numpy.zeros(columns.shape[1])
        found[list(chosen)] = numpy.linalg.lstsq(columns[:, list(chosen)], wanted, rcond=None)[0]
        rest = float(numpy.sum((columns @ found - wanted) ** 2))
        if (found >= 0).all() and rest < least:
            best, least = found, rest
    return best


def write(package: TablePackage) -> None:
    """The file of rates, anew."""
    gpus = {}
    for gpu in MULTIPROCESSORS:
        rates = fit(package, gpu)
        lines = {key: [line.start_ns, line.ns_per_gigaop, line.ns_per_megabyte] for key, line in rates.lines.items()}
        network = asdict(rates.network) if rates.network else None
        gpus[gpu] = {"multiprocessors": rates.multiprocessors, "network": network, "lines": lines}
    document = {
        "fitted_to": f"the tables of aiconfigurator-core {package.version} (Apache-2.0)",
        "columns": ["start_ns", "ns_per_gigaop", "ns_per_megabyte"],
        "gpus": gpus,
    }
    FILE.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    known_rates.cache_clear()


def errors(ours: ModelProfile, theirs: ModelProfile) -> Iterator[float]:
    """Of every block's F, I and W at every width and size, one kind of block once."""
    seen = set()
    for own, other in zip(ours.layers[1:-1], theirs.layers[1:-1], strict=True):
        if other.costs in seen:
            continue
        seen.add(other.costs)
        for a, b in zip(own.costs, other.costs, strict=True):
            for field in ("forward_ns", "input_grad_ns", "weight_grad_ns"):
                yield getattr(a, field) / getattr(b, field) - 1


def operator_ratios(file: Path, rates: Rates) -> dict[str, float]:
    """Measured over these rates, medians by layout (TN is F, NN is I, NT is W) of products of 1 ms and more."""
    matmul = json.loads(file.read_text(encoding="utf-8"))["accelerator"]["op"]["matmul"]
    ratios: dict[str, list[float]] = {}
    for key, efficiency in matmul["accurate_efficient_factor"].items():
        sizes = dict(each.split("=") for each in key.split(", "))
        product = Product(rows=int(sizes["m"]), columns=int(sizes["n"]), inner=int(sizes["k"]))
        measured_ns = product.operations / (efficiency * matmul["tflops"] * 1e3)
        if sizes["b"] == "1" and measured_ns >= LONG_NS:
            ratios.setdefault(sizes["layout"], []).append(measured_ns / rates.price(product).ns)
    return {layout: statistics.median(found) for layout, found in ratios.items()}


def main() -> None:
    """Fit if asked, then a row for every device type, model and type of numbers."""
    parser = make_parser(__doc__)
    parser.add_argument("--fit", action="store_true", help="fit profiles/estimates/achieved_rates.json anew first")
    parser.add_argument("--operators", type=Path, help="print how much longer these products take, and stop")
    given = parser.parse_args()
    package = find_package()
    if given.operators:
        for rates in (MeasuredRates(package=package, gpu="b200_sxm"), known_rates()["b200_sxm"]):
            print(rates.origin, operator_ratios(given.operators, rates))
        return
    if given.fit:
        write(package)
    table = Table.about(
        "# Achieved rates against measured tables",
        __doc__,
        header=("device type", "model", "numbers", "layers", "median error", "worst", "bias"),
        output=given.output,
    )
    remarks = []
    for gpu in list(MULTIPROCESSORS)[: 1 if given.quick else None]:
        every: list[float] = []
        measured = MeasuredRates(package=package, gpu=gpu)
        for model in (*FITTED, *HELD_OUT)[: 1 if given.quick else None]:
            for dtype in DTYPES.get(gpu, ALL_DTYPES):
                own = [each for each in questions(package, measured, (model,)) if each.dtype == dtype]
                found = [
                    error
                    for asked in own
                    for error in errors(compose(_with(asked, known_rates()[gpu]))[0], compose(asked)[0])
                ]
                every += found
                table.add(
                    (
                        gpu,
                        f"{model}{', not fitted' if model in HELD_OUT else ''}",
                        dtype,
                        str(len(found)),
                        *_shown(found),
                    )
                )
        remarks.append(
            f"* {gpu}: {len(every)} times, " + "{} on the median, {} at worst, bias {}".format(*_shown(every))
        )
    table.close(*remarks)


def _with(asked: CompositionQuestion, rates: Rates) -> CompositionQuestion:
    return replace(asked, rates=[rates])


def _shown(found: Sequence[float]) -> tuple[str, str, str]:
    sizes = [abs(error) for error in found]
    return (
        f"{100 * statistics.median(sizes):.1f} %",
        f"{100 * max(sizes):.0f} %",
        f"{100 * statistics.median(found):+.1f} %",
    )


if __name__ == "__main__":
    main()
