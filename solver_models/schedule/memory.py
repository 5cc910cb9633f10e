"""Memory on one device (contract, "Memory"): F takes at its start, I gives back in part at its end, W and B in full."""

from collections.abc import Iterator, Sequence

from ortools.sat.python.cp_model import IntervalVar

from solver_models.instance import BACKWARD, FORWARD, INPUT_GRAD, WEIGHT_GRAD, StageReplica
from solver_models.schedule.variables import ActionVariables, LaneTasks, Variables, is_counted, is_fused_always

Hold = tuple[IntervalVar, int]
"""Units that a device holds for some time."""


class MemoryRule:
    """Adds the memory of a device to a model.

    Every stash is an interval of variable length in a cumulative constraint; since a lane takes its microbatches in
    order, F(m) also waits for what frees the stash of m - K, where K stashes fit. A device with one lane whose stashes
    are all of one size needs no more than that.
    """

    def __init__(self, variables: Variables) -> None:
        self.model, self.instance, self.variables = variables.model, variables.instance, variables

    def add(self, device: int, numbers: Sequence[int]) -> None:
        """The rule for `device`, whose lanes have these numbers."""
        lanes = [(self.instance.lanes[number], self.variables.lanes[number]) for number in numbers]
        budget = self.instance.budgets[device]
        if any(max(lane.held, lane.whole_backward) + lane.workspace > budget for lane, _ in lanes):
            self.model.add_bool_or([])  # not even one microbatch fits
            return
        for lane, own in lanes:
            self._wait_for_release(lane, own, budget=budget)
        if is_counted(self.instance, [lane for lane, _ in lanes]):
            return
        always = min(units for lane, own in lanes for _, units in self._running(lane, own))
        holds = [hold for number in numbers for hold in self._stashes(number)]
        holds += [hold for lane, own in lanes for hold in self._extras(lane, own, always=always)]
        holds += [hold for lane, own in lanes for hold in self._more_of_input_grads(lane, own)]
        if sum(units for _, units in holds) > budget - always:
            self.model.add_cumulative(
                [interval for interval, _ in holds], [units for _, units in holds], budget - always
            )

    def _wait_for_release(self, lane: StageReplica, own: LaneTasks, *, budget: int) -> None:
        """Until the end of I or B a microbatch holds `held`, until the end of W at least min(held, weight_stash)."""
        if lane.held:
            self._chain(own.forward, own.backward, most=(budget - lane.workspace) // lane.held)
        least = min(lane.held, lane.weight_stash)
        if least and own.weight_grad and not own.fused:
            self._chain(own.forward, own.weight_grad, most=(budget - lane.workspace) // least)

    def _chain(self, takers: Sequence[ActionVariables], givers: Sequence[ActionVariables], *, most: int) -> None:
        for taker, giver in zip(takers[most:], givers, strict=False):
            self.model.add(giver.end <= taker.start)

    def _stashes(self, number: int) -> Iterator[Hold]:
        """What each microbatch of a lane holds from the start of F to the end of I, and from there to the end of W."""
        lane, own = self.instance.lanes[number], self.variables.lanes[number]
        if own.weight_grad and not own.fused and lane.weight_stash == lane.held:
            yield from ((self._until_weight_grad(number, m), lane.held) for m in range(len(own.forward)))
            return
        for m in range(len(own.forward)):
            yield self._until_backward(number, m), lane.held
            if own.weight_grad:
                yield self._between(number, m), lane.weight_stash

    def _until_weight_grad(self, number: int, m: int) -> IntervalVar:
        lane, own = self.instance.lanes[number], self.variables.lanes[number]
        size = self.variables.number(
            f"{lane.stage}stash{m}",
            reader=lambda played: played.weight_start(number, m) + lane.weight_grad - played.starts[FORWARD, number, m],
        )
        return self.model.new_interval_var(own.forward[m].start, size, own.weight_grad[m].end, f"{lane.stage}stash{m}")

    def _until_backward(self, number: int, m: int) -> IntervalVar:
        lane, own = self.instance.lanes[number], self.variables.lanes[number]
        size = self.variables.number(
            f"{lane.stage}stash{m}",
            reader=lambda played: played.backward_end(number, m) - played.starts[FORWARD, number, m],
        )
        return self.model.new_interval_var(own.forward[m].start, size, own.backward[m].end, f"{lane.stage}stash{m}")

    def _between(self, number: int, m: int) -> IntervalVar:
        """Absent where I and W are one B."""
        lane, own = self.instance.lanes[number], self.variables.lanes[number]
        name, start, weight_grad = f"{lane.stage}kept{m}", own.backward[m].end, own.weight_grad[m]
        size = self.variables.number(name, reader=lambda played: played.kept(number, m))
        end = weight_grad.start + lane.weight_grad
        if not own.fused:
            return self.model.new_interval_var(start, size, end, name)
        return self.model.new_optional_interval_var(start, size, end, own.fused[m].negated(), name)

    def _extras(self, lane: StageReplica, own: LaneTasks, *, always: int) -> Iterator[Hold]:
        """What the actions themselves need while they run, beyond what any action of the device needs."""
        for tasks, units in self._running(lane, own):
            if units > always:
                yield from ((task.interval, units - always) for task in tasks)

    def _running(self, lane: StageReplica, own: LaneTasks) -> Iterator[tuple[Sequence[ActionVariables], int]]:
        """The actions of a lane, and what they need while they run beside the stashes; I or B what B needs, if it may
        be one.
        """
        back = BACKWARD if own.fused or is_fused_always(self.instance, lane) else INPUT_GRAD
        for kind, tasks in ((FORWARD, own.forward), (back, own.backward), (WEIGHT_GRAD, own.weight_grad)):
            if tasks:
                yield tasks, max(0, lane.extra(kind))

    def _more_of_input_grads(self, lane: StageReplica, own: LaneTasks) -> Iterator[Hold]:
        """What I needs more than B, where it is I."""
        more = lane.extra(INPUT_GRAD) - max(0, lane.extra(BACKWARD))
        for m, fused in enumerate(own.fused if more > 0 else ()):
            start, name = own.backward[m].start, f"{lane.stage}more{m}"
            yield self.model.new_optional_fixed_size_interval_var(start, lane.input_grad, fused.negated(), name), more
