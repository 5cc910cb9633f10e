"""The rules of the order model: each is one sentence, one method and one family of constraints."""

from itertools import combinations, pairwise

from solver_models.instance import StageReplica
from solver_models.schedule.memory import MemoryRule
from solver_models.schedule.reachability import earliest_forwards
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
        "sends_of_an_action_keep_their_order",
        "memory_stays_within_budget",
        "objective_covers_every_replica",
        "device_needs_its_work",
    )

    def __init__(self, variables: Variables) -> None:
        self.model, self.instance, self.variables = variables.model, variables.instance, variables
        self.replicas = list(zip(self.instance.replicas, variables.replicas, strict=True))
        self.devices: dict[int, list[int]] = {}
        for number, replica in enumerate(self.instance.replicas):
            self.devices.setdefault(replica.device, []).append(number)

    def add_all(self) -> None:
        """Add durations, precedences, device orders, transfers and memory to the model."""
        for name in self.NAMES:
            getattr(self, name)()

    def microbatches_come_in_order(self) -> None:
        """A stage replica starts an action of a kind only after the same action of the microbatch before has ended."""
        queues = [tasks for _, own in self.replicas for tasks in (own.forward, own.backward, own.weight_grad)]
        for tasks in (*queues, *self.variables.sends.values()):
            for earlier, later in pairwise(tasks):
                self.model.add(earlier.end <= later.start)

    def backward_follows_forward(self) -> None:
        """I and B start after the F of their microbatch."""
        for _, own in self.replicas:
            for forward, backward in zip(own.forward, own.backward, strict=True):
                self.model.add(forward.end <= backward.start)

    def weight_grad_follows_input_grad(self) -> None:
        """W starts after its I, unless both are one B."""
        for _, own in self.replicas:
            for number, weight_grad in enumerate(own.weight_grad):
                rule = self.model.add(own.backward[number].end <= weight_grad.start)
                if own.fused:
                    rule.only_enforce_if(own.fused[number].negated())

    def device_runs_one_action_at_a_time(self) -> None:
        """Two actions of one device never overlap."""
        for replicas in self.devices.values():
            own = [self.variables.replicas[number] for number in replicas]
            tasks = [task for replica in own for task in (*replica.forward, *replica.backward, *replica.weight_grad)]
            self.model.add_no_overlap([task.interval for task in tasks])

    def transfer_follows_its_sender(self) -> None:
        """A transfer starts after the F, I or B whose result it carries."""
        for number, sends in self.variables.sends.items():
            transfer = self.instance.transfers[number]
            for microbatch, send in enumerate(sends):
                self.model.add(self.variables.ready(transfer, microbatch) <= send.start)

    def receiver_waits_for_arrival(self) -> None:
        """F starts after its inputs have arrived, I and B after their gradients."""
        for number, transfer in enumerate(self.instance.transfers):
            receiver = self.variables.replicas[transfer.receiver]
            for microbatch, task in enumerate(receiver.backward if transfer.is_backward else receiver.forward):
                self.model.add(self.variables.arrival(number, microbatch) <= task.start)

    def link_carries_one_transfer_at_a_time(self) -> None:
        """Two transfers never share a link; in which order they take it is left open."""
        transfers = self.instance.transfers
        for link in sorted(shared_links(self.instance)):
            queues = [sends for number, sends in self.variables.sends.items() if link in transfers[number].links]
            self.model.add_no_overlap([send.interval for sends in queues for send in sends])

    def sends_of_an_action_keep_their_order(self) -> None:
        """Of two transfers that get ready together, as one action's do, the one that is listed first takes a link."""
        transfers = self.instance.transfers
        for one, other in combinations(sorted(self.variables.sends), 2):
            first, second = transfers[one], transfers[other]
            is_same = (first.sender, first.is_backward) == (second.sender, second.is_backward)
            if is_same and not set(first.links).isdisjoint(second.links):
                for earlier, later in zip(self.variables.sends[one], self.variables.sends[other], strict=True):
                    self.model.add(earlier.end <= later.start)

    def memory_stays_within_budget(self) -> None:
        """What a device holds never exceeds its budget."""
        memory = MemoryRule(self.variables)
        for device, replicas in self.devices.items():
            memory.add(device, replicas)

    def objective_covers_every_replica(self) -> None:
        """The makespan covers every action, synchronisation and the tail; the span, the actions of every device."""
        for number in range(len(self.replicas)):
            starts = self._starts_before(number) if self.instance.objective == "span" else [0]
            for start in starts:
                self._cover(number, start=start)

    def _starts_before(self, number: int) -> list[object]:
        own = self.devices[self.instance.replicas[number].device]
        return [self.variables.replicas[other].forward[0].start for other in own]

    def _cover(self, number: int, *, start: object) -> None:
        replica, own = self.replicas[number]
        is_span = self.instance.objective == "span"
        extra = 0 if is_span else self.instance.synchronisation[replica.stage] + self.instance.tail
        self.model.add(self.variables.objective >= own.backward[-1].end + extra - start)
        if own.weight_grad and not own.fused:
            self.model.add(self.variables.objective >= own.weight_grad[-1].end + extra - start)
        for number_of, weight_grad in enumerate(own.weight_grad if own.fused else ()):
            rule = self.model.add(self.variables.objective >= weight_grad.end + extra - start)
            rule.only_enforce_if(own.fused[number_of].negated())

    def device_needs_its_work(self) -> None:
        """A device needs at least the sum of its actions (implied by the other rules; it lifts the bound at once)."""
        earliest = earliest_forwards(self.instance)
        for replicas in self.devices.values():
            need = self.instance.num_microbatches * sum(
                _least_work(self.instance.replicas[number]) for number in replicas
            )
            if self.instance.objective == "makespan":
                need += min(earliest[number] for number in replicas) + self.instance.tail
                need += min(self.instance.synchronisation[self.instance.replicas[number].stage] for number in replicas)
            self.model.add(self.variables.objective >= need)


def _least_work(replica: StageReplica) -> int:
    """Ticks that a microbatch takes at least on a stage replica."""
    split = replica.input_grad + (replica.weight_grad if replica.has_weight_grad else 0)
    return replica.forward + (min(split, replica.backward) if replica.has_weight_grad else split)
