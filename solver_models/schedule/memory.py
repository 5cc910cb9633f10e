"""Memory on one device (contract, "Memory"): F takes at its start, I gives back in part at its end, W and B in full."""

from collections.abc import Iterator, Sequence

from ortools.sat.python.cp_model import IntervalVar

from solver_models.instance import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD, StageReplica
from solver_models.schedule.variables import ActionVariables, ReplicaTasks, Variables, is_counted, is_fused_always

Hold = tuple[IntervalVar, int]
"""Units that a device holds for some time."""


class MemoryRule:
    """Adds the memory of a device to a model.

    Every stash is an interval of variable length in a cumulative constraint; since a stage replica takes its
    microbatches in order, F(m) also waits for what frees the stash of m - K, where K stashes fit. A device with one
    stage replica whose stashes are all of one size needs no more than that.
    """

    def __init__(self, variables: Variables) -> None:
        self.model, self.instance, self.variables = variables.model, variables.instance, variables

    def add(self, device: int, numbers: Sequence[int]) -> None:
        """The rule for `device`, whose stage replicas have these numbers."""
        replicas = [(self.instance.replicas[number], self.variables.replicas[number]) for number in numbers]
        budget = self.instance.devices[device].memory
        if any(max(replica.held, replica.whole_backward) + replica.workspace > budget for replica, _ in replicas):
            self.model.add_bool_or([])  # not even one microbatch fits
            return
        for replica, own in replicas:
            self._wait_for_release(replica, own, budget=budget)
        if is_counted(self.instance, [replica for replica, _ in replicas]):
            return
        always = min(units for replica, own in replicas for _, units in self._running(replica, own))
        holds = [hold for number in numbers for hold in self._stashes(number)]
        holds += [hold for replica, own in replicas for hold in self._extras(replica, own, always=always)]
        holds += [hold for replica, own in replicas for hold in self._more_of_input_grads(replica, own)]
        if sum(units for _, units in holds) > budget - always:
            self.model.add_cumulative(
                [interval for interval, _ in holds], [units for _, units in holds], budget - always
            )

    def _wait_for_release(self, replica: StageReplica, own: ReplicaTasks, *, budget: int) -> None:
        """Until the end of I or B a microbatch holds `held`, until the end of W at least min(held, weight_stash)."""
        if replica.held:
            self._chain(own.forward, own.backward, most=(budget - replica.workspace) // replica.held)
        least = min(replica.held, replica.weight_stash)
        if least and own.weight_grad and not own.fused:
            self._chain(own.forward, own.weight_grad, most=(budget - replica.workspace) // least)

    def _chain(self, takers: Sequence[ActionVariables], givers: Sequence[ActionVariables], *, most: int) -> None:
        for taker, giver in zip(takers[most:], givers, strict=False):
            self.model.add(giver.end <= taker.start)

    def _stashes(self, number: int) -> Iterator[Hold]:
        """What each microbatch of a stage replica holds from the start of F to the end of I, and then to that of W."""
        replica, own = self.instance.replicas[number], self.variables.replicas[number]
        if own.weight_grad and not own.fused and replica.weight_stash == replica.held:
            yield from ((self._until_weight_grad(number, m), replica.held) for m in range(len(own.forward)))
            return
        for m in range(len(own.forward)):
            yield self._until_backward(number, m), replica.held
            if own.weight_grad:
                yield self._between(number, m), replica.weight_stash

    def _until_weight_grad(self, number: int, m: int) -> IntervalVar:
        replica, own = self.instance.replicas[number], self.variables.replicas[number]
        size = self.variables.number(
            f"{replica.stage}stash{m}",
            reader=lambda played: (
                played.weight_start(number, m) + replica.weight_grad - played.starts[FORWARD, number, m]
            ),
        )
        return self.model.new_interval_var(
            own.forward[m].start, size, own.weight_grad[m].end, f"{replica.stage}stash{m}"
        )

    def _until_backward(self, number: int, m: int) -> IntervalVar:
        replica, own = self.instance.replicas[number], self.variables.replicas[number]
        size = self.variables.number(
            f"{replica.stage}stash{m}",
            reader=lambda played: played.backward_end(number, m) - played.starts[FORWARD, number, m],
        )
        return self.model.new_interval_var(own.forward[m].start, size, own.backward[m].end, f"{replica.stage}stash{m}")

    def _between(self, number: int, m: int) -> IntervalVar:
        """Absent where I and W are one B."""
        replica, own = self.instance.replicas[number], self.variables.replicas[number]
        name, start, weight_grad = f"{replica.stage}kept{m}", own.backward[m].end, own.weight_grad[m]
        size = self.variables.number(name, reader=lambda played: played.kept(number, m))
        end = weight_grad.start + replica.weight_grad
        if not own.fused:
            return self.model.new_interval_var(start, size, end, name)
        return self.model.new_optional_interval_var(start, size, end, own.fused[m].negated(), name)

    def _extras(self, replica: StageReplica, own: ReplicaTasks, *, always: int) -> Iterator[Hold]:
        """What the actions themselves need while they run, beyond what any action of the device needs."""
        for tasks, units in self._running(replica, own):
            if units > always:
                yield from ((task.interval, units - always) for task in tasks)

    def _running(self, replica: StageReplica, own: ReplicaTasks) -> Iterator[tuple[Sequence[ActionVariables], int]]:
        """The actions of a stage replica, and what they need while they run beside the stashes; I or B what B needs, if
        it may be one.
        """
        back = BACKWARD if own.fused or is_fused_always(self.instance, replica) else INPUT_GRAD
        for kind, tasks in ((FORWARD, own.forward), (back, own.backward), (WEIGHT_GRAD, own.weight_grad)):
            if tasks:
                yield tasks, max(0, replica.extra(kind))

    def _more_of_input_grads(self, replica: StageReplica, own: ReplicaTasks) -> Iterator[Hold]:
        """What I needs more than B, where it is I."""
        more = replica.extra(INPUT_GRAD) - max(0, replica.extra(BACKWARD))
        for m, fused in enumerate(own.fused if more > 0 else ()):
            start, name = own.backward[m].start, f"{replica.stage}more{m}"
            yield (
                self.model.new_optional_fixed_size_interval_var(start, replica.input_grad, fused.negated(), name),
                more,
            )
