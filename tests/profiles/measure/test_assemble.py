"""Records, their journal, and the profile they become."""

from dataclasses import dataclass, replace

from profiles.measure.assemble import Origin, make_profile
from profiles.measure.record import (
    LayerBytes,
    LayerRecord,
    TensorSpec,
    Timing,
)


@dataclass(frozen=True, kw_only=True)
class Asked:
    microbatch_sizes: tuple[int, ...] = (4,)
    widths: tuple[int, ...] = (1,)
    device_type: str = "cpu"
    device: str = "cpu"


def make_record(*, trained: int = 100, estimate: str = "", has_gradient: bool = True, **times: int) -> LayerRecord:
    times = times or {"F": 10, "I": 12, "W": 9, "B": 20, "R": 31, "O": 7}
    return LayerRecord(
        outputs=(TensorSpec(shape=(4, 8), dtype="float32", num_bytes=128, has_gradient=has_gradient),),
        sizes=LayerBytes(
            parameters=100, trained=trained, state=400, saved=50, weight_saved=80, inputs=60, workspace=30
        ),
        timings={phase: Timing(ns=time, repetitions=5) for phase, time in times.items()},
        estimate=estimate,
    )


def profile_of(*records: LayerRecord, asked: Asked | None = None, **more: int):
    asked = asked or Asked()
    takes = {f"l{number}": (f"l{number - 1}",) if number else ("",) for number in range(len(records))}
    by_key = {
        (name, size, width): record
        for name, record in zip(takes, records, strict=True)
        for size in asked.microbatch_sizes
        for width in asked.widths
    }
    origin = Origin(model="m:f", machine="a machine")
    return make_profile("m", takes=takes, records=by_key, asked=asked, origin=origin, **more)


def test_a_stash_covers_what_waits_for_the_weights():
    """Tests that the stash is not less than what is held between I and W, and the checkpoint not more than it."""
    layer = profile_of(make_record()).layers[0]
    assert (layer.stash_bytes, layer.weight_stash_bytes, layer.checkpoint_bytes) == (80, 80, 60)


def test_wide_layers_are_held_once():
    """Tests that each core of a group counts for its part of the bytes, rounded up."""
    (wide,) = profile_of(make_record(), asked=Asked(widths=(1, 3))).layers[0].wider
    assert (wide.width, wide.state_bytes, wide.stash_bytes, wide.parameter_bytes) == (3, 134, 27, 34)


def test_a_whole_backward_is_at_most_its_halves():
    """Tests that noise does not make B dearer than I + W, and that a recomputation is what B becomes dearer by."""
    cost = profile_of(make_record(F=10, I=12, W=9, B=30, R=35)).layers[0].costs[0]
    assert (cost.fused_backward_ns, cost.recompute_ns) == (21, 5)
    assert profile_of(make_record()).layers[0].costs[0].backward_ns == 20
    assert profile_of(make_record(F=10, I=12, W=9, B=20, R=15)).layers[0].costs[0].recompute_ns == 0


def test_a_forward_that_will_be_recomputed_may_take_longer():
    """Tests that what C takes beyond F comes with the recomputation, and that noise the other way does not."""
    assert profile_of(make_record(F=10, I=12, W=9, B=20, C=13, R=31)).layers[0].costs[0].recompute_ns == 14
    assert profile_of(make_record(F=10, I=12, W=9, B=20, C=8, R=31)).layers[0].costs[0].recompute_ns == 11


def test_a_layer_without_weights_has_no_w():
    """Tests that what little its W took is left out of a layer with nothing to train, frozen or not."""
    layer = profile_of(make_record(trained=0)).layers[0]
    assert layer.frozen
    assert (layer.costs[0].input_grad_ns, layer.costs[0].weight_grad_ns, layer.weight_stash_bytes) == (20, 0, 0)


def test_a_layer_trained_in_part_synchronises_that_part():
    """Tests that adapters beside frozen weights count with their own bytes, and the state with all."""
    layer = profile_of(make_record(trained=30)).layers[0]
    assert (layer.synchronised_bytes, layer.state_bytes, layer.frozen) == (30, 400, False)


def test_edges_without_gradient_say_so():
    """Tests that behind an output that wants no gradient none flows back."""
    profile = profile_of(make_record(has_gradient=False), make_record())
    assert [(edge.bytes, edge.gradient_bytes) for edge in profile.edges] == [(128, 0)]
    assert [edge.gradient_bytes for edge in profile_of(make_record(), make_record()).edges] == [None]


def test_every_layer_has_its_own_step():
    """Tests that the optimizer's step stands with the layer, once, and that the profile adds nothing to it."""
    profile = profile_of(make_record(), make_record(F=1, O=9), make_record(trained=0), asked=Asked(widths=(1, 2)))
    assert [[cost.optimizer_ns for cost in layer.costs] for layer in profile.layers] == [[7, 0], [9, 0], [0, 0]]
    assert [layer.optimizer_ns("cpu") for layer in profile.layers] == [7, 9, 0]
    assert profile.optimizer_ns == 0


def test_host_and_card_become_two_clocks():
    """Tests that what the host took to ask goes with each action, and that an estimated layer is asked for in no time.

    I has what a forward takes longer that will be split, recomputation what a backward and its forward take longer.
    """
    measured = make_record(F=10, N=11, I=12, W=9, B=20, C=12, R=31, O=7)
    host = {"F": 5, "N": 7, "I": 20, "W": 3, "B": 21, "C": 6, "R": 29}
    timings = {phase: replace(timing, host_ns=host.get(phase)) for phase, timing in measured.timings.items()}
    profile = profile_of(replace(measured, timings=timings), make_record(estimate="too large"))
    stated, estimated = ({each.action: each.host_ns for each in layer.costs[0].host} for layer in profile.layers)
    assert stated == {"F": 5, "I": 22, "W": 3, "B": 21, "full": 9}
    assert set(estimated.values()) == {0}
    assert "host times are the least" in profile.provenance


def test_provenance_tells_estimates_from_measurements():
    """Tests that model, machine, repetitions and every estimated layer stand in the provenance."""
    text = profile_of(make_record(), make_record(estimate="no room")).provenance
    assert text.startswith("Source: measured by pipeplan profile of m:f on a machine; medians of 5 to 5 repetitions")
    assert "ESTIMATE, times from operations and bytes on fake tensors: l1 (no room)" in text
    assert profile_of(make_record(estimate="no room")).provenance.startswith("Source: estimated by")
    assert "ESTIMATE" not in profile_of(make_record()).provenance


def test_tensors_that_two_layers_keep_are_held_once():
    """Tests that a layer which keeps what an earlier one keeps, too, says so, with the last that does, once for each.

    a gives x; b takes x and gives it on, beside y of its own; c takes both, d takes x.
    """

    def record(takes: str, gives: str) -> LayerRecord:
        rows = [[tuple(map(int, each.split(","))) for each in text.split()] for text in (takes, gives)]
        given = tuple((*row, -1)[:3] for row in rows[1])
        return replace(make_record(), takes=tuple(rows[0]), gives=given, outputs=make_record().outputs * len(given))

    records = {
        "a": record("9,9", "20,0"),
        "b": record("20,20", "20,20,0 7,7"),
        "c": record("0,0 5,5", "30,0"),
        "d": record("16,16 8,8", "0,0"),
    }
    takes = {"a": ("",), "b": ("a",), "c": ("b",), "d": ("a", "")}
    found = {}
    for is_split in (True, False):
        profile = make_profile(
            "m",
            takes=takes,
            records={(name, 4, 1): each for name, each in records.items()},
            asked=Asked(),
            origin=Origin(model="m:f", machine="a machine"),
            is_split=is_split,
            tied=[("a", "d", 50), ("b", "c", 101)],
        )
        found[is_split] = {
            each.first + each.second: (each.state_bytes, each.stash_bytes, each.weight_stash_bytes)
            for each in profile.held_once
        }
    assert found[True] == {"ad": (100, 8, 8), "ab": (0, 20, 0), "bc": (0, 5, 5), "bd": (0, 16, 16)}
    assert found[False]["bd"] == (0, 16, 0)


def test_journals_that_know_no_tensors_say_nothing():
    """Tests that records of earlier releases hold nothing together."""
    assert profile_of(make_record(), make_record()).held_once == ()
