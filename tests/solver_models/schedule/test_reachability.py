"""How soon the first F of a stage replica can start: tests of solver_models/schedule/reachability.py."""

from types import SimpleNamespace

from solver_models.schedule.reachability import earliest_forwards


def instance(devices: str, *ways: tuple[int, int, int], forward: int = 1, free: str = ""):
    """A stage replica per letter of `devices`; ways: sender, receiver and ticks, forward and back.

    Device `free` runs nothing before tick 9.
    """
    replicas = [SimpleNamespace(device=device, stage=n, forward=forward) for n, device in enumerate(devices)]
    transfers = [
        SimpleNamespace(sender=ends[0], receiver=ends[1], duration=ticks, is_backward=is_backward)
        for a, b, ticks in ways
        for ends, is_backward in (((a, b), False), ((b, a), True))
    ]
    return SimpleNamespace(
        replicas=replicas, transfers=transfers, free_from=lambda replica: 9 if free == replica.device else 0
    )


def test_the_longest_chain_counts():
    """Tests that a stage waits for the longest way to it, transfers included."""
    found = earliest_forwards(instance("abcd", (0, 1, 5), (0, 3, 1), (1, 2, 0), (2, 3, 2), forward=10))
    assert found == [0, 15, 25, 37]


def test_a_stage_waits_for_its_device():
    """Tests that the chain begins anew where a device is free later than what it is sent arrives."""
    assert earliest_forwards(instance("abc", (0, 1, 1), (1, 2, 2), free="b")) == [0, 9, 12]
