"""The traces of a job's ranks, one document for each, on one clock: torch's profiler's, Chakra's or our executor's."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from profiles.importers.own_trace import read_own_trace
from profiles.importers.profiler_events import OWN, PROFILER, RankTrace, read_profiled_rank
from profiles.importers.rank_clocks import ClockRules, ClockWindow, Entry, find_windows, on_one_clock
from profiles.importers.rank_messages import Transfer, pair_messages
from profiles.importers.unmarked_actions import UnmarkedRank, find_stages
from profiles.importers.unmarked_chunks import follow, has_chunks

_NOT_MARKED = ", actions not marked"


@dataclass(kw_only=True)
class RankTraces:
    """Traces of a job, one per rank."""

    files: Sequence[Path]
    """One path per rank, or one for all of them."""
    form: str
    """Tool that wrote the traces."""
    ranks: Mapping[str, RankTrace]
    """By device."""
    pairs: frozenset[tuple[str, str]] | None
    """Devices that follow each other in a pipeline; None: not told."""
    windows: Sequence[Mapping[str, ClockWindow]]
    """Per iteration what is added to clocks."""
    clocks: dict[str, ClockWindow]
    """Of devices whose clock was set: by how much."""
    is_rebuilt: bool = False
    """Whether ranks tell durations and order alone: neither when iterations began and ended nor what messages took."""

    def __post_init__(self) -> None:
        stages = set[int]().union(*self.stages.values())
        count = next(iter(self.ranks.values())).of_run.get("num_stages", max(stages, default=-1) + 1)
        if gone := sorted(set(range(count)) - stages):
            raise ValueError(
                f"{self.files[0]}: no rank ran stage {gone[0]} of {count}; give the traces of all ranks of a pipeline"
            )

    @property
    def num_iterations(self) -> int:
        """As many as every rank has; the first one warms up."""
        return len(self.windows)

    def iteration(self, number: int) -> dict[str, list[Entry]]:
        """Its actions by device, on one clock."""
        return on_one_clock({device: rank.rows[number] for device, rank in self.ranks.items()}, self.windows[number])

    def gaps(self, number: int, device: str) -> list[int]:
        """Of an iteration's actions how long each was not taken up after the one before; 0 where it is not told."""
        rank = self.ranks[device]
        row, taken_up = rank.rows[number], rank.taken_up[number] if number < len(rank.taken_up) else ()
        if len(taken_up) != len(row):
            return [0] * len(row)
        ends = [taken_up[0], *(entry[1] for entry in row)]
        return [max(0, min(up, entry[0]) - end) for up, entry, end in zip(taken_up, row, ends, strict=False)]

    @property
    def world_size(self) -> int | None:
        """Ranks of the job, as every document says it; None: not told."""
        return next(iter(self.ranks.values())).world_size

    @cached_property
    def stages(self) -> dict[str, frozenset[int]]:
        """Those that each device ran in the first iteration."""
        return {device: frozenset(entry[3] for entry in rank.rows[0]) for device, rank in self.ranks.items()}

    def transfers(self) -> Iterator[Transfer]:
        """Messages of which both ends are known, without the first iteration's."""
        known = {rank.rank: (device, rank.messages) for device, rank in self.ranks.items() if rank.rank is not None}
        if self.is_rebuilt or not any(messages for _, messages in known.values()):
            return iter(())
        busy: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for number in range(self.num_iterations):
            for device, row in self.iteration(number).items():
                busy[device] += [entry[:2] for entry in row]
        return pair_messages(
            known,
            offsets={device: window.offset_ns for device, window in self.clocks.items()},
            busy={device: sorted(spans) for device, spans in busy.items()},
            num_iterations=self.num_iterations,
        )


def read_ranks(files: Sequence[Path]) -> RankTraces:
    """One document per rank.

    Raises ValueError with one message where one is broken, given twice, or of another run or form than the first.
    """
    ranks: dict[str, RankTrace] = {}
    for file in files:
        rank = _read_rank(file)
        if (device := rank.device) in ranks:
            raise ValueError(f"{file}: {device!r} was given before; give every rank's trace once")
        if ranks and rank.form != (form := next(iter(ranks.values())).form):
            raise ValueError(f"{file}: is {rank.form}, {files[0]} is {form}; give the traces of one run in one form")
        if ranks and rank.world_size != (size := next(iter(ranks.values())).world_size):
            raise ValueError(f"{file}: is of {rank.world_size} ranks, {files[0]} of {size}; give the traces of one run")
        if ranks and rank.of_run != next(iter(ranks.values())).of_run:
            raise ValueError(f"{file}: is of another run than {files[0]}; give the traces of one run")
        ranks[device] = rank
    pairs = _find_rows(ranks)
    counts = {device: len(rank.rows) for device, rank in ranks.items()}
    if len(set(counts.values())) != 1:
        few, many = min(counts, key=lambda name: counts[name]), max(counts, key=lambda name: counts[name])
        raise ValueError(
            f"{files[0]}: {few!r} has {counts[few]} iterations and {many!r} {counts[many]}; give whole traces"
        )
    form = next(iter(ranks.values())).form
    if any(rank.is_rebuilt for rank in ranks.values()):
        still = dict.fromkeys(ranks, ClockWindow(0, 0, 0))
        windows = [still] * min(counts.values())
        return RankTraces(files=files, form=form, ranks=ranks, pairs=pairs, windows=windows, clocks={}, is_rebuilt=True)
    rules = ClockRules(source=str(files[0]), starts_with_input=form == OWN or form.endswith(_NOT_MARKED), pairs=pairs)
    windows, clocks = find_windows(_iterations(ranks), rules=rules)
    return RankTraces(files=files, form=form, ranks=ranks, pairs=pairs, windows=windows, clocks=clocks)


def _iterations(ranks: Mapping[str, RankTrace]) -> Iterator[dict[str, Sequence[Entry]]]:
    """Every iteration's rows by device, each made when it is its turn."""
    for rows in zip(*(rank.rows for rank in ranks.values()), strict=True):
        yield dict(zip(ranks, rows, strict=True))


def _find_rows(ranks: Mapping[str, RankTrace]) -> frozenset[tuple[str, str]] | None:
    """Fill in the rows of ranks whose stages only the messages of all tell; devices that follow each other, if told."""
    unmarked = {rank.rank: rank.unmarked for rank in ranks.values() if rank.unmarked and rank.rank is not None}
    if not unmarked:
        return None
    if has_chunks(unmarked):
        return _follow(ranks, unmarked)
    stages = find_stages(unmarked)
    for rank in ranks.values():
        if rank.unmarked is not None and rank.rank is not None:
            rank.rows = [
                [(each.start_ns, each.end_ns, each.kind, stages[rank.rank], each.microbatch) for each in row]
                for row in rank.unmarked.iterations
            ]
    names = {rank.rank: device for device, rank in ranks.items()}
    behind = {(number, peer) for number, told in unmarked.items() for peer in told.behind}
    if any(stages.get(peer) != stages[number] + 1 for number, peer in behind):
        return None
    return frozenset((names[number], names[peer]) for number, peer in behind)


def _follow(ranks: Mapping[str, RankTrace], unmarked: Mapping[int, UnmarkedRank]) -> frozenset[tuple[str, str]]:
    """The same where devices have several stages, which only microbatches tell that are followed through all ranks."""
    found = follow(unmarked)
    for rank in ranks.values():
        if rank.unmarked is not None and rank.rank is not None:
            rank.rows = [
                [
                    (each.start_ns, each.end_ns, each.kind, stage, microbatch)
                    for each, (stage, microbatch) in zip(row, one.actions[rank.rank], strict=True)
                ]
                for row, one in zip(rank.unmarked.iterations, found, strict=True)
            ]
    names = {rank.rank: device for device, rank in ranks.items()}
    return frozenset((names[a], names[b]) for one in found for a, b in one.pairs)


def _read_rank(path: Path) -> RankTrace:
    """The document of one rank, with its device; its stage is not known where nothing is marked."""
    name = path.name.removesuffix(".gz").removesuffix(".json").removesuffix(".et")
    if (own := read_own_trace(path)) is not None:
        own.device = own.device or name
        return own
    rank = read_profiled_rank(path)
    rank.device = name if rank.rank is None else f"rank{rank.rank}"
    if rank.unmarked is None:
        _require_whole_iterations(rank)
        return rank
    if rank.rank is None:
        raise ValueError(
            f"{path}: is Chakra's, whose traces state no rank; name the file by it, e.g. linked_0.json"
            if rank.form != PROFILER
            else f"{path}: has no distributedInfo.rank; export the trace after init_process_group"
        )
    rank.form += _NOT_MARKED
    return rank


def _require_whole_iterations(rank: RankTrace) -> None:
    """ValueError where not all actions ran as often."""
    ran = Counter(entry[2:] for row in rank.rows for entry in row)
    if ran and min(ran.values()) != len(rank.rows):
        kind, stage, number = rare = min(ran, key=lambda key: ran[key])
        told = f"{stage}{kind}{number} ran {ran[rare]} times, others {len(rank.rows)}"
        raise ValueError(f"{rank.source}: {told}; give a trace of whole iterations")
