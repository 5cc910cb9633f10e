"""Which devices of a class the stages get: the next ones, so that neighbours in the cluster stay neighbours."""

import numpy as np

from solver_models.instance import Integers
from solver_models.partition.partition_instance import Interval, PartitionInstance


def assign_devices(
    instance: PartitionInstance, stages: tuple[Interval, ...]
) -> tuple[Integers, tuple[tuple[int, ...], ...]]:
    """[L] stage of every layer, and the devices of every stage."""
    free = [part.tolist() for part in np.split(instance.devices, np.cumsum(instance.count)[:-1])]
    stage_of = np.zeros(instance.num_layers, np.int64)
    groups = []
    for number, stage in enumerate(stages):
        stage_of[stage.first : stage.end] = number
        own = free[stage.device_class]
        groups.append(tuple(own[: stage.replicas]))
        del own[: stage.replicas]
    return stage_of, tuple(groups)
