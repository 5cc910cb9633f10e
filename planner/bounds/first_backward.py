"""What all devices hold at the least when a microbatch turns round: while a last layer runs an F of it."""

from planner.bounds.minimum_costs import Least


class FirstBackward:
    """What all devices hold while a last layer runs an F of a microbatch, cut evenly, in stages that are whole."""

    def __init__(self, least: Least) -> None:
        problem = least.problem
        self.least, self.waiting = least, _waiting_together(least)
        self.states = [min(each.state for each in least.residents(n).values()) for n in range(len(least.layers))]
        """Per layer what all devices together hold of its state, at the least."""
        self.replicas = range(1, problem.max_replicas + 1)
        self.is_alone = problem.options.max_stages_per_device == 1

    def held(self, number: int, left: int) -> int:
        """Of a layer that waits, beyond its state on one device, where an F leaves so many bytes of a microbatch.

        A device that holds one stage only has its replica's part of them at some time, and all parts are no less than
        the whole. Otherwise parts of several stages may come one after the other, whose replicas take different
        samples. Take a sample, then, and the time when the last layer has it: of a stage on r replicas the one that has
        the sample holds its part, an r-th on average over all samples, and all r hold the state.
        """
        shared, once = self.least.state_bytes[number], self.states[number]
        return min(
            (left if self.is_alone else left // replicas) + max(0, replicas * shared - once)
            for replicas in self.replicas
        )


def _waiting_together(least: Least) -> list[int]:
    """The layers that wait for a gradient from a last layer when it runs: of the last layer behind which most is held.

    It is among them. One microbatch is held in all of them then.
    """
    behind = [0] * len(least.layers)
    is_sink = [True] * len(least.layers)
    for number, edges in enumerate(_gradient_producers(least)):
        behind[number] = 1 << number
        for producer in edges:
            behind[number] |= behind[producer]
            is_sink[producer] = False
    sets = [
        [layer for layer in range(len(behind)) if behind[number] >> layer & 1]
        for number in range(len(behind))
        if is_sink[number]
    ]
    return max(sets, key=lambda layers: sum(least.held_bytes[layer] for layer in layers))


def _gradient_producers(least: Least) -> list[list[int]]:
    """Per layer: the layers it sends a gradient."""
    producers: list[list[int]] = [[] for _ in least.layers]
    for edge in least.problem.profile.edges:
        if edge.has_gradient:
            producers[least.index[edge.consumer]].append(least.index[edge.producer])
    return producers
