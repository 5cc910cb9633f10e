"""Iterations that others measured, as the audit predicts them without running anything.

`python -m benchmarks.measured_iterations -o out/benchmarks/measured_iterations.md` takes measured tables of GPUs where
the extra `tables` is there. The files in `benchmarks/measured/` have their sources and licences beside them. Rows of
one group share one factor: the median of measured over predicted. What the audit refuses is counted.
"""

import statistics
from collections.abc import Sequence

from benchmarks.audits import Variant, predicted_s, read_variants, with_factor
from benchmarks.report import Table, line, make_parser

RULE = "|" + " --- |" * 6
DEGREES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size", "world_size")


def label_of(variant: Variant) -> str:
    """Its degrees, behind the model where rows of a group have several."""
    flags = variant.flags
    tensor, pipeline, context, devices = (int(str(flags.get(name, 1))) for name in DEGREES)
    chunks = flags.get("num_virtual_stages_per_pipeline_rank") or 1
    degrees = f"t {tensor}, d {devices // (tensor * pipeline * context)}, p {pipeline} x {chunks}, c {context}"
    model = f"{variant.model}, " if variant.model else ""
    return f"{model}{degrees}, b {flags['micro_batch_size']}"


def grouped(variants: Sequence[Variant]) -> dict[str, list[tuple[Variant, float]]]:
    """Variants with predicted seconds, by what shares a factor; without those that the audit refuses."""
    groups: dict[str, list[tuple[Variant, float]]] = {}
    for each in variants:
        seconds = predicted_s(each)
        if seconds is not None:
            groups.setdefault(each.shares_factor, []).append((each, seconds))
    return groups


def main() -> None:
    """What is said of every group, then every row."""
    parser = make_parser(__doc__)
    given = parser.parse_args()
    variants = list(read_variants())[: 3 if given.quick else None]
    table = Table.about(
        "# Iterations that others measured, predicted",
        __doc__,
        header=("group", "rows", "factor", "median error", "worst", "chosen", "behind the best measured"),
        output=given.output,
    )
    rows: list[str] = []
    for group, predictions in grouped(variants).items():
        ratios = [variant.measured_s / seconds for variant, seconds in predictions]
        table.add((group, str(len(ratios)), *with_factor(ratios)[1], *choice_of(predictions)))
        factor = statistics.median(ratios)
        for variant, seconds in predictions:
            cells = (f"{each:.3f}" for each in (variant.measured_s, seconds, factor * seconds))
            error = f"{100 * (factor * seconds / variant.measured_s - 1):+.1f} %"
            rows.append(line((group, label_of(variant), *cells, error)))
    header = ("group", "row", "measured s", "predicted s", "with the factor", "error")
    legend = "t, d, p, c: degrees; p x stages per device; b: samples per microbatch."
    table.close(f"Refused: {len(variants) - len(rows)}. {legend}", "", line(header), RULE, *rows)


def choice_of(predictions: Sequence[tuple[Variant, float]]) -> tuple[str, str]:
    """The row predicted fastest and its time beside the best measured, where rows of a group answer one question."""
    if predictions[0][0].precision:
        return "", ""
    chosen, _ = min(predictions, key=lambda each: each[1])
    best = min(variant.measured_s for variant, _ in predictions)
    return label_of(chosen), f"{100 * (chosen.measured_s / best - 1):.1f} %"


if __name__ == "__main__":
    main()
