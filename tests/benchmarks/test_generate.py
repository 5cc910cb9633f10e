"""Generated workloads: tests of benchmarks/generate.py."""

import pytest

from benchmarks.generate import Family, parse_family


def test_names_of_families_are_read_back():
    """Tests that a family's name says all of it, and that other names are refused with an example."""
    family = Family(
        shape="dag", num_layers=40, num_devices=4, num_microbatches=8, memory="scarce", links="random", speeds="classes"
    )
    assert parse_family(family.name) == family
    with pytest.raises(ValueError, match="chain-48x8-m32"):
        parse_family("chain-48x8")
