"""`layout()` beside layouts written by hand: `python -m benchmarks.recipes -o FILE`.

Layouts are made from the models' configurations alone, by counting multiplications, and played with the times of
`benchmarks/hand_layouts`. Seconds are of a processor, without imports. Last column: blocks of the problem, each +-2 %,
and transfers of 1 % of a block.
"""

import random
import time
from collections.abc import Mapping
from statistics import median
from typing import Any

from benchmarks.layouts import BAR, DEEPSEEK, KIMI, LLAMA, QWEN, RECIPES, Recipe, hand_plan, read_problem
from benchmarks.recipe_models import KIMI_K2, QWEN3_NEXT
from benchmarks.report import Table, make_parser, ms, percent
from planner.problem import Problem
from planner.recipes import CostBasis, PipelineLayout, layout
from planner.simulation.simulate import simulate

CONFIGS: Mapping[str, Any] = {LLAMA: LLAMA, DEEPSEEK: DEEPSEEK, KIMI: KIMI_K2, QWEN: QWEN3_NEXT}
PREDICTING = {QWEN: 1}
"""Layers of multi-token prediction, where the configuration does not say them."""

TARGET_GAP, TARGET_S = 0.03, 2.0

HEADER = ("problem", "ranks", "layout by hand", "ms", "`layout()`", "ms", "ratio", "gap", "s", "gap, times +-2 %")


def made_layout(recipe: Recipe) -> PipelineLayout:
    """By the configuration alone."""
    basis = CostBasis(predicting=PREDICTING.get(recipe.problem))
    return layout(CONFIGS[recipe.problem], recipe.ranks, basis=basis)


def varied_layout(recipe: Recipe, problem: Problem, *, spread: float) -> PipelineLayout:
    """By the problem's times, those of blocks changed by up to a part of them, with transfers of 1 %."""
    rng, times = random.Random(1), dict[str, Any]()
    known = {layer.name: sum((layer.costs[0].forward_ns, layer.costs[0].input_grad_ns, layer.costs[0].weight_grad_ns))
             for layer in problem.profile.layers}  # fmt: skip
    times["t"] = [known[name] * (1 + rng.uniform(-spread, spread)) for name in known if name.startswith("layers.")]
    letters = {"E": "embedding", "m": "mtp", "L": "head"}
    times |= {letter: known[name] for letter, name in letters.items() if name in known}
    basis = CostBasis(times=times, predicting=int("m" in times))
    return layout(CONFIGS[recipe.problem], recipe.ranks, microbatches=problem.num_microbatches, basis=basis)


def main() -> None:
    """Print the table, and write it to `-o`."""
    given = make_parser(__doc__).parse_args()
    table = Table.about("# Layouts by a function", __doc__, header=HEADER, output=given.output)
    made: dict[tuple[str, int, int | None], tuple[PipelineLayout, float, PipelineLayout]] = {}
    ratios = []
    for recipe in RECIPES:
        problem = read_problem(recipe.problem, ranks=recipe.ranks, microbatches=recipe.microbatches)
        if recipe.key not in made:
            begin = time.process_time()
            found = made_layout(recipe)
            made[recipe.key] = found, time.process_time() - begin, varied_layout(recipe, problem, spread=0.02)
        found, seconds, varied = made[recipe.key]
        assert isinstance(found.value, str)
        by_hand, ours = (
            simulate(problem, hand_plan(problem, each)).makespan_ns for each in (recipe.layout, found.value)
        )
        ratios.append(ours / by_hand)
        shown = [f"`{each.replace('|', BAR)}`" for each in (recipe.layout, found.value)]
        table.add([recipe.problem, str(recipe.ranks), shown[0], ms(by_hand), shown[1], ms(ours), f"{ratios[-1]:.4f}",
                   percent(found.gap), f"{seconds:.2f}", percent(varied.gap)])  # fmt: skip
    gaps, spent, varied_gaps = ([*each] for each in zip(*((a.gap, s, b.gap) for a, s, b in made.values()), strict=True))
    table.close(
        f"Never above the hand layout: {'met' if max(ratios) <= 1 else 'missed'}; median ratio {median(ratios):.4f}. "
        f"Gap at most 3 %: {sum(gap <= TARGET_GAP for gap in gaps)} of {len(gaps)}; with times +-2 % and transfers "
        f"{sum(gap <= TARGET_GAP for gap in varied_gaps)}. At most {max(spent):.2f} s.",
    )


if __name__ == "__main__":
    main()
