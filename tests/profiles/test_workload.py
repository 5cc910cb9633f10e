"""Workload documents: what is written is what was read, and what is read is what was written."""

import json
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from profiles.cluster import Cluster, Device, Link
from profiles.field_rules import MAX_BYTES, MAX_NANOSECONDS
from profiles.load import dump_workload, load_cluster, load_workload, parse_workload
from profiles.model_profile import Edge, Layer, LayerCost, ModelProfile, WidthBytes
from profiles.workload import Workload

NAMES = st.text(st.characters(categories=["L", "N", "P", "S"]), min_size=1, max_size=12)
TIMES = st.integers(0, MAX_NANOSECONDS) | st.integers(0, 9)
SIZES = st.integers(0, MAX_BYTES) | st.integers(0, 9)


@st.composite
def byte_fields(draw: st.DrawFn) -> dict[str, int]:
    stash = draw(SIZES)
    return {
        "state_bytes": draw(SIZES),
        "stash_bytes": stash,
        "weight_stash_bytes": draw(st.integers(0, stash)),
        "checkpoint_bytes": draw(st.integers(0, stash)),
        "workspace_bytes": draw(SIZES),
    }


@st.composite
def costs(draw: st.DrawFn, *, trainable: bool) -> tuple[LayerCost, ...]:
    measured = st.tuples(NAMES, st.integers(1, 4096), st.none() | st.integers(1, 64))
    made = []
    for device_type, width, size in draw(st.lists(measured, min_size=1, max_size=3, unique=True)):
        input_grad, weight_grad = draw(TIMES), draw(TIMES) if trainable else 0
        made.append(
            LayerCost(
                device_type=device_type,
                width=width,
                microbatch_size=size,
                forward_ns=draw(TIMES),
                input_grad_ns=input_grad,
                weight_grad_ns=weight_grad,
                backward_ns=draw(st.none() | st.integers(0, input_grad + weight_grad)),
                recompute_ns=draw(TIMES),
            )
        )
    return tuple(made)


@st.composite
def layers(draw: st.DrawFn, name: str) -> Layer:
    parameters, frozen = draw(SIZES), draw(st.booleans())
    widths = draw(st.lists(st.integers(1, 4096), max_size=2, unique=True))
    return Layer(
        name=name,
        costs=draw(costs(trainable=parameters > 0 and not frozen)),
        parameter_bytes=parameters,
        frozen=frozen,
        wider=tuple(WidthBytes(width=width, **draw(byte_fields())) for width in widths),
        **draw(byte_fields()),
    )


@st.composite
def profiles(draw: st.DrawFn) -> ModelProfile:
    names = draw(st.lists(NAMES, min_size=1, max_size=5, unique=True))
    pairs = [(a, b) for position, b in enumerate(names) for a in names[:position]]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True)) if pairs else []
    sizes = {pair: (draw(SIZES), draw(st.none() | SIZES)) for pair in chosen}
    return ModelProfile(
        name=draw(NAMES),
        layers=tuple(draw(layers(name)) for name in names),
        edges=tuple(Edge(producer=a, consumer=b, bytes=x, gradient_bytes=y) for (a, b), (x, y) in sizes.items()),
        microbatch_size=draw(st.integers(1, 99)),
        optimizer_ns=draw(TIMES),
        provenance=draw(st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)),
    )


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """A few devices on one switch, with some direct links between neighbours."""
    switch, *names = draw(st.lists(NAMES, min_size=2, max_size=5, unique=True))
    ends = [(name, switch) for name in names] + [pair for pair in pairwise(names) if draw(st.booleans())]
    return Cluster(
        name=draw(NAMES),
        devices=tuple(
            Device(
                name=name,
                type=draw(NAMES),
                memory_bytes=draw(SIZES),
                host=draw(st.just("") | NAMES),
                cores=draw(st.integers(1, 64)),
            )
            for name in names
        ),
        links=tuple(
            Link(
                a=a,
                b=b,
                bandwidth_bytes_per_s=draw(st.integers(1, MAX_BYTES)),
                latency_ns=draw(TIMES),
                duplex=draw(st.booleans()),
            )
            for a, b in ends
        ),
        switches=(switch,),
        overlap=draw(st.booleans()),
    )


OPTIONS = st.dictionaries(NAMES, st.none() | st.booleans() | st.integers(-9, 9) | NAMES | st.lists(NAMES), max_size=3)
WORKLOADS = st.builds(
    Workload,
    profile=profiles(),
    cluster=st.none() | clusters(),
    num_microbatches=st.none() | st.integers(1, 2**30),
    options=OPTIONS,
)


@given(WORKLOADS)
def test_written_then_read(workload: Workload):
    """Tests that export then import is the identity on workloads, and import then export on their documents."""
    text = dump_workload(workload)
    again = parse_workload(text.encode(), source="again")
    assert again == workload
    assert dump_workload(again) == text


@given(WORKLOADS)
def test_document_is_json_by_the_line(workload: Workload):
    """Tests that the document is plain JSON with one line for each layer."""
    text = dump_workload(workload)
    assert len(json.loads(text)["profile"]["layers"]) == len(workload.profile.layers)
    assert sum(line.startswith('{"name":') and '"costs":' in line for line in text.split("\n")) == len(
        workload.profile.layers
    )


@given(profiles(), st.randoms(use_true_random=False))
def test_order_of_the_listing_means_nothing(profile: ModelProfile, random: Random):
    """Tests that a document whose layers and edges are shuffled has the same layers, edges and dependencies."""
    tree = json.loads(dump_workload(Workload(profile=profile)))
    random.shuffle(tree["profile"]["layers"])
    random.shuffle(tree["profile"]["edges"])
    shuffled = parse_workload(json.dumps(tree).encode(), source="shuffled").profile
    assert shuffled.by_name == profile.by_name
    assert set(shuffled.edges) == set(profile.edges)
    assert shuffled.is_chain == profile.is_chain
    position = {name: index for index, name in enumerate(shuffled.topological_order)}
    assert all(position[edge.producer] < position[edge.consumer] for edge in profile.edges)


def test_defaults_are_left_out():
    """Tests that a small document is as short as it can be, letter by letter."""
    cost = LayerCost(device_type="T4", forward_ns=1, input_grad_ns=2, weight_grad_ns=0)
    devices = (Device(name="x", type="T4", memory_bytes=9),)
    workload = Workload(
        profile=ModelProfile(
            name="né", layers=(Layer(name="a", costs=(cost,)), Layer(name="b", costs=(cost,))), edges=()
        ),
        cluster=Cluster(name="one", devices=devices),
    )
    assert dump_workload(workload) == (
        "{\n"
        '"format": "pipeline-workload/2",\n'
        '"profile": {\n'
        '"name": "né",\n'
        '"layers": [\n'
        '{"name":"a","costs":[{"device_type":"T4","forward_ns":1,"input_grad_ns":2,"weight_grad_ns":0}]},\n'
        '{"name":"b","costs":[{"device_type":"T4","forward_ns":1,"input_grad_ns":2,"weight_grad_ns":0}]}\n'
        "],\n"
        '"edges": [],\n'
        '"microbatch_size": null\n'
        "},\n"
        '"cluster": {\n'
        '"name": "one",\n'
        '"devices": [\n'
        '{"name":"x","type":"T4","memory_bytes":9}\n'
        "]\n"
        "}\n"
        "}\n"
    )


@pytest.mark.parametrize("count", [0, -1, 2**30 + 1])
def test_number_of_microbatches(count: int):
    """Tests that a workload is not built with a number of microbatches that means nothing."""
    profile = load_workload("demo:alexnet-two-gpus").profile
    with pytest.raises(
        ValueError, match=rf"workload: num_microbatches = {count} is out of range; give an integer from 1"
    ):
        Workload(profile=profile, cluster=load_cluster("demo:alexnet-two-gpus"), num_microbatches=count)


@pytest.mark.parametrize(
    ("whole", "count", "sizes"),
    [(None, 3, None), (16, 8, None), (16, 4, (4,)), (16, 1, (16,)), (16, 16, (1,))],
)
def test_a_number_of_microbatches_cuts_the_global_batch(whole: int | None, count: int, sizes: tuple[int, ...] | None):
    """Tests that a number pins the cut of the global batch, and counts microbatches of the profile's size elsewhere."""
    layer = Layer(name="x", costs=(LayerCost(device_type="t", forward_ns=1, input_grad_ns=1, weight_grad_ns=0),))
    workload = Workload(
        profile=ModelProfile(name="p", layers=(layer,), edges=(), microbatch_size=2), global_batch_size=whole
    ).cut_into(count)
    assert workload.microbatch_sizes == sizes
    assert workload.num_microbatches == (None if sizes else count)


def test_a_batch_that_is_to_stay_whole_is_not_cut_by_a_number():
    """Tests that a number of microbatches is refused where the only size is that of the batch, that one is taken, and
    that stated sizes open it.
    """
    layer = Layer(name="x", costs=(LayerCost(device_type="t", forward_ns=1, input_grad_ns=1, weight_grad_ns=0),))
    profile = ModelProfile(name="p", layers=(layer,), edges=(), microbatch_size=2)
    whole = Workload(profile=profile).with_batch(16, (16,))
    with pytest.raises(ValueError, match=r"num_microbatches = 4, but microbatch_sizes = \[16\] keeps .*; leave"):
        whole.cut_into(4)
    assert whole.cut_into(1) == whole
    assert whole.with_batch(16, (4,)).cut_into(2).microbatch_sizes == (8,)


def test_a_number_that_does_not_divide_the_global_batch():
    """Tests that nobody is given another batch than that of the workload in silence."""
    layer = Layer(name="x", costs=(LayerCost(device_type="t", forward_ns=1, input_grad_ns=1, weight_grad_ns=0),))
    workload = Workload(
        profile=ModelProfile(name="p", layers=(layer,), edges=(), microbatch_size=2), global_batch_size=16
    )
    with pytest.raises(ValueError, match="num_microbatches = 3, but the workload's global batch of 16 samples cannot"):
        workload.cut_into(3)
