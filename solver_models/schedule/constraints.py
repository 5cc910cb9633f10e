"""The rules of the order model: each is one sentence, one method and one family of constraints."""

from itertools import pairwise

from solver_models.instance import StageReplica
from solver_models.schedule.memory import MemoryRule
from solver_models.schedule.reachability import earliest_forwards, leading_lanes
from solver_models.schedule.variables import Variables, shared_links


class Rules:
    """Adds the rules to a model; `NAMES` lists them."""

    NAMES = (
        "microbatches_come_in_order",
        "backward_follows_forward",
        "weight_grad_follows_input_grad",
        "device_runs_one_action_at_a_time",
        "transfer_follows_its_sender",
        "receiver_waits_for_arrival",
        "link_carries_one_transfer_at_a_time",
        "memory_stays_within_budget",
        "objective_covers_every_lane",
        "device_starts_as_early_as_it_can",
        "device_needs_its_work",
    )

    def __init__(self, variables: Variables) -> None:
        self.model, self.instance, self.variables = variables.model, variables.instance, variables
        self.lanes = list(zip(self.instance.lanes, variables.lanes, strict=True))
        self.devices: dict[int, list[int]] = {}
        for number, lane in enumerate(self.instance.lanes):
            for device in lane.devices:
                self.devices.setdefault(device, []).append(number)

    def add_all(self) -> None:
        """Every rule."""
        for name in self.NAMES:
            getattr(self, name)()

    def microbatches_come_in_order(self) -> None:
        """A lane starts an action of a kind only after the same action of the microbatch before has ended."""
        queues = [tasks for _, own in self.lanes for tasks in (own.forward, own.backward, own.weight_grad)]
        for tasks in (*queues, *self.variables.sends.values()):
            for earlier, later in pairwise(tasks):
                self.model.add(earlier.end <= later.start)

    def backward_follows_forward(self) -> None:
        """I and B start after the F of their microbatch."""
        for _, own in self.lanes:
            for forward, backward in zip(own.forward, own.backward, strict=True):
                self.model.add(forward.end <= backward.start)

    def weight_grad_follows_input_grad(self) -> None:
        """W starts after its I, unless both are one B."""
        for _, own in self.lanes:
            for number, weight_grad in enumerate(own.weight_grad):
                rule = self.model.add(own.backward[number].end <= weight_grad.start)
                if own.fused:
                    rule.only_enforce_if(own.fused[number].negated())

    def device_runs_one_action_at_a_time(self) -> None:
        """Two actions of one device never overlap."""
        for lanes in self.devices.values():
            own = [self.variables.lanes[number] for number in lanes]
            tasks = [task for lane in own for task in (*lane.forward, *lane.backward, *lane.weight_grad)]
            self.model.add_no_overlap([task.interval for task in tasks])

    def transfer_follows_its_sender(self) -> None:
        """A transfer starts after the F, I or B whose result it carries."""
        for number, sends in self.variables.sends.items():
            flow = self.instance.flows[number]
            for microbatch, send in enumerate(sends):
                self.model.add(self.variables.ready(flow, microbatch) <= send.start)

    def receiver_waits_for_arrival(self) -> None:
        """F starts after its inputs have arrived, I and B after their gradients."""
        for number, flow in enumerate(self.instance.flows):
            receiver = self.variables.lanes[flow.receiver]
            for microbatch, task in enumerate(receiver.backward if flow.is_backward else receiver.forward):
                self.model.add(self.variables.arrival(number, microbatch) <= task.start)

    def link_carries_one_transfer_at_a_time(self) -> None:
        """Two transfers never share a link; in which order they take it is left open."""
        flows = self.instance.flows
        for link in sorted(shared_links(self.instance)):
            queues = [sends for number, sends in self.variables.sends.items() if link in flows[number].links]
            self.model.add_no_overlap([send.interval for sends in queues for send in sends])

    def memory_stays_within_budget(self) -> None:
        """What a device holds never exceeds its budget."""
        memory = MemoryRule(self.variables)
        for device, lanes in self.devices.items():
            memory.add(device, lanes)

    def objective_covers_every_lane(self) -> None:
        """The makespan covers every action, synchronisation and the tail; the span, the actions of every device."""
        for number in range(len(self.lanes)):
            starts = self._starts_before(number) if self.instance.objective == "span" else [0]
            for start in starts:
                self._cover(number, start=start)

    def _starts_before(self, number: int) -> list[object]:
        lanes = {other for device in self.instance.lanes[number].devices for other in self.devices[device]}
        return [self.variables.lanes[other].forward[0].start for other in sorted(lanes)]

    def _cover(self, number: int, *, start: object) -> None:
        lane, own = self.lanes[number]
        is_span = self.instance.objective == "span"
        extra = 0 if is_span else self.instance.synchronisation[lane.stage] + self.instance.tail
        self.model.add(self.variables.objective >= own.backward[-1].end + extra - start)
        if own.weight_grad and not own.fused:
            self.model.add(self.variables.objective >= own.weight_grad[-1].end + extra - start)
        for number_of, weight_grad in enumerate(own.weight_grad if own.fused else ()):
            rule = self.model.add(self.variables.objective >= weight_grad.end + extra - start)
            rule.only_enforce_if(own.fused[number_of].negated())

    def device_starts_as_early_as_it_can(self) -> None:
        """Where the span counts, the first F of a device starts when its inputs arrive: nothing may wait by choice."""
        if self.instance.objective != "span":
            return
        for number in leading_lanes(self.instance):
            inputs = [
                n for n, flow in enumerate(self.instance.flows) if flow.receiver == number and not flow.is_backward
            ]
            first = self.variables.lanes[number].forward[0].start
            self.model.add_max_equality(first, [0, *(self.variables.arrival(n, 0) for n in inputs)])

    def device_needs_its_work(self) -> None:
        """A device needs at least the sum of its actions (implied by the other rules; it lifts the bound at once)."""
        for lanes in self.devices.values():
            need = self.instance.num_microbatches * sum(_least_work(self.instance.lanes[number]) for number in lanes)
            if self.instance.objective == "makespan":
                need += self._fill(lanes) + self.instance.tail
                need += min(self.instance.synchronisation[self.instance.lanes[number].stage] for number in lanes)
            self.model.add(self.variables.objective >= need)

    def _fill(self, lanes: list[int]) -> int:
        """Ticks before any of these lanes can have its first input."""
        return min(earliest_forwards(self.instance)[number] for number in lanes)


def _least_work(lane: StageReplica) -> int:
    """Ticks that a microbatch takes at least on a lane."""
    split = lane.input_grad + (lane.weight_grad if lane.has_weight_grad else 0)
    return lane.forward + (min(split, lane.backward) if lane.has_weight_grad else split)
