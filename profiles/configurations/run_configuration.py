"""What a training program was told, whatever program it is: model, degrees, batch, stages, recomputation."""

import math
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Literal

from profiles.estimates.model_shapes import ModelShape
from profiles.estimates.operations import Dtype

_DEGREE = re.compile(
    r"(?:tensor|pipe|context|model)\w*(?:parallel(?:ism)?|degree|stages?)$|degree$|(?<!data_)parallel_size$|"
    r"(?:^|[_.])[tpcme]p_?(?:size|degree)$"
)
"""Names by which programs call devices that share something."""
_CUT = re.compile(r"split_points|stage_splits|parallelism\.pipeline_")
"""Names by which programs say where a pipeline is cut."""

_OWN = re.compile(
    r"(?:tensor|pipeline)_model_parallel_size|num_layers|model\.flavor|training\.local_batch_size|"
    r"pipeline|zero_optimization|train_micro_batch_size_per_gpu"
)
"""Names that few but the programs read here have, and that no option stands for alone."""

FORMS = "Megatron-LM, torchtitan or DeepSpeed, or none and state its --model, --devices, --tp and --pp"
"""What is read, and what serves where a program's files are not."""

Order = Literal["1F1B", "GPipe", "ZBVZeroBubble", "table"]
"""What ranks run: 1F1B (interleaved where they hold several stages); GPipe; ZB-V; what a table states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recomputation:
    """What is recomputed in backward passes, fully."""

    blocks: int | None = None
    """The first so many blocks of every stage; None: all."""


@dataclass(slots=True, kw_only=True)
class ReadingNotes:
    """What a reader did with the parts that it was given."""

    assumed: list[str] = field(default_factory=list)
    """Values that nobody stated, each with the one that was taken."""
    unknown: list[str] = field(default_factory=list)
    """Flags that are not known."""
    not_counted: list[str] = field(default_factory=list)
    """Flags that change times or bytes, which the estimate does not follow."""
    left_out: list[str] = field(default_factory=list)
    """Parts of a script under conditions that are not met."""
    refusals: list[str] = field(default_factory=list)
    """Why the program itself does not start, each with a remedy."""

    def note_unknown(
        self, name: str, value: object, *, known: Collection[str] = (), said: str = "", is_forks: bool = False
    ) -> None:
        """Keep a field that is not known; raises ValueError where it is a degree of 2 or more, or cuts a pipeline.

        So it does for a slip in one of the names that are `known`; a fork may have shorter ones of its own.
        """
        said = said or f"{name} = {str(value)[:60]}"
        self.require_no_slip(name, known=known, said=said, is_forks=is_forks)
        if _DEGREE.search(name) and re.fullmatch(r"[2-9]|[1-9]\d+", str(value)):
            raise ValueError(f"{said[:80]}: is a degree that is not known; put --tp, --pp and so on in its place")
        if _CUT.search(name):
            raise ValueError(f"{said[:80]}: is not known, and says where stages begin; leave it out to see the rest")
        self.unknown.append(said[:120])

    @staticmethod
    def require_no_slip(name: str, *, known: Collection[str], said: str, is_forks: bool = False) -> None:
        """Raise ValueError for a name that is nearly one of those known, or, but in forks, most of its words."""
        longer = () if is_forks else known
        parts = [each for each in longer if f"_{name}_" in f"_{each}_" and len(name) > 0.7 * len(each)]
        if near := get_close_matches(name, known, n=1, cutoff=0.9) or parts:
            whole = f"--{near[0].replace('_', '-')}" if said.startswith("--") else near[0]
            raise ValueError(f"{said[:80]}: is not known; write {whole}, or leave it out")

    def require_own(self, program: str, *, stated: int, names: Iterable[str], since: int = 0) -> None:
        """Refuse another program's file: forks and other releases never had a fourth of unknown names.

        Raises ValueError with the first of those noted `since`, if two or more, and over a third of those stated; over
        half where one of the file's `names` is the program's own: short files say little beside what a team adds.
        """
        found = [each.partition(" ")[0][:60] for each in self.unknown[since:]]
        if len(found) > max(1, stated / (2 if any(map(_OWN.fullmatch, names)) else 3)):
            raise ValueError(
                f"{', '.join(found[:3])}: {len(found)} of {stated} names are not {program}'s; give a file of {FORMS}"
            )

    def note_optimizer(self, name: str) -> None:
        """Say it where an optimizer keeps other states than Adam's, which estimates count."""
        if name and "adam" not in name.lower():
            self.assumed.append(f"states of Adam, though the optimizer is {name[:40]}")

    def assume_devices(self, within: int, *, group: int, experts: int | None, copies: int = 1) -> int:
        """The least pipelines of so many devices, where nobody states them; a `group` of a pipeline's shares a layer.

        In each copy of the weights as many devices hold the same layers as share their experts.
        """
        least = (experts or 1) // math.gcd(experts or 1, group) * copies
        how_many = "one pipeline" if least == 1 else f"{least} pipelines"
        self.assumed.append(f"devices = {within * least} ({how_many})")
        return least

    def require_shared(self, *, devices: int, experts: int | None) -> None:
        """Refuse devices of the same layers that cannot share the experts evenly."""
        if experts is not None and devices % experts:
            self.refusals.append(
                f"{devices} devices that hold the same layers are not a multiple of the {experts} that "
                "share their experts; use more devices (--devices), or a smaller expert degree"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfiguration:
    """A run of a decoder on equal devices, in pipelines that are all alike."""

    program: str
    """Who runs it: `megatron`, `torchtitan`, `deepspeed`."""
    shape: ModelShape
    predicting: int = 0
    """Layers of multi-token prediction."""
    tensor: int = 1
    """Devices that share every layer."""
    context: int = 1
    """Devices that share every sequence."""
    experts: int | None = None
    """Devices that share the experts of a layer; None: those that share the layer."""
    expert_tensor: int = 1
    """Parts that each expert is cut into; the shape has such parts as experts."""
    pipeline: int = 1
    """Ranks of a pipeline."""
    data: int = 1
    """Pipelines."""
    chunks: int = 1
    """Stages per rank."""
    stages: tuple[str, ...]
    """What each stage holds, in order: E the embedding, t a block, m multi-token prediction, L head and loss.
    Empty where the program refuses."""
    order: Order = "1F1B"
    """Schedule of the ranks."""
    rows: tuple[tuple[str, ...], ...] = ()
    """Of a table: the actions of every rank, as `2F0`."""
    in_v: bool = False
    """Whether ranks hold a stage on the way down and one on the way back; otherwise stages go round in a loop."""
    micro_batch: int
    """Samples of a microbatch."""
    global_batch: int
    """Samples of an iteration."""
    sequence: int
    """Tokens of a sample."""
    dtype: Dtype = "bf16"
    """Of products."""
    recompute: Recomputation | None = None
    """None: no activation is recomputed."""
    shards: Literal["nothing", "optimizer", "gradients", "weights"] = "nothing"
    """What replicas divide among themselves, and all before it."""
    copies: int = 1
    """Groups of replicas, each of which divides it anew."""
    overlaps_data: bool = False
    """Whether exchanges among replicas run beside backward passes."""
    hides_exchanges: bool = False
    """Whether exchanges within a group run beside products."""
    hides_tokens: bool = False
    """Whether tokens travel to experts and back while another microbatch computes."""
    sends_once: bool = False
    """Whether a token goes to a node once, however many of its experts are there."""
    sequence_parallel: bool = True
    """Whether devices of a group each do a part of the tokens between products."""
    fused_experts: bool = False
    """Whether experts' biases and clamps are parts of their products' kernels."""
    fused_attention: bool = True
    """Whether attention is one kernel that keeps no scores."""
    is_one_graph: bool = False
    """Whether an iteration is one CUDA graph, of which the host launches nothing by itself."""
    gradient_bytes: int = 4
    """Of a gradient on its way between replicas."""
    cut_by: tuple[str, ...] = ()
    """Flags that say where stages are cut, beside a layout."""
    notes: ReadingNotes
    """What the reader assumed, ignored or could not read."""

    @property
    def sum_bytes(self) -> int:
        """Of a gradient that a device adds up over microbatches; Megatron reduces the buckets that hold it."""
        return self.gradient_bytes if self.program == "megatron" else 4

    @property
    def devices(self) -> int:
        """Of all pipelines."""
        return self.tensor * self.context * self.pipeline * self.data

    @property
    def whole_shape(self) -> ModelShape:
        """The shape with experts that are not cut."""
        mixture, parts = self.shape.mixture, self.expert_tensor
        if mixture is None or parts == 1:
            return self.shape
        whole = replace(
            mixture, experts=mixture.experts // parts, chosen=mixture.chosen // parts, inner=mixture.inner * parts
        )
        return replace(self.shape, mixture=whole)

    @property
    def num_microbatches(self) -> int:
        """Of one pipeline, in an iteration."""
        return self.global_batch // (self.micro_batch * self.data)


def whole_number(name: str, value: object, *, least: int) -> int:
    """The value; raises ValueError for what is no whole number from `least` on, with other words for one in quotes."""
    if isinstance(value, str) and re.fullmatch(r"-?\d+", value.strip()):
        raise ValueError(f"{name} = {value[:60]!r}: is text; write the number without quotes")
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 10**9:
        raise ValueError(f"{name} = {str(value)[:60]}: is not a whole number from {least} on; give one")
    return value


def even_stages(blocks: int, stages: int, *, counts: Sequence[bool] = (False, False)) -> tuple[str, ...]:
    """Equally many blocks per stage; `counts`: whether embedding and loss count as one each.

    Raises ValueError where they do not divide.
    """
    blocks += sum(counts)
    if blocks % stages:
        more = " and what counts as one" if any(counts) else ""
        raise ValueError(f"{blocks} blocks{more} do not divide by {stages} stages")
    sizes = [blocks // stages] * stages
    sizes[0] -= counts[0]
    sizes[-1] -= counts[1]
    return with_ends(["t" * size for size in sizes])


def with_ends(stages: Sequence[str]) -> tuple[str, ...]:
    """The embedding before the first stage's blocks, the head behind the last one's."""
    named = list(stages)
    named[0] = "E" + named[0]
    named[-1] += "L"
    return tuple(named)
