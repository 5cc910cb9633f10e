"""The master of branch-and-check as an integer programme: tests of solver_models/joint/master.py."""

from dataclasses import replace
from random import Random

from hypothesis import given, settings

from solver_models.joint.master import MasterProgramme
from solver_models.joint.search_space import make_space
from solver_models.local_search.search import Searcher
from tests.long_runs import examples
from tests.solver_models.exact_order.test_lower_bounds import listed, randoms
from tests.solver_models.joint.test_partition_enumeration import small_problem
from tests.solver_models.nets import Case

SLACK = 1.00001
"""What the bound of the integer programme, lowered by its tolerance and rounded down, may be off, beside one tick."""


MOST_COLUMNS = 40
"""Columns of a master that is solved by cuts alone: with many cases that do not fit it takes thousands of rounds."""


def solve_by_cuts(master: MasterProgramme, searcher: Searcher, *, most_rounds: int) -> tuple[int, int]:
    """The least floor of all cases, found by the master and cuts alone, and the rounds that took."""
    for rounds in range(1, most_rounds + 1):
        found = master.solve()
        if found is None or found.case is None:
            break
        bound, case = found.bound, found.case
        candidate = searcher.make_candidate(case.stage_of, case.groups, modes=case.modes)
        floor = searcher.exact_lower_bound(candidate)
        if floor is not None and floor <= bound * SLACK + 1:
            return floor, rounds
        if floor is None:
            master.forbid(case)
        else:
            master.cut(case, floor)
    raise AssertionError(f"no case was reached in {most_rounds} rounds")


@settings(max_examples=examples(15))
@given(randoms)
def test_master_and_tree_agree(rng: Random):
    """Tests that the integer programme, told the floors of what it proposes, ends at the least floor of the tree."""
    problem = small_problem(rng, may_recompute=False)
    problem = replace(problem, options=replace(problem.options, objective="makespan"))
    searcher = Case(problem, ()).searcher
    space = make_space(searcher.instance)
    assert space is not None
    cases = listed(searcher)
    master = MasterProgramme(searcher, space)
    if cases and len(cases) < 60 and len(master.columns) <= MOST_COLUMNS:
        value, _ = solve_by_cuts(master, searcher, most_rounds=400)
        assert cases[0].lower_bound <= value <= cases[0].lower_bound * SLACK + 1
