"""Megatron-LM's pattern of a hybrid model (core 0.19.2), and what Megatron itself checks of it."""

from collections.abc import Iterator, Sequence

from profiles.configurations.run_configuration import with_ends
from profiles.estimates.model_shapes import SUBLAYERS

_UNKNOWN = {"D": "sparse attention", "+": "latent attention"}
"""Letters that Megatron knows and no estimate does."""

_REFUSED_BESIDE = (
    "pipeline_model_parallel_layout", "num_layers_per_virtual_pipeline_stage", "num_virtual_stages_per_pipeline_rank",
    "account_for_embedding_in_pipeline_split", "account_for_loss_in_pipeline_split",
)  # fmt: skip
_REFUSED_BESIDE_PIPES = ("decoder_first_pipeline_num_layers", "decoder_last_pipeline_num_layers")


def read_pattern(text: str) -> list[str]:
    """The letters of every stage, one stage where no | is there; raises ValueError for what no estimate knows."""
    main, separator, _ = text.partition("/")
    if separator:
        raise ValueError(
            f"--hybrid-layer-pattern {text[:60]}: multi-token prediction (behind /) of hybrid models is not read; "
            "leave it out to see the rest"
        )
    for letter in main.replace("|", ""):
        if letter in _UNKNOWN:
            raise ValueError(
                f"--hybrid-layer-pattern: {letter} is {_UNKNOWN[letter]}, whose times are not known; "
                "leave the layer out to see the rest"
            )
        if letter not in SUBLAYERS:
            raise ValueError(f"--hybrid-layer-pattern: has {letter!r}; write {', '.join(SUBLAYERS)} and | only")
    if not main.replace("|", ""):
        raise ValueError("--hybrid-layer-pattern: has no layers; give letters")
    return main.split("|")


def pattern_refusals(stages: Sequence[str], *, ranks: int, given: Sequence[str]) -> Iterator[str]:
    """Why Megatron does not take a pattern, each with a remedy; `given`: names of flags that stand beside it."""
    for name in given:
        if name in _REFUSED_BESIDE or (len(stages) > 1 and name in _REFUSED_BESIDE_PIPES):
            yield f"--{name.replace('_', '-')} beside --hybrid-layer-pattern: its | say where stages begin; drop one"
    if len(stages) > 1 and len(stages) % ranks:
        yield f"the pattern has {len(stages)} stages, no multiple of {ranks} pipeline ranks; use another pattern"


def stages_of(stages: Sequence[str]) -> tuple[str, ...]:
    """The same stages in the letters of a run: t a layer, with the embedding and the head."""
    return with_ends(["t" * len(stage) for stage in stages])


def written_pattern(stages: Sequence[str], pattern: str) -> list[str]:
    """The pattern's letters of a run's stages."""
    letters = iter(pattern)
    return ["".join(next(letters) for _ in range(stage.count("t"))) for stage in stages]
