"""The tree of the exact search reaches every partition and mapping that the options allow, and no other."""

from solver_models.joint.search_space import make_space
from tests.planner.builders import make_layer, make_link, make_problem
from tests.solver_models.joint.test_partition_enumeration import Joint
from tests.solver_models.nets import Case


def permuted(joint: Joint, image: tuple[int, ...]) -> Joint:
    """The case with its devices permuted."""
    return joint[0], tuple(tuple(image[d] for d in group) for group in joint[1]), joint[2]


def test_many_layers_have_no_space():
    """Tests that a problem with more layers than bits is left to other methods."""
    searcher = Case(make_problem([make_layer(f"l{i}") for i in range(63)], [make_link("a b")]), ()).searcher
    assert make_space(searcher.instance) is None
