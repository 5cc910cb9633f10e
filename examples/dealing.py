"""Sequences of uneven length, dealt to the pipelines of a data-parallel job before every step.

Every rank of pipeline `rank` makes the same loader; all find the same dealing, so that nothing has to be sent.
`python -m examples.dealing` shows what that gains on made-up lengths; `examples.sft` trains with it.
"""

import random
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from planner.dealing import Dealing, StageTimes, deal

STAGES = (
    StageTimes(
        lengths=(128, 2048, 8192),
        forward_ns=(2_000_000, 30_000_000, 160_000_000),
        backward_ns=(4_000_000, 60_000_000, 320_000_000),
    ),
) * 2
"""What each stage was measured to take; yours come from `pipeplan profile` or a trace."""


class DealtBatches:
    """A `batch_sampler` for torch's DataLoader: each batch is one microbatch (one sequence) of this pipeline."""

    def __init__(
        self,
        lengths: Sequence[int],
        *,
        per_step: int,
        pipelines: int,
        rank: int,
        seed: int = 0,
        stages: Sequence[StageTimes] = STAGES,
    ) -> None:
        self.lengths, self.per_step, self.pipelines, self.rank, self.seed = lengths, per_step, pipelines, rank, seed
        self.stages, self.epoch = stages, 0

    def steps(self) -> Iterator[tuple[list[int], Dealing]]:
        """Per step its sequences and who takes which."""
        order = list(range(len(self.lengths)))
        random.Random(self.seed + self.epoch).shuffle(order)
        for begin in range(0, len(order) - self.per_step + 1, self.per_step):
            chosen = order[begin : begin + self.per_step]
            yield chosen, deal([self.lengths[i] for i in chosen], self.pipelines, stages=self.stages)

    def __iter__(self) -> Iterator[list[int]]:
        for chosen, dealing in self.steps():
            for place in dealing.pipelines[self.rank]:
                yield [chosen[place]]

    def microbatches(self, loader: Iterable[Any]) -> Iterator[dict[int, Any]]:
        """Per step what a loader with this sampler gives, by the numbers that the executor knows microbatches by."""
        given = iter(loader)
        for _, dealing in self.steps():
            yield {place: next(given) for place in dealing.pipelines[self.rank]}


def main() -> None:
    source = random.Random(1)
    lengths = [min(8192, max(128, round(source.lognormvariate(7, 1)))) for _ in range(512)]
    sampler = DealtBatches(lengths, per_step=256, pipelines=32, rank=0)
    # loader = torch.utils.data.DataLoader(dataset, batch_sampler=sampler)
    for chosen, dealing in sampler.steps():
        times = [dealing.largest_ns, dealing.longest_first_ns, dealing.lower_bound_ns]
        sys.stdout.write(
            f"{len(chosen)} sequences: {times[0] / 1e6:.1f} ms, longest first {times[1] / 1e6:.1f}, "
            f"no dealing below {times[2] / 1e6:.1f}\n"
        )


if __name__ == "__main__":
    main()
