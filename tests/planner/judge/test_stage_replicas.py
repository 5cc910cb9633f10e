"""Who runs which actions of a stage, to the judge: tests of planner/judge/stage_replicas.py."""

from dataclasses import replace
from fractions import Fraction

from planner.judge.samples import Samples
from planner.judge.stage_replicas import is_gathered, is_sharded, make_stage_replicas
from tests.planner.builders import make_split, make_stage


def test_groups_share_the_samples():
    """Tests that two groups take half of the samples each, and run all kinds of actions."""
    one, other = make_stage_replicas([make_stage("x @ a+b | c+d")], has_weight_grad=[True])
    assert [(each.number, each.group, each.head) for each in (one, other)] == [
        (0, ("a", "b"), "a"),
        (1, ("c", "d"), "c"),
    ]
    assert one.kinds == other.kinds == "FIWB"
    assert (one.samples.end, other.samples.start, other.samples.end) == (Fraction(1, 2), Fraction(1, 2), 1)


def test_whoever_works_for_a_split_stage_is_a_replica():
    """Tests that the owner comes first, that shares of I follow each other, and that W is only where there is one."""
    stage = make_split("x @ a", input_grad="a 1/3, b 2/3", weight_grad="c")
    found = make_stage_replicas([stage], has_weight_grad=[True])
    assert [(each.group, each.kinds) for each in found] == [(("a",), "FI"), (("b",), "I"), (("c",), "W")]
    assert found[1].samples == Samples(Fraction(1, 3), Fraction(1))
    assert [each.kinds for each in make_stage_replicas([stage], has_weight_grad=[False])] == ["FI", "I", ""]


def test_one_replica_shards_nothing():
    """Tests that sharding, and gathering, need a second replica."""
    for shard, sharded, gathered in (("optimizer", True, False), ("weights", True, True)):
        two = replace(make_stage("x @ a | b"), shard=shard)
        assert (is_sharded(two), is_gathered(two)) == (sharded, gathered)
        one = replace(make_stage("x @ a"), shard=shard)
        assert not is_sharded(one)
        assert not is_gathered(one)
