"""PipeDream's graph.txt, on a drawing small enough to check by hand.

Input0 -> Embedding -> LSTM -> [0] -> Add -> Linear
hidden -----------------^ |             ^
                          +-> [1]   Embedding
"""

import pytest

from profiles.importers.pipedream import import_pipedream, is_pipedream
from profiles.model_profile import Edge, Layer, LayerCost


def line(node: str, description: str, *figures: object) -> str:
    names = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
    return f"{node} -- {description} -- " + ", ".join(f"{a}={b}" for a, b in zip(names, figures, strict=True))


NODES = [
    line("node10", "Linear(in_features=2, out_features=3)", "1.500", "0.001", "12.0", "24.000"),
    line("node1", "Input0", "635.902", "0.000", "0.0", "0.000"),
    line("node2", "Embedding(9, 2, padding_idx=0)", "0.073", "6.949", "8.0", "72.000"),
    line("node3", "hidden", "0.000", "0.000", "0.0", "0.000"),
    line("node4", "LSTM(2, 2)", "3.190", "5.348", "[8.0; 2.0; 1.0]", "36.000") + " -- stage_id=2",
    line("node5", "__getitem__(0)", "0.000", "0.000", "8.0", "0.000"),
    line("node6", "__getitem__(1)", "0.000", "0.000", "2.0", "0.000"),
    line("node7", "Add -- of both", "0.010", "0.020", "8.0", "0.000"),
]
EDGES = ["1 2", "2 4", "3 4", "4 5", "4 6", "5 7", "2 7", "7 10", "7 10"]
GRAPH = "\n".join([*NODES, *("\tnode{} -- node{}".format(*edge.split()) for edge in EDGES), ""])


def refusal_of(text: str) -> str:
    with pytest.raises(ValueError, match=r"^net/graph\.txt: ") as caught:
        import_pipedream(text, source="net/graph.txt")
    return str(caught.value)


def test_layers():
    """Tests that nodes become layers in the order of their numbers, without data loading and unused outputs."""
    profile = import_pipedream(GRAPH, source="models/net/graph.txt", device_type="V100").profile

    def layer(name: str, times: tuple[int, int, int], *, parameters: int = 0, output: int = 0) -> Layer:
        forward, input_grad, weight_grad = times
        cost = LayerCost(device_type="V100", forward_ns=forward, input_grad_ns=input_grad, weight_grad_ns=weight_grad)
        return Layer(
            name=name,
            costs=(cost,),
            parameter_bytes=parameters,
            state_bytes=3 * parameters,
            stash_bytes=output,
            weight_stash_bytes=output if parameters else 0,
        )

    assert profile.name == "net"
    assert profile.layers == (
        layer("node2:Embedding(9, 2, padding_idx=0)", (73_000, 3_474_500, 3_474_500), parameters=72, output=8),
        layer("node3:hidden", (0, 0, 0)),
        layer("node4:LSTM(2, 2)", (3_190_000, 2_674_000, 2_674_000), parameters=36, output=11),
        layer("node5:__getitem__(0)", (0, 0, 0), output=8),
        layer("node7:Add -- of both", (10_000, 20_000, 0), output=8),
        layer("node10:Linear(in_features=2, out_features=3)", (1_500_000, 500, 500), parameters=24, output=12),
    )


def test_edges():
    """Tests that edges carry their producer's output, once, and that those of nodes left out are gone."""
    profile = import_pipedream(GRAPH, source="graph.txt").profile
    names = {layer.name.partition(":")[0]: layer.name for layer in profile.layers}
    expected = [("node2", "node4", 8), ("node2", "node7", 8), ("node3", "node4", 0), ("node4", "node5", 11),
                ("node5", "node7", 8), ("node7", "node10", 8)]  # fmt: skip
    assert profile.edges == tuple(Edge(producer=names[a], consumer=names[b], bytes=size) for a, b, size in expected)


def test_workload_is_a_profile_only():
    """Tests that graph.txt states neither cluster nor microbatches, and that its assumptions are told."""
    workload = import_pipedream(GRAPH, source="net/graph.txt")
    assert (workload.cluster, workload.num_microbatches, workload.options) == (None, None, {})
    assert workload.profile.layers[0].costs[0].device_type == "reference"
    assert "PipeDream graph.txt of net, without its Input nodes" in workload.profile.provenance


@pytest.mark.parametrize(
    ("source", "name"),
    [("a/vgg16/graph.txt", "vgg16"), ("vgg16.txt", "vgg16"), ("graph.txt", "graph"), ("<stdin>", "<stdin>")],
)
def test_name(source: str, name: str):
    """Tests that the model is called after its file, or after the folder of a file called graph."""
    assert import_pipedream(GRAPH, source=source).profile.name == name


def test_long_descriptions_are_cut():
    """Tests that a name holds at most sixty characters of the description."""
    profile = import_pipedream(line("node1", "x" * 500, 1, 1, 1, 1), source="graph.txt").profile
    assert profile.layers[0].name == "node1:" + "x" * 60


def test_line_ends_of_windows():
    """Tests that carriage returns do not matter."""
    assert import_pipedream(GRAPH.replace("\n", "\r\n"), source="g") == import_pipedream(GRAPH, source="g")


def test_recognition():
    """Tests that a graph.txt is known by its first line and JSON never is."""
    assert is_pipedream(GRAPH)
    assert is_pipedream("\n\n" + GRAPH)
    assert not is_pipedream('{"a": " -- x -- forward_compute_time=1"}')
    assert not is_pipedream("node1 -- node2")
    assert not is_pipedream("")


@pytest.mark.parametrize(
    ("wrong", "right", "message"),
    [
        ("0.073", "fast", 'line 3: forward_compute_time = "fast" is not a number; give a finite number of at least 0'),
        ("0.073", "-1", 'line 3: forward_compute_time = "-1" is not a number'),
        ("0.073", "nan", 'line 3: forward_compute_time = "nan" is not a number'),
        ("0.073", "1e999", 'line 3: forward_compute_time = "1e999" is not a number'),
        ("[8.0; 2.0; 1.0]", "[8.0; ?]", 'line 5: activation_size = "[8.0; ?]" is not a number'),
        (", parameter_size=72.000", "", "line 3: parameter_size is missing; add parameter_size=NUMBER"),
        ("\tnode7 -- node10", "\tnode7 -- node99", 'line 16: no node is called "node99"; add it or correct the name'),
        ("node3 -- hidden", "node2 -- hidden", 'line 4: "node2" occurs twice; give every node its own name'),
        (
            "\tnode5 -- node7",
            "\tnode5",
            'line 14: "\\tnode5" is neither a node nor an edge; correct or',
        ),
        ("\tnode5 -- node7", "\tnode7 -- node2", "the edges form a cycle"),
        ("0.073", "1e200", "out of range; give an integer from 0 to"),
    ],
)
def test_message(wrong: str, right: str, message: str):
    """Tests that a bad line is refused with file, line, value and remedy."""
    assert message in refusal_of(GRAPH.replace(wrong, right))


def classifier(output_bytes: int) -> str:
    """A graph of a convolution and a Linear for ten classes that gives so many bytes."""
    first = line("node1", "Conv2d(3, 64, kernel_size=(3, 3))", 1, 1, 1, 1)
    return first + "\n" + line("node2", "Linear(in_features=64, out_features=10, bias=True)", 1, 1, output_bytes, 1)


def test_samples_of_a_classifier():
    """Tests that the size of the minibatch is read off the classifier's output, and left open where it is not whole."""
    profile = import_pipedream(classifier(4 * 10 * 32), source="net.txt").profile
    assert (profile.microbatch_size, profile.scaling) == (32, "linear")
    assert "32 samples, as the output of its last Linear" in profile.provenance
    assert import_pipedream(classifier(4 * 10 * 32 + 4), source="net.txt").profile.microbatch_size is None
    assert import_pipedream(classifier(0), source="net.txt").profile.microbatch_size is None


def test_samples_of_other_models_stay_open():
    """Tests that a Linear without convolutions before it says nothing: tokens may lie beside the samples."""
    text = line("node1", "Linear(in_features=64, out_features=10, bias=True)", 1, 1, 1280, 1)
    assert import_pipedream(text, source="net.txt").profile.microbatch_size is None
