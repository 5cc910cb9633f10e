"""Tests of solver_models/local_search/building_blocks.py."""

from solver_models.local_search.building_blocks import find_blocks, make_block_orders


def test_blocks_keep_their_memory():
    """Tests that a block never holds more stashes than it is filed under, W included."""
    for num_devices in (2, 3, 4, 8):
        for most, block in find_blocks(num_devices):
            for word in make_block_orders(block, num_microbatches=30).values():
                held = peak = 0
                for kind, _, _ in word:
                    held += (kind == 0) - (kind == 2)
                    peak = max(peak, held)
                assert peak <= most + 1


def test_v_min_is_among_the_blocks():
    """Tests that the least memory found is the published V-Min's: one slot from device to device."""
    most, block = find_blocks(8)[0]
    assert most == 8
    assert block[0] == (0, 15, 16, 31)
    assert block[7] == (7, 8, 23, 24)
