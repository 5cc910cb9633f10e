"""Compiled: tests of solver_models/partition/interval_kernels.py."""

import numpy as np

from solver_models.partition.dynamic import Partitioner
from solver_models.partition.ilp import IntervalProgram
from solver_models.partition.interval_kernels import columns
from tests.solver_models.partitions import make_instance


def test_interval_programmes_are_arrays():
    """Tests that a large interval programme has an entry per stage and rule, without an object per column."""
    instance = make_instance(120, (8,), table_of_replicas=np.zeros(9, np.int64))
    own = Partitioner(instance)
    table = columns(own.tables, own.ceiling(), np.ones(9, np.int64))
    program = IntervalProgram(instance, table)
    model = program.make_model(is_relaxed=False)
    assert len(table) > 20_000
    assert model.num_col_ == len(program.stage) == len(table)
    assert len(model.a_matrix_.value_) == 3 * len(table)
    assert model.num_row_ == 121 + 1
