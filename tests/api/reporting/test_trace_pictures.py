"""A production step as the viewer draws plans: tests of api/reporting/trace_pictures.py."""

import base64
from pathlib import Path

import pytest

from api.reporting import trace_pictures
from api.reporting.trace_pictures import CEILING, read_trace_text
from profiles.importers.straggler import TraceCeiling, read_straggler_trace
from tests.api.service.test_fair_queue import TRACES
from tests.profiles.importers.test_straggler import TWO_STAGES, write


def test_a_trace_is_weighed_before_it_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Tests that rows in one group or many, and long texts, are counted by the footer, and columns not read are not."""
    import pyarrow
    from pyarrow import parquet

    monkeypatch.setattr(trace_pictures, "CEILING", TraceCeiling(rows=100, num_bytes=10_000))
    plain = parquet.read_table(write(tmp_path / "plain.parquet", *TWO_STAGES))
    many = pyarrow.concat_tables([plain] * 12)
    text = pyarrow.array(["forward-compute" + chr(97 + place) * 2000 for place in range(plain.num_rows)])
    files = {
        "9 operations and a comment": (plain.append_column("comment", text), 100),
        "108 operations, more than 100": (many, 1000),
        "108 operations, more": (many, 10),
        "23,[0-9]+ bytes unpacked, more than 10,000": (
            plain.set_column(plain.schema.names.index("optype"), "optype", text),
            100,
        ),
    }
    for words, (table, rows_of_group) in files.items():
        file = tmp_path / "t.parquet"
        parquet.write_table(table, file, row_group_size=rows_of_group)
        data = base64.b64encode(file.read_bytes()).decode()
        if table.num_columns > plain.num_columns:
            assert len(read_trace_text(data)) == 1
            monkeypatch.setattr(parquet.ParquetFile, "iter_batches", pytest.fail)
            continue
        with pytest.raises(ValueError, match=f"^body: holds {words}.*; export fewer steps"):
            read_trace_text(data)


def test_production_traces_are_below_the_ceiling():
    """Tests that both of the traces that come along may be looked at, and that files of one's own have no ceiling."""
    for job, num_steps in (("ST", 32), ("SE", 43)):
        (file,) = TRACES.glob(f"trace-{job}.parquet")
        assert len(read_straggler_trace(file, ceiling=CEILING)) == num_steps
