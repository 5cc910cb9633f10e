"""What is said of a link benchmark: tests of api/reporting/link_report.py."""

from pathlib import Path

import pytest

from api.failures import InputError
from api.reporting.link_report import describe_links
from tests.profiles.importers.test_nccl_tests import output


def test_a_table_is_told(tmp_path: Path):
    """Tests that a table of nccl-tests has its sizes, its latency and how far one line is off."""
    file = tmp_path / "links.txt"
    file.write_text(output("all_reduce_perf", factor=1.5, sums=True), encoding="utf-8")
    said = describe_links(str(file))
    assert "latency" in said
    assert "one latency and one bandwidth, as in a cluster: at most" in said


def test_what_is_no_table_is_refused(tmp_path: Path):
    """Tests that a file of something else is a mistake of the user's, by its name."""
    file = tmp_path / "other.txt"
    file.write_text("nothing", encoding="utf-8")
    with pytest.raises(InputError, match=r"other.txt"):
        describe_links(str(file))
