"""Whether all processes run the same."""

from dataclasses import replace

from planner.execute.run.process_agreement import Facts, find_disagreements

DEVICES = ("d0", "d1", "d2")
SAME = {"plan": "p", "model": "m"}


def facts(**changes: object) -> list[Facts]:
    """Three alike; `changes` are those of the last."""
    alike = [Facts(rank=rank, host="a", accelerator=rank, memory_bytes=100, same=SAME) for rank in range(3)]
    alike[2] = replace(alike[2], **changes)
    return alike


def found(everyone: list[Facts], **peak_bytes: int) -> tuple[str, ...]:
    return find_disagreements(everyone, devices=DEVICES, peak_bytes=peak_bytes)


def test_processes_that_agree_find_nothing():
    """Tests that nothing is found where all is the same and everything fits."""
    assert found(facts(), d0=100, d1=100) == ()


def test_differences_are_named():
    """Tests that another plan, model or version is named with both ranks."""
    (fault,) = found(facts(same=SAME | {"model": "other"}))
    assert fault == "rank 2 (d2) has another model than rank 0 (d0): other instead of m"


def test_one_error_of_all_is_said_once():
    """Tests that an error of all ranks stands alone, and that of some with their names; nothing else is said."""
    assert found([replace(fact, error="no") for fact in facts()]) == ("no",)
    assert found(facts(error="no", same={})) == ("rank 2 (d2): no",)


def test_accelerators_are_not_shared():
    """Tests that two ranks on one accelerator are named; on processors they may share a host."""
    (fault,) = found(facts(accelerator=0))
    assert fault == "accelerator 0 of host 'a' is driven by ranks 0 (d0), 2 (d2); give each its own"
    assert found([replace(fact, accelerator=None) for fact in facts()]) == ()


def test_memory_has_to_suffice():
    """Tests that the planned peak is held against the accelerator, or against the host for all of its ranks."""
    (fault,) = found(facts(), d1=101)
    assert "the plan holds 101 bytes on d1, but accelerator 1 of host 'a' has 100" in fault
    shared = [replace(fact, accelerator=None) for fact in facts()]
    assert found(shared, d0=40, d1=60) == ()
    (fault,) = found(shared, d0=40, d1=60, d2=1)
    assert "the plan holds 101 bytes on d0, d1, d2, but host 'a' has 100" in fault
