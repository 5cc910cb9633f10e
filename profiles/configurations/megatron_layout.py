"""Megatron-LM's layout of a pipeline written out, and what Megatron itself checks of it."""

import itertools
import re
from collections.abc import Iterator, Sequence

MOST_LETTERS = 10**5

KINDS = {"E": "embedding", "t": "block", "m": "multi-token prediction", "L": "loss"}
"""Meaning of the letters of a layout."""


def written_out(layout: str) -> list[str]:
    """The letters of every stage, commas taken away and `x*n` and `(...)*n` repeated; raises ValueError if too long."""
    text = layout.replace(",", "")
    for pattern in (r"\(([^)]+)\)\*(\d+)", r"(.)\*(\d+)"):
        most = sum(len(body) * int(count[:9]) for body, count in re.findall(pattern, text))
        if most > MOST_LETTERS:
            raise ValueError(f"layout {layout[:60]!r}: has {most:,} letters; give at most {MOST_LETTERS:,}")
        text = re.sub(pattern, lambda found: found.group(1) * int(found.group(2)), text)
    return text.split("|")


def shortened(layout: str) -> str:
    """The same layout with `x*n` and `(...|)*n` where letters and stages repeat."""
    *stages, last = [_short_stage(stage) for stage in layout.split("|")]
    runs = [(stage, len(list(same))) for stage, same in itertools.groupby(stages)]
    parts = [f"{stage}|" * count if count < 3 else f"({stage}|)*{count}" for stage, count in runs]
    return "".join([*parts, last])


def _short_stage(stage: str) -> str:
    runs = [(letter, len(list(same))) for letter, same in itertools.groupby(stage)]
    return "".join(letter * count if count < 3 else f"{letter}*{count}" for letter, count in runs)


def layout_refusals(stages: Sequence[str], *, blocks: int, predicting: int, ranks: int) -> Iterator[str]:
    """Why Megatron does not take a layout, each with value and remedy; nothing where it does."""
    whole = "".join(stages)
    if strange := sorted(set(whole) - set(KINDS)):
        yield f"the layout has {strange[0]!r}; it is made of {', '.join(KINDS)} and |"
        return
    if len(stages) % ranks:
        yield f"the layout has {len(stages)} stages, which is not a multiple of {ranks} ranks; use another layout"
    if whole[:1] != "E" or whole.count("E") != 1:
        yield f"the layout begins with {whole[:1]!r} and has {whole.count('E')} E; one E begins it"
    if whole[-1:] != "L" or whole.count("L") != 1:
        yield f"the layout ends with {whole[-1:]!r} and has {whole.count('L')} L; one L ends it"
    if whole.count("t") != blocks:
        yield f"the layout has {whole.count('t')} blocks (t), the model {blocks}; use another layout"
    if whole.count("m") != predicting:
        yield f"the layout has {whole.count('m')} m, and mtp_num_layers is {predicting}; make them equal"
    if "t" in whole.partition("m")[2]:
        yield "the layout has blocks (t) behind multi-token prediction (m); put m behind the last t"
    if len(stages) % ranks == 0:
        yield from _predicting_refusals(stages, ranks=ranks)


def _predicting_refusals(stages: Sequence[str], *, ranks: int) -> Iterator[str]:
    holding = [number for number, stage in enumerate(stages) if "m" in stage]
    if len(holding) > 1:
        yield f"the layout has m in {len(holding)} stages; put all of them in one"
    if any(number < len(stages) - ranks for number in holding):
        yield "the layout has m in a stage that is not the last of its rank; put it in one of the last stages"
