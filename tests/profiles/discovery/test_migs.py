"""Slices of GPUs by their profile's name: tests of profiles/discovery/migs.py."""

import pytest

from profiles.discovery.hosts import DeviceDefaults
from profiles.discovery.migs import mig_memory_bytes

GIB = 2**30


@pytest.mark.parametrize(
    ("kind", "gib"),
    [
        ("1g.10gb", 10),
        ("a100_3g.20gb", 20),
        ("MIG-1c.2g.20GB", 20),
        ("nvidia_h100_80gb_hbm3_1g.12gb", 12),
        ("a100", None),
        ("a100-80gb", None),
        ("gb200", None),
        ("11gx5gb", None),
    ],
)
def test_names_tell_the_memory(kind: str, gib: int | None):
    """Tests that names are read as Slurm and Kubernetes write them, and that whole GPUs are no slices."""
    assert mig_memory_bytes(kind, DeviceDefaults()) == (None if gib is None else gib * GIB)


def test_less_is_taken_where_it_is_given():
    """Tests that a smaller memory of all accelerators holds, and a larger one does not."""
    assert mig_memory_bytes("1g.10gb", DeviceDefaults(memory_bytes=4 * GIB)) == 4 * GIB
    assert mig_memory_bytes("1g.10gb", DeviceDefaults(memory_bytes=80 * GIB)) == 10 * GIB
