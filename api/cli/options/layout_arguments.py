"""What `pipeplan layout` accepts, with its help texts."""

from typing import Annotated, Literal

import typer

_MODEL, _PIPELINE = "Model", "Pipeline"


def _number(name: str, text: str, *, panel: str = _PIPELINE) -> object:
    return typer.Option(name, metavar="N", help=text, rich_help_panel=panel, show_default=False, min=1, max=10**7)


LayoutModel = Annotated[
    str,
    typer.Argument(
        metavar="MODEL", help="A known model (llama3-70b, deepseek-v3 ...) or its config.json.", show_default=False
    ),
]
LayoutTargets = Annotated[
    Literal["megatron", "megatron-hybrid", "torchtitan", "deepspeed"],
    typer.Option(
        "--target", metavar="NAME", help="megatron, megatron-hybrid, torchtitan or deepspeed.",
        rich_help_panel=_PIPELINE,
    ),
]  # fmt: skip
LayoutRanks = Annotated[int, _number("--pp", "Pipeline-parallel degree.")]
LayoutChunks = Annotated[int | None, _number("--vpp", "Stages per rank (virtual pipeline); decided if not given.")]
LayoutMicrobatches = Annotated[
    int | None, _number("--microbatches", "Of an iteration and pipeline; eight per rank if not given.")
]
LayoutGpu = Annotated[
    str | None,
    typer.Option(
        "--gpu",
        metavar="NAME",
        help="Costs by the achieved rates of a GPU (h100, b200 ...); by multiplications if not given.",
        rich_help_panel=_MODEL,
        show_default=False,
    ),
]
LayoutTensor = Annotated[int, _number("--tp", "Tensor-parallel degree, for --gpu.", panel=_MODEL)]
LayoutSequence = Annotated[int | None, _number("--seq-length", "Tokens of a sample.", panel=_MODEL)]
LayoutPredicting = Annotated[
    int | None,
    typer.Option(
        "--mtp-num-layers",
        metavar="N",
        help="Layers of multi-token prediction, where it is not the model's number.",
        rich_help_panel=_MODEL,
        show_default=False,
        min=0,
        max=8,
    ),
]
MtpLosses = Annotated[
    Literal["m", "L"] | None,
    typer.Option(
        "--mtp-loss",
        metavar="LETTER",
        help="The stage that computes logits and loss of multi-token prediction: L in Megatron core to 0.19, m in "
        "published cost tables. Not given: the layout is chosen for the worse of both.",
        rich_help_panel=_MODEL,
        show_default=False,
    ),
]
