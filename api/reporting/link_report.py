"""What is said of a link benchmark's tables."""

from pathlib import Path

from api.formatting import render_bytes
from api.inputs import reading
from profiles.importers.nccl_tests import read_links
from profiles.measure.link_summary import LinkSummary, summarise_links


def describe_links(file: str) -> str:
    """The tables by message size, in lines; InputError for a file that is none or has no pairs."""
    with reading():
        tables = read_links(Path(file))
        found = summarise_links(tables)
        if not found:
            raise ValueError(f"{file}: lists no pairs of devices; measure links between at least two")
    told = [tables.provenance] if tables.provenance else []
    return "\n\n".join([*(_describe(one) for one in found), *told])


def _describe(one: LinkSummary) -> str:
    head = (
        f"{one.kind}, {one.num_pairs} pairs: latency {one.latency_ns / 1e3:.1f} us, "
        f"knee {render_bytes(one.knee_bytes)}, plateau {one.plateau_bytes_per_s / 1e9:.3g} GB/s"
    )
    rows = [f"  {'message':>10}  {'time':>12}  {'rate':>12}"]
    rows += [
        f"  {render_bytes(size):>10}  {time / 1e3:>9,.1f} us  {rate / 1e9:>7.3f} GB/s"
        for size, time, rate in one.by_size
    ]
    rows.append(f"  one latency and one bandwidth, as in a cluster: at most {one.worst_error:.1%} off")
    if one.slowdown is not None:
        rows.append(
            f"  two transfers at once take {one.slowdown:.2f} times as long as one; {one.num_sharing} of "
            f"{one.num_together} such pairs share a link"
        )
    return "\n".join([head, *rows])
