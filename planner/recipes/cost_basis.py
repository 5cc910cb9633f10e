"""What a layout rests on: how long the parts of a model take beside each other."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from pathlib import Path
from typing import Any, Literal, get_args

import numpy

from profiles.configurations.known_models import DEFAULT_SEQUENCE, MODELS, PREDICTING, find_model
from profiles.estimates.achieved_rates import known_rates
from profiles.estimates.model_shapes import ModelShape
from profiles.estimates.operation_counts import CountedOperations
from profiles.estimates.operations import Dtype, Rates
from profiles.field_rules import require_integer

ModelConfig = Mapping[str, Any] | str | Path
"""A `config.json` in Hugging Face's form, its path, or the short name of a model that `pipeplan audit` knows."""

MtpLoss = Literal["m", "L"]
MTP_LOSSES: tuple[MtpLoss, ...] = ("m", "L")
"""Stages in which multi-token prediction may have its logits and its loss."""

_PREDICTING_FIELDS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules")
_MAX_PREDICTING = 8
_WHOLE = (("tensor", 1, 4096), ("experts", 1, 4096), ("micro_batch", 1, 10**6), ("sequence", 1, 10**8),
          ("predicting", 0, _MAX_PREDICTING))  # fmt: skip
"""Fields that are whole numbers, the least and the most."""
_NUMBER: Any = Real


@dataclass(frozen=True, slots=True, kw_only=True)
class CostBasis:
    """What costs are made of; as it stands, of multiplications."""

    gpu: str | None = None
    """Times by the achieved rates of this type, of `known_rates()`; None: multiplications."""
    tensor: int = 1
    """Devices that share every layer."""
    experts: int | None = None
    """Devices that share the experts of a layer; None: those that share the layer."""
    dtype: Dtype = "bf16"
    """Of products."""
    micro_batch: int = 1
    """Samples of a microbatch."""
    sequence: int | None = None
    """Tokens of a sample."""
    predicting: int | None = None
    """Layers of multi-token prediction; None: as many as the configuration says."""
    mtp_loss: MtpLoss | None = None
    """Where logits and loss of multi-token prediction are computed: in its own stage, as published cost tables have
    it, or in the stage of the loss, as Megatron core 0.16 to 0.19 does. None: the layout is chosen, and its time and
    gap are, for the worse of both."""
    transfer: float = 0.01
    """From a stage to the next, as a part of a forward pass of a mean block."""
    times: Mapping[str, float | Sequence[float]] | None = None
    """Measured times of forward and backward together, in any unit, by letter: `E`, `t` (one, or one per block), `m`
    (all of it) and `L`. They overrule everything but `transfer`."""

    def __post_init__(self) -> None:
        for name, least, most in _WHOLE:
            number = getattr(self, name)
            number = int(number) if isinstance(number, numpy.integer) else number
            if number is not None:
                require_integer(name, number, least=least, most=most)
            object.__setattr__(self, name, number)
        for name, known in (("dtype", get_args(Dtype)), ("mtp_loss", (None, *MTP_LOSSES))):
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"{name} = {str(value)[:60]!r} is not known; give one of {', '.join(map(str, known))}")
        if not isinstance(self.transfer, _NUMBER) or type(self.transfer) is bool or not 0 <= self.transfer <= 1:
            raise ValueError(f"transfer = {self.transfer}; give a part of a block's forward pass from 0 to 1")
        if self.gpu is not None and self.gpu_name not in known_rates():
            names = ", ".join(known_rates())
            raise ValueError(f"gpu = {str(self.gpu)[:60]!r}: its rates are not known; give one of {names}")

    @property
    def gpu_name(self) -> str:
        """As the rates name it."""
        name = str(self.gpu or "").lower().replace("-", "_")
        return name if name in known_rates() else f"{name}_sxm"

    @property
    def rates(self) -> Rates:
        """What puts a time on operations."""
        return CountedOperations() if self.gpu is None else known_rates()[self.gpu_name]


COUNTED = CostBasis()
"""Multiplications."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeModel:
    """A model as a configuration states it."""

    shape: ModelShape
    sequence: int
    """Tokens of a sample."""
    predicting: int
    """Layers of multi-token prediction."""


def read_model(config: ModelConfig, *, basis: CostBasis) -> RecipeModel:
    """The model, and what the basis says of it; raises ValueError with the field that is missing or not known."""
    fields, shape, sequence = _read_shape(config)
    if shape.mixture is not None and shape.mixture.experts % (basis.experts or 1):
        raise ValueError(f"experts = {basis.experts}: {shape.name} has {shape.mixture.experts}; give a divisor")
    stated = next((fields[name] for name in _PREDICTING_FIELDS if fields.get(name) is not None), None)
    if stated is not None and (type(stated) is not int or not 0 <= stated <= _MAX_PREDICTING):
        raise ValueError(f"{shape.name}: layers of multi-token prediction = {str(stated)[:60]}; state 0 to 8")
    if stated and fields.get("use_mtp") is False:
        stated = 0
    if stated and (blocks := fields.get("mtp_transformer_layers")) not in (None, 1):
        raise ValueError(f"{shape.name}: mtp_transformer_layers = {str(blocks)[:60]}; only 1 is read, state predicting")
    return RecipeModel(
        shape=shape,
        sequence=basis.sequence or sequence or DEFAULT_SEQUENCE,
        predicting=next(each for each in (basis.predicting, stated, PREDICTING.get(shape.name), 0) if each is not None),
    )


def _read_shape(config: ModelConfig) -> tuple[Mapping[str, Any], ModelShape, int | None]:
    """The configuration's fields, the shape, and the tokens of a sample where a name says them."""
    if isinstance(config, Mapping):
        fields: Mapping[str, Any] = dict(config)
    elif (text := str(config)).lower() in MODELS:
        return {}, *find_model(text)
    else:
        fields = _read_fields(text)
    return fields, *find_model(_as_json(fields))


def _read_fields(path: str) -> Mapping[str, Any]:
    try:
        fields = json.loads(path if path.startswith("{") else Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        find_model(path)
        raise ValueError(f"{path[:80]}: is no config.json; give a model's") from None
    return fields if isinstance(fields, dict) else {}


def _as_json(fields: Mapping[str, Any]) -> str:
    try:
        return json.dumps(fields)
    except (TypeError, ValueError) as reason:
        raise ValueError(f"config: {reason}; give the fields of a config.json") from None
