"""The benchmark of Primus' seeds: what becomes of each, and that one of them is played beside a choice of ours."""

from typing import Any

import pytest

from api.auditing import better_degrees
from benchmarks.primus_seeds import choose, play_seeds, read_seed, seed_flags
from planner.errors import NoPlanFoundError
from profiles.configurations.argument_forms import ReadArguments

WORKLOAD = ReadArguments(values={"seq_length": "2048", "overlap_grad_reduce": True}, kind="mapping")


def seed(**changes: Any) -> dict[str, Any]:
    own = dict.fromkeys(
        ("vpp", "recompute_granularity", "use_torch_fsdp2", "sync_free_stage", "use_turbo_deepep", "fp8")
    )
    degrees = {"tp": 1, "pp": 2, "ep": 1, "cp": 1, "mbs": 1, "gbs": 64, "recompute_num_layers": 0}
    return own | degrees | {"pp_schedule": "auto"} | changes


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"pp_schedule": "zbv-formatted"}, "pp_schedule = zbv-formatted"),
        ({"sync_free_stage": 3}, "sync_free_stage = 3"),
        ({"use_torch_fsdp2": True}, "--use-torch-fsdp2"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], told: str) -> None:
    """Tests that a seed whose schedule or sharding the audit does not know is refused by its name."""
    with pytest.raises(ValueError, match=told):
        read_seed(seed(**changes), WORKLOAD, model="llama3-8b")


def test_flags_of_a_seed() -> None:
    """Tests that one virtual stage is none, and that null inherits while none turns off."""
    flags = seed_flags(seed(vpp=1, recompute_granularity="full", recompute_num_layers=4, tp=2))
    assert flags["num_virtual_stages_per_pipeline_rank"] is False
    assert (flags["recompute_method"], flags["recompute_num_layers"]) == ("block", "4")
    assert (flags["sequence_parallel"], flags["world_size"]) == (True, "32")
    assert "num_virtual_stages_per_pipeline_rank" not in seed_flags(seed())


def test_own_degrees_are_planned_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests that a run's own degrees, however bad, are planned for first, and those of the least estimate next."""
    given: list[str] = []

    def refuse(problems: dict[str, Any], **_: Any) -> None:
        given.extend(problems)
        raise NoPlanFoundError("none")

    monkeypatch.setattr(better_degrees, "make_best_plan", refuse)
    assert choose(read_seed(seed(tp=8, pp=4, vpp=1), WORKLOAD, model="llama3-8b"), (1,), time_limit_s=1) is None
    assert (len(given), given[-1]) == (6, "t 8, c 1, p 4")
    assert all(name.startswith("t 1") for name in given[:-1])


def test_seeds_are_played_beside_a_choice() -> None:
    """Tests that the best seed that fits is found, and that a choice beside it has a bound below both."""
    seeds = [seed(), seed(pp=3), seed(pp=4, vpp=8), seed(pp=1, mbs=2), seed(pp=1, gbs=16, mbs=8)]
    played = play_seeds(seeds, WORKLOAD, model="llama3-8b")
    assert dict(played.outcomes) == {"run": 3, "do not start": 2}
    assert played.best is not None
    chosen = choose(played.best[1], (2,), time_limit_s=1)
    assert chosen is not None
    assert chosen.bound_ns is not None
    assert chosen.bound_ns <= played.best[0]
