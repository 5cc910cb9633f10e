"""Which accelerators a node of Slurm has: tests of profiles/discovery/gres.py."""

import pytest

from profiles.discovery.gres import node_gres, parse_gres
from tests.profiles.discovery.test_slurm_nodes import node, parse


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({"Gres": "gpu:3090:8(S:0-1)"}, {"3090": 8}),
        ({"Gres": "gpu:2080ti:4"}, {"2080ti": 4}),
        ({"Gres": "gpu:4090D:2(S:0,2-3)"}, {"4090D": 2}),
        ({"Gres": "gpu:8"}, {"gpu": 8}),
        ({"Gres": "gpu"}, {"gpu": 1}),
        ({"Gres": "gpu:tesla"}, {"tesla": 1}),
        ({"Gres": "gpu:no_consume:4"}, {"gpu": 4}),
        ({"Gres": "gpu:tesla:no_consume:4(S:0)"}, {"tesla": 4}),
        ({"Gres": "gpu:1g.10gb:7(S:0)"}, {"1g.10gb": 7}),
        ({"Gres": "gpu:a100_3g.20gb:2,gpu:a100:6"}, {"a100_3g.20gb": 2, "a100": 6}),
        ({"Gres": "gpu:a100:2(S:0),gpu:v100:1(S:1),shard:a100:16(S:0)"}, {"a100": 2, "v100": 1}),
        ({"Gres": "gpu:a100:2(S:0),gpu:a100:2(S:1),mps:400,nic:mlx5:8"}, {"a100": 4}),
        ({"Gres": "tmpdisk:lustre:no_consume:4G,npu:910b:8"}, {"910b": 8}),
        ({"Gres": "gpu:x:2,npu:x:3"}, {"x": 5}),
        ({"Gres": "gpu:8,gpu:3090:8"}, {"gpu": 8, "3090": 8}),  # slurmctld adds them, and invalidates a node with less
        ({"Gres": "(null)"}, {}),
        ({"Gres": "craynetwork:4"}, {}),
        ({"Gres": "gpu:8", "CfgTRES": "cpu=64,mem=1T,billing=64,gres/gpu=8,gres/gpu:h100=8"}, {"h100": 8}),
        ({"Gres": "gpu:4", "CfgTRES": "cpu=1,gres/gpu=4,gres/gpu:a100=3"}, {"a100": 3, "gpu": 1}),
        ({"CfgTRES": "gres/gpu=3,gres/gpu:2080=1,gres/gpu:3g.40gb=2"}, {"2080": 1, "3g.40gb": 2}),
        ({"Gres": "gpu:A100:4", "CfgTRES": "gres/gpu=4,gres/gpu:a100=4,gres/shard=8"}, {"A100": 4}),
        ({"Gres": "gpu:h100:4", "GresUsed": "gpu:h100:2(IDX:0,3),shard:h100:0(0/4,0/4)"}, {"h100": 4}),
        ({"Gres": "gpu:h100:4", "AllocTRES": "cpu=4,gres/gpu=4,gres/gpu:h100=4"}, {"h100": 4}),
        ({"Gres": "gpu:h100:4", "CfgTRES": "cpu=4", "AllocTRES": ""}, {"h100": 4}),
        ({"Gres": "gpu:h100:8(S:0-1)", "GresDrain": "gpu:h100:2(IDX:3,5)", "GresUsed": "gpu:h100:8"}, {"h100": 6}),
        ({"Gres": "gpu:3090:2,gpu:a100:2", "GresDrain": "gpu:3090:2"}, {"a100": 2}),
        ({"Gres": "gpu:8", "GresDrain": "N/A"}, {"gpu": 8}),
        ({"Gres": "gpu:8", "CfgTRES": "gres/gpu=8,gres/gpu:h100=8", "GresDrain": "gpu:1,shard:0"}, {"h100": 7}),
        ({"Gres": "gpu:a:1,gpu:b:1", "GresDrain": "gpu:0"}, {"a": 1, "b": 1}),
    ],
)
def test_accelerators_are_counted_by_type(fields: dict[str, str], counts: dict[str, int]):
    """Tests that types may begin with a digit, that parts of GPUs are none, and that CfgTRES completes Gres."""
    assert node_gres(fields).counts == counts


def test_units_and_shared_resources_are_read():
    """Tests that K is 1,024, and that what is not consumed is told."""
    (tmp,) = parse_gres("tmpdisk:no_consume:4K")
    assert (tmp.kind, tmp.count, tmp.is_consumed) == (None, 4096, False)
    found = parse(node(Gres="gpu:a:no_consume:2,shard:8,nic:2", GresDrain="gpu:a:1"))
    assert len(found.hosts[0].devices) == 1
    assert found.notes == (
        "n1 also offers shard of the same devices",
        "n1 has nic, not taken for accelerators",
        "n1 has 1 of its accelerators drained, left out",
        "n1 gives its accelerators to several jobs at once (no_consume)",
    )


def test_an_equals_sign_is_no_part_of_a_type():
    """Tests that a count behind the wrong sign is refused, not taken for the name of one device."""
    with pytest.raises(ValueError, match="'gpu:h100=4' is not NAME:TYPE:COUNT"):
        parse_gres("gpu:h100=4")
