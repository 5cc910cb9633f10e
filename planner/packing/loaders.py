"""Packs for the loaders of trainers: torch's DataLoader, Megatron-LM's scheduler, verl's micro-batches, NeMo-RL's bins.

Every rank is given the lengths of the whole step and makes the same packs, so nothing is sent.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from planner.packing.pack_sequences import PackedSequences, SequenceTimes, pack, whole_lengths, whole_number


@dataclass(frozen=True, slots=True, kw_only=True)
class Packer:
    """What packs depend on beside the sequences."""

    cap: int
    """Tokens of a pack, at most: of as many packs as there are stages memory holds all. With context parallelism those
    of all its ranks together."""
    stages: tuple[SequenceTimes, ...]
    """What each takes (`planner.packing.pack_times`)."""
    transfer_ns: int = 0
    """Between two stages."""
    multiple: int = 1
    """Packs of a pipeline are a multiple; with several stages per device Megatron-LM wants that of its groups."""

    def pack(self, lengths: Sequence[int], pipelines: int, *, number: int | None = None) -> PackedSequences:
        """Packs of a step, `number` of them per pipeline if it is given; raises ValueError as `pack` does."""
        return pack(
            lengths,
            pipelines,
            cap=self.cap,
            stages=self.stages,
            transfer_ns=self.transfer_ns,
            multiple=self.multiple,
            number=number,
        )

    def megatron_groups(
        self, samples: Sequence[tuple[int, int]], *, dp_size: int, cp_size: int = 1
    ) -> list[list[list[int]]]:
        """What Megatron-LM's packing schedulers answer from `get_groups_and_subsamples`.

        `samples`: an id and a length each. By microbatch, then by rank of data times context parallelism, the ids of
        its pack; ranks of one context-parallel group have the same.
        """
        num_copies, pairs = whole_number("cp_size", cp_size), [_pair(each) for each in samples]
        packing = self.pack([length for _, length in pairs], dp_size)
        steps = zip(*(packing.of_pipeline(rank) for rank in range(dp_size)), strict=True)
        return [[[pairs[place][0] for place in each] for each in packs for _ in range(num_copies)] for packs in steps]

    def verl_micro_batches(self, lengths: Sequence[int], *, number: int | None = None) -> list[list[int]]:
        """What verl's `rearrange_micro_batches` finds for the samples of one rank: the places of each micro-batch.

        `number`: of all ranks the largest `len` of what this answers without it, so that all have equally many.
        """
        return [list(each) for each in self.pack(lengths, 1, number=number).of_pipeline(0)]

    def nemo_bins(self, lengths: Sequence[int], *, shards: int) -> list[list[int]]:
        """What a `SequencePacker` of NeMo-RL answers from `pack`: bin k is run by shard k modulo `shards`."""
        packing = self.pack(lengths, shards)
        steps = zip(*(packing.of_pipeline(shard) for shard in range(shards)), strict=True)
        return [list(each) for packs in steps for each in packs]


def _pair(sample: Sequence[int]) -> tuple[int, int]:
    try:
        name, length = (sample[place] for place in range(len(sample)))
    except (LookupError, TypeError, ValueError):
        raise ValueError(f"samples: {str(sample)[:60]} is not an id and a length; give two values each") from None
    return name, length


class PackedBatches:
    """A `batch_sampler` for torch's DataLoader: each batch is one pack of this pipeline.

    All ranks of a pipeline make the same one, in whatever process; `epoch` shuffles anew.
    """

    def __init__(
        self, lengths: Sequence[int], *, per_step: int, pipelines: int, rank: int, packer: Packer, seed: int = 0
    ) -> None:
        """`lengths`: of the whole data set; `rank`: of the pipeline; raises ValueError for what is out of range."""
        self.lengths, self.per_step = whole_lengths(lengths, cap=packer.cap), whole_number("per_step", per_step)
        pipelines, rank = whole_number("pipelines", pipelines), whole_number("rank", rank, least=0)
        if rank >= pipelines:
            raise ValueError(f"rank = {rank}: give a pipeline from 0 to {pipelines - 1}")
        least, most = pipelines * packer.multiple, len(self.lengths)
        if not least <= self.per_step <= most:
            raise ValueError(
                f"per_step = {per_step}: give {least} to {most:,} sequences per step, one per pack or more"
            )
        self.pipelines, self.rank = pipelines, rank
        self.packer, self.seed, self.epoch = packer, seed, 0

    def steps(self) -> Iterator[tuple[list[int], PackedSequences]]:
        """Per step its sequences, and their packs; sequences that do not fill a step are left out."""
        order = list(range(len(self.lengths)))
        random.Random(f"{self.seed} {self.epoch}").shuffle(order)
        for begin in range(0, len(order) - self.per_step + 1, self.per_step):
            chosen = order[begin : begin + self.per_step]
            yield chosen, self.packer.pack([self.lengths[place] for place in chosen], self.pipelines)

    def __iter__(self) -> Iterator[list[int]]:
        for chosen, packing in self.steps():
            for each in packing.of_pipeline(self.rank):
                yield [chosen[place] for place in each]
