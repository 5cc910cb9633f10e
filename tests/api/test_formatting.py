"""How figures are written for people: tests of api/formatting.py."""

import pytest

from api.formatting import render_bytes, render_groups, render_layers, render_ms, render_of_limit, render_percent


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (render_ms(123), "0.000"),
        (render_ms(12_345_678), "12.35"),
        (render_ms(1_234_567_890), "1,234.6"),
        (render_ms(None), "–"),
        (render_bytes(0), "0.00 GiB"),
        (render_bytes(3 * 2**20), "3.0 MiB"),
        (render_bytes(17), "17 bytes"),
        (render_of_limit(2**20, 2**30), "1.0 MiB / 1.00 GiB"),
        (render_percent(0.0), "0.0 %"),
        (render_percent(0.0001), "<0.1 %"),
        (render_layers(["a"]), "a"),
        (render_layers(["a" * 50]), "a" * 31 + "…"),
        (render_layers(["first" * 9, "x", "last"]), "firstfirstf… … last (3)"),
        (render_groups([("a", "b"), ("c", "d")]), "a+b c+d ×2"),
        (render_groups([(f"device{i}",) for i in range(8)]), "device0 … device7 ×8"),
    ],
)
def test_figures(text: str, expected: str):
    """Tests that figures and lists are written for people."""
    assert text == expected
