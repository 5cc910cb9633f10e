"""Which torch the executor takes, and how it finds its way in each."""

import pytest

pytest.importorskip("torch")

from planner.execute.torch_versions.supported import require_supported


@pytest.mark.parametrize("version", ["2.11.0", "2.12.1+cu130", "2.13.0+cpu", "2.14.1", "2.15.0"])
def test_tested_versions_are_taken(version: str):
    """Tests that what the table of versions lists is taken."""
    require_supported(version)


@pytest.mark.parametrize("version", ["2.10.0", "2.9.1", "2.16.0", "3.0.0", "unknown"])
def test_other_versions_are_refused_with_the_range(version: str):
    """Tests that an older or newer torch is named, with what is tested instead of it."""
    with pytest.raises(ValueError, match=rf"torch {version} is installed, but the executor is tested on 2.11 to 2.15"):
        require_supported(version)
