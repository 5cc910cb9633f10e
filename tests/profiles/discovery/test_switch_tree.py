"""The tree of switches over hosts, without those that join nothing: tests of profiles/discovery/switch_tree.py."""

from profiles.discovery.switch_tree import make_switch_tree


def test_switches_that_join_nothing_are_left_out():
    """Tests that chains collapse, that nodes down take their switches along, and that others hang at the top."""
    assert make_switch_tree({"a": ("s", "l0"), "b": ("s", "l1")}).switches == {}
    tree = make_switch_tree({"a": ("x", "s", "l0"), "b": ("x", "s", "l0"), "c": ()})
    assert (tree.hosts, tree.switches) == ({"a": "l0", "b": "l0", "c": "network"}, {"l0": "network"})
    assert tree.num_hosts == {"l0": 2, "network": 3}
    alone = make_switch_tree({"a": ("s", "l")})
    assert (alone.hosts, alone.names) == ({}, ())


def test_names_do_not_clash():
    """Tests that switches called like a host, a device or the network get names of their own."""
    paths = {"a": ("network", "a"), "b": ("network", "a"), "c": ("network", "b-0"), "d": ("network", "b-0")}
    tree = make_switch_tree(paths, taken=["b-0"])
    assert set(tree.names) == {"switch a", "switch b-0", "switch network"}
