"""Clocks of ranks: offsets that contradict nothing, found whatever they were, or a refusal that names the ranks."""

from random import Random

import pytest

from profiles.importers.rank_clocks import SLACK_NS, ClockRules, ClockWindow, Entry, find_windows, on_one_clock

Rows = dict[str, list[Entry]]
MS = 1_000_000


def run(*, num_stages: int, num_microbatches: int = 4) -> Rows:
    """All forwards, then all backwards, one device per stage, on one clock; 10 ms each, 1 ms between stages."""
    rows: Rows = {}
    turn = (num_stages + num_microbatches) * 11
    for stage in range(num_stages):
        begins = [("F", stage + number, number) for number in range(num_microbatches)]
        begins += [("B", turn // 11 + num_stages - 1 - stage + number, number) for number in range(num_microbatches)]
        rows[f"d{stage}"] = [(11 * at * MS, (11 * at + 10) * MS, kind, stage, m) for kind, at, m in begins]
    return rows


def shifted(rows: Rows, offsets: dict[str, int]) -> Rows:
    return {
        device: [(start + offsets.get(device, 0), end + offsets.get(device, 0), *rest) for start, end, *rest in row]  # type: ignore[misc]
        for device, row in rows.items()
    }


def rules(*, starts_with_input: bool = True, pairs: frozenset[tuple[str, str]] | None = None) -> ClockRules:
    return ClockRules(source="t.json", starts_with_input=starts_with_input, pairs=pairs)


def set_clocks(iterations: list[Rows], *, rules: ClockRules) -> tuple[list[Rows], dict[str, ClockWindow]]:
    windows, told = find_windows(iterations, rules=rules)
    return [on_one_clock(rows, each) for rows, each in zip(iterations, windows, strict=True)], told


def require_sound(rows: Rows) -> None:
    """Every input is there before its action starts, but for the slack."""
    made = {(kind, stage, m): end for row in rows.values() for _, end, kind, stage, m in row}
    for row in rows.values():
        for start, _, kind, stage, m in row:
            before = made.get((kind, stage + (-1 if kind == "F" else 1), m))
            assert before is None or start >= before - 2 * SLACK_NS


def test_one_clock_stays_as_it_is():
    """Tests that times that contradict nothing are not touched."""
    rows = run(num_stages=3)
    assert set_clocks([rows, rows], rules=rules()) == ([rows, rows], {})


@pytest.mark.parametrize("seed", range(40))
def test_true_offsets_lie_in_their_windows(seed: int):
    """Tests that for random offsets up to a second what was set is sound, and that the truth lies in every window."""
    rng = Random(seed)
    rows = run(num_stages=rng.randint(2, 6))
    truth = {device: rng.randint(-1000 * MS, 1000 * MS) for device in rows}
    (done, again), clocks = set_clocks([shifted(rows, truth)] * 2, rules=rules(starts_with_input=seed % 2 == 0))
    assert done == again
    if seed % 2 == 0:
        require_sound(done)
    assert clocks
    for device, window in clocks.items():
        assert window.low_ns <= truth["d0"] - truth[device] <= window.high_ns
        assert window.low_ns <= window.offset_ns <= window.high_ns


def test_a_clock_may_be_set_between_iterations():
    """Tests that a clock that jumps between iterations is set in each of them."""
    rows = run(num_stages=2)
    done, clocks = set_clocks([rows, shifted(rows, {"d1": -500 * MS})], rules=rules())
    assert done[0] == rows
    assert clocks["d1"].low_ns <= 500 * MS <= clocks["d1"].high_ns


def test_contradictions_name_the_ranks():
    """Tests that two ranks whose ways contradict each other are named with both figures, and three without."""
    rows = run(num_stages=2)
    late = [(s + (200 * MS if kind == "B" else -90 * MS), e, kind, n, m) for s, e, kind, n, m in rows["d1"]]
    late = [(s, s + 10 * MS, kind, n, m) for s, _, kind, n, m in late]
    with pytest.raises(ValueError, match=r"t\.json: .*by one way 'd1' is at least 89\.\d ms behind 'd0', by the other"):
        set_clocks([{**rows, "d1": late}], rules=rules())


def test_one_way_alone_is_refused():
    """Tests that forwards that come too early are refused where no backward says how far the clocks are apart."""
    rows = {device: [entry for entry in row if entry[2] == "F"] for device, row in run(num_stages=2).items()}
    with pytest.raises(ValueError, match=r"'d1' has its input before 'd0' has made it, by 79\.0 ms"):
        set_clocks([shifted(rows, {"d1": -80 * MS})], rules=rules())


def test_replicas_need_their_pipelines():
    """Tests that clocks of replicas are set where pipelines are told, and refused together where they are not."""
    one = run(num_stages=2)
    rows = one | {f"e{stage}": list(one[f"d{stage}"]) for stage in range(2)}
    skewed = shifted(rows, {"d1": -300 * MS})
    pairs = frozenset({("d0", "d1"), ("e0", "e1")})
    _, clocks = set_clocks([skewed], rules=rules(pairs=pairs))
    assert clocks.keys() == {"d1"}
    with pytest.raises(ValueError, match=r"on 'd1' .* before any of 'd0', 'e0' has made its input"):
        set_clocks([skewed], rules=rules())
    assert set_clocks([rows], rules=rules()) == ([rows], {})
