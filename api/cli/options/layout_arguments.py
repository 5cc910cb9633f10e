"""What `pipeplan layout` accepts, with its help texts."""

from typing import Annotated, Literal, get_args

from api.cli.options.declare import argument, count, option
from planner.option_values import LayoutTarget

_MODEL, _PIPELINE = "Model", "Pipeline"


LayoutModel = Annotated[str, argument("MODEL", "A known model (llama3-70b, deepseek-v3 ...) or its config.json.")]
LayoutTargets = Annotated[
    LayoutTarget, option("--target NAME", f"One of {', '.join(get_args(LayoutTarget))}.", panel=_PIPELINE)
]
LayoutRanks = Annotated[int, count("--pp", "Pipeline-parallel degree.", panel=_PIPELINE)]
LayoutChunks = Annotated[
    int | None, count("--vpp", "Stages per rank (virtual pipeline); decided if not given.", panel=_PIPELINE)
]
LayoutMicrobatches = Annotated[
    int | None, count("--microbatches", "Of an iteration and pipeline; eight per rank if not given.", panel=_PIPELINE)
]
LayoutGpu = Annotated[
    str | None,
    option(
        "--gpu NAME",
        "Costs by the achieved rates of a GPU (h100, b200 ...); by multiplications if not given.",
        panel=_MODEL,
    ),
]
LayoutTensor = Annotated[int, count("--tp", "Tensor-parallel degree, for --gpu.", panel=_MODEL)]
LayoutSequence = Annotated[int | None, count("--seq-length", "Tokens of a sample.", panel=_MODEL)]
LayoutPredicting = Annotated[
    int | None,
    option(
        "--mtp-num-layers N",
        "Layers of multi-token prediction, where it is not the model's number.",
        panel=_MODEL,
        min=0,
        max=8,
    ),
]
MtpLosses = Annotated[
    Literal["m", "L"] | None,
    option(
        "--mtp-loss LETTER",
        "The stage that computes logits and loss of multi-token prediction: L in Megatron core to 0.19, m in published "
        "cost tables. Not given: the layout is chosen for the worse of both.",
        panel=_MODEL,
    ),
]
