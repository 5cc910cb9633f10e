"""What is asked about a configuration: its program, its text, and what overrules it."""

from dataclasses import dataclass, field
from typing import Annotated, Literal

from profiles.configurations.known_models import MODELS, SHEETS
from profiles.documents.schema_rules import Stated
from profiles.estimates.networks import SPEEDS_GB_PER_S
from profiles.estimates.operations import Dtype
from profiles.field_rules import MAX_NAME_LENGTH

MOST_COUNT, MOST_GIB = 10**7, 10**4
"""Of devices, samples, tokens and degrees; of a GPU's memory."""

_Count = Annotated[int, Stated(minimum=1, maximum=MOST_COUNT)]


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditQuestion:
    """The question as the command line states it."""

    program: Literal["megatron", "torchtitan", "deepspeed"]
    """Program whose configuration it is."""
    file: Annotated[str, Stated(maxLength=MAX_NAME_LENGTH)] | None = None
    """What it is started with; of a file in Python `FILE.py:FUNCTION`."""
    text: str | None = None
    """What the file holds, where it is not on this machine."""
    model: Annotated[str | None, Stated({"enum": [*MODELS, None]})] = None
    gpu: Annotated[str | None, Stated({"enum": [*(name.removesuffix("_sxm") for name in SHEETS), None]})] = None
    gpu_memory: Annotated[float, Stated(minimum=1, maximum=MOST_GIB)] | None = None
    network_gb_per_s: Annotated[float, Stated(minimum=SPEEDS_GB_PER_S[0], maximum=SPEEDS_GB_PER_S[1])] | None = None
    """Nominal, of a GPU to other nodes."""
    devices: _Count | None = None
    seq_length: _Count | None = None
    micro_batch_size: _Count | None = None
    global_batch_size: _Count | None = None
    dtype: Dtype | None = None
    variables: list[str] | None = field(default=None)
    """`NAME=VALUE` of the script's environment."""
    tp: _Count | None = None
    pp: _Count | None = None
    vpp: _Count | None = None
    cp: _Count | None = None
    ep: _Count | None = None
    layout: str | None = None
    recompute_granularity: str | None = None
    recompute_method: str | None = None
    recompute_num_layers: _Count | None = None
    use_distributed_optimizer: bool = False
    partition_method: str | None = None

    @property
    def path(self) -> str:
        """The file without a function's name."""
        return (self.file or "").partition(".py:")[0] + (".py" if self.function else "")

    @property
    def function(self) -> str | None:
        """The one in the file that makes the configuration."""
        return (self.file or "").partition(".py:")[2] or None
