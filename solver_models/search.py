"""The joint local search: simulated annealing over partition, mapping and policy, then over the words themselves.

Every step is evaluated by playing the whole iteration (`kernels.play`); both loops run inside compiled code.
"""

from collections import deque
from dataclasses import dataclass, replace

import numpy as np

from solver_models.compiled import kernel
from solver_models.instance import FORWARD, INPUT_GRAD, WEIGHT_GRAD, Instance, Integers, Word
from solver_models.kernels import FAR, MICROBATCHES, TAIL, Layers, Net, Policy, assemble, peak_excess, play
from solver_models.moves import CAP_OFFSET, CAP_SLOPE, LAG, MODE, is_allowed, neighbour
from solver_models.orders import best_order, legal_words

PENALTY = 1 << 56
"""Added to the objective of a candidate that does not fit into memory."""


@kernel
def make_policy(net, knobs, num_stages):
    """The policy that four knobs stand for."""
    num_lanes, num_devices = net.lane_stage.shape[0], net.budget.shape[0]
    cap = np.empty(num_lanes, np.int64)
    for n in range(num_lanes):
        cap[n] = max(1, knobs[CAP_SLOPE] * (num_stages - net.lane_stage[n]) // 4 + knobs[CAP_OFFSET])
    return Policy(cap, np.full(num_devices, knobs[LAG]), np.full(num_devices, knobs[MODE]))


@kernel
def net_floor(net):
    """No order of this net is faster: per device, the least head of its lanes + their work + their least synchronisation.

    A lane's head is the longest chain of forwards and transfers before its first F.
    """
    num_lanes = net.lane_stage.shape[0]
    head = np.zeros(num_lanes, np.int64)
    floor = np.int64(0)
    for n in range(num_lanes):  # lanes are ordered by stage, and forward flows lead to later stages
        leave = head[n] + net.duration[n, 0]
        for f in range(net.flow_start[2 * n], net.flow_start[2 * n + 1]):
            head[net.flow_target[f]] = max(head[net.flow_target[f]], leave + net.flow_duration[f])
    for d in range(net.budget.shape[0]):
        work, least_head, least_end = np.int64(0), FAR, FAR
        for k in range(net.device_start[d], net.device_start[d + 1]):
            n = net.device_lanes[k]
            backward = net.duration[n, 1]
            if net.has_weight[n]:
                backward = min(net.duration[n, 1] + net.duration[n, 2], net.duration[n, 3])
            work += net.scalars[MICROBATCHES] * (net.duration[n, 0] + backward)
            least_head = min(least_head, head[n])
            least_end = min(least_end, net.synchronisation[net.lane_stage[n]])
        if work > 0:
            floor = max(floor, least_head + work + least_end)
    return floor + net.scalars[TAIL]


@kernel
def overflow(net):
    """Units by which a device cannot even hold one microbatch of its largest lane; 0 if all can."""
    worst = np.int64(0)
    for n in range(net.lane_stage.shape[0]):
        need = max(net.held[n], net.stash[n]) + net.workspace[n]
        worst = max(worst, need - net.budget[net.lane_device[n]])
    return worst


@kernel
def longest_word(net):
    """Room that the words of a net need."""
    longest = 1
    for d in range(net.budget.shape[0]):
        longest = max(longest, 3 * net.scalars[0] * (net.device_start[d + 1] - net.device_start[d]))
    return longest


@kernel
def evaluate(layers, stage_of, start, devices, recompute, knobs, threshold, by_span):
    """(objective, sum of last ends) of a candidate; anything from `threshold` on may be an underestimate."""
    net = assemble(layers, stage_of, start, devices, recompute)
    excess = overflow(net)
    if excess > 0:
        return PENALTY + excess, PENALTY
    if not by_span:
        floor = net_floor(net)
        if floor >= threshold:
            return floor, floor
    words = np.empty((net.budget.shape[0], longest_word(net)), np.int32)
    lengths = np.zeros(net.budget.shape[0], np.int64)
    makespan, span, total = play(net, make_policy(net, knobs, start.shape[0] - 1), words, lengths, False)
    if makespan == FAR:
        return PENALTY * 2, PENALTY
    return (span if by_span else makespan), total


@kernel
def anneal(layers, rules, pinned, stage_of, start, devices, recompute, knobs, iterations, heat, seed, by_span):
    """`iterations` steps of simulated annealing; `heat` = first and last temperature as parts of the objective.

    Returns the best candidate and its objective.
    """
    np.random.seed(seed)
    value, total = evaluate(layers, stage_of, start, devices, recompute, knobs, FAR, by_span)
    best = (stage_of, start, devices, recompute, knobs)
    best_value = value
    for step in range(iterations):
        temperature = heat[0] * (heat[1] / heat[0]) ** (step / iterations)
        allowance = np.int64(-np.log(1 - np.random.random()) * temperature * min(value, PENALTY // 4))
        a, b, c, d, e = neighbour(layers, rules, stage_of, start, devices, recompute, knobs)
        if not is_allowed(layers, rules, pinned, a, b, c):
            continue
        new_value, new_total = evaluate(layers, a, b, c, d, e, value + allowance + 1, by_span)
        if new_value < value + allowance or (new_value == value and new_total <= total):
            stage_of, start, devices, recompute, knobs = a, b, c, d, e
            value, total = new_value, new_total
            if value < best_value:
                best_value = value
                best = (stage_of, start, devices, recompute, knobs)
    return best[0], best[1], best[2], best[3], best[4], best_value


@kernel
def word_is_legal(net, words, lengths, d):
    """Whether the word of device d keeps F before I before W in every lane, and its memory."""
    count = np.zeros((net.lane_stage.shape[0], 3), np.int64)
    held = np.int64(0)
    for x in range(lengths[d]):
        n, kind = words[d, x] >> 2, words[d, x] & 3
        peak = net.workspace[n]
        if kind == 0:
            count[n, 0] += 1
            held += net.held[n]
            peak += held
        elif kind == 2:
            if count[n, 2] >= count[n, 1]:
                return False
            count[n, 2] += 1
            peak += held
            held -= net.weight_stash[n]
        else:
            if count[n, 1] >= count[n, 0]:
                return False
            count[n, 1] += 1
            count[n, 2] += kind == 3
            peak += held + net.stash[n] - net.held[n]
            held += (net.weight_stash[n] if kind == 1 else 0) - net.held[n]
        if peak > net.budget[d]:
            return False
    return True


@kernel
def rotate(word, i, j):
    """Take the action at i out and put it in at j."""
    code = word[i]
    step = 1 if j > i else -1
    for x in range(i, j, step):
        word[x] = word[x + step]
    word[j] = code


@kernel
def polish(net, words, lengths, iterations, heat, seed, by_span):
    """Local search on the words of a net, in place: move one action at a time, keep what is not worse.

    Returns the best (objective, sum of last ends); `words` hold the best order found.
    """
    np.random.seed(seed)
    no_policy = Policy(np.zeros(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.int64))
    makespan, span, total = play(net, no_policy, words, lengths, True)
    value = span if by_span else makespan
    best_value, best_total, best_words = value, total, words.copy()
    users = np.nonzero(lengths > 1)[0]
    for step in range(iterations):
        d = users[np.random.randint(users.shape[0])]
        i = np.random.randint(lengths[d])
        reach = 1
        while reach < lengths[d] and np.random.random() < 0.6:
            reach += 1 + reach // 2
        j = i + (np.random.randint(reach) + 1) * (1 if np.random.random() < 0.5 else -1)
        j = min(max(j, 0), lengths[d] - 1)
        if i == j or words[d, i] == words[d, j]:
            continue
        rotate(words[d], i, j)
        accepted = False
        if word_is_legal(net, words, lengths, d):
            makespan, span, new_total = play(net, no_policy, words, lengths, True)
            new_value = span if by_span else makespan
            if new_value < FAR:
                slack = np.int64(-np.log(1 - np.random.random()) * heat * value)
                accepted = new_value < value + slack or (new_value <= value and new_total <= total)
        if not accepted:
            rotate(words[d], j, i)
            continue
        value, total = new_value, new_total
        if value < best_value or (value == best_value and total < best_total):
            best_value, best_total = value, total
            best_words[:] = words
    words[:] = best_words
    return best_value, best_total


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A joint plan as the search sees it."""

    stage_of: Integers
    """[L] stage of every layer, in topological order."""
    groups: tuple[tuple[int, ...], ...]
    """Devices of every stage."""
    recompute: Integers
    """[S] 1 where the stage recomputes."""
    knobs: Integers
    """[4] list-scheduling policy."""
    objective: int
    """Ticks, as far as the search knows; at least PENALTY if it does not fit into memory or deadlocks."""
    words: dict[int, Word] | None = None
    """Orders found by polishing; None: those of the policy."""

    @property
    def is_feasible(self) -> bool:
        """Whether it fits into memory and plays to its end."""
        return self.objective < PENALTY


STANDARD_KNOBS = tuple(
    np.array(knobs, dtype=np.int64)
    for knobs in (
        (4, 0, 0, 0),  # 1F1B: as many in flight as there are stages left
        (4, 0, 1 << 20, 0),  # W only where nothing else can run
        (8, 0, 1 << 20, 0),  # twice the memory
        (6, 1, 1 << 20, 4),
        (0, 1 << 20, 1 << 20, 0),  # as much as the memory takes
        (4, 1, 1, 4),
        (0, 1 << 20, 0, 2),  # GPipe
        (4, 0, 0, 1),
    )
)
"""Policies every candidate is tried with first."""


class Searcher:
    """The compiled search on one instance."""

    def __init__(self, instance: Instance) -> None:
        self.instance = instance
        self.by_span = instance.objective == "span"
        self.layers = make_layers(instance)
        self.rules = make_rules(instance)

    def rate(self, stage_of: Integers, groups: tuple[tuple[int, ...], ...], *, recompute: Integers | None = None) -> Candidate:
        """The candidate with the best of the standard policies; at least 4 x PENALTY if it breaks a rule."""
        flags = np.zeros(len(groups), np.int64) if recompute is None else recompute
        start, devices = _flatten(groups)
        if not is_allowed(self.layers, self.rules, self.instance.pinned, stage_of, start, devices):
            knobs = STANDARD_KNOBS[0]
            return Candidate(stage_of=stage_of, groups=groups, recompute=flags, knobs=knobs, objective=4 * PENALTY)
        best: tuple[int, Integers] | None = None
        for knobs in STANDARD_KNOBS:
            value, _ = evaluate(self.layers, stage_of, start, devices, flags, knobs, FAR, self.by_span)
            if best is None or value < best[0]:
                best = int(value), knobs
            if value >= PENALTY and value < 2 * PENALTY:
                break
        assert best is not None
        return Candidate(stage_of=stage_of, groups=groups, recompute=flags, knobs=best[1], objective=best[0])

    def is_allowed(self, candidate: Candidate) -> bool:
        """Whether the candidate keeps the rules of the instance."""
        start, devices = _flatten(candidate.groups)
        return bool(is_allowed(self.layers, self.rules, self.instance.pinned, candidate.stage_of, start, devices))

    def anneal(self, candidate: Candidate, *, iterations: int, heat: tuple[float, float], seed: int) -> Candidate:
        """Anneal from `candidate`; releases the interpreter lock, so that several can run at once."""
        start, devices = _flatten(candidate.groups)
        stage_of, start, devices, recompute, knobs, value = anneal(
            self.layers, self.rules, self.instance.pinned, candidate.stage_of, start, devices, candidate.recompute,
            candidate.knobs, iterations, np.array(heat), seed, self.by_span,
        )  # fmt: skip
        return Candidate(
            stage_of=stage_of, groups=_unflatten(start, devices), recompute=recompute, knobs=knobs, objective=int(value)
        )

    def floor(self, stage_of: Integers, groups: tuple[tuple[int, ...], ...], *, recompute: Integers) -> int | None:
        """Ticks that no order of this partition and mapping beats; None if it cannot fit into memory."""
        net = self._net(stage_of, groups, recompute)
        return None if overflow(net) > 0 else int(net_floor(net)) if not self.by_span else 0

    def enumerate_orders(
        self, candidate: Candidate, *, threshold: int, most_words: int, most_plays: int
    ) -> tuple[bool, Candidate | None]:
        """Whether every order was played, and the best below `threshold`, if any."""
        net = self._net(candidate.stage_of, candidate.groups, candidate.recompute)
        found, plays = [], 1
        for device in range(len(self.instance.capacity)):
            words, lengths = legal_words(net, device, most_words)
            if not len(words):
                return True, None
            found.append((words, lengths))
            plays *= len(words)
            if lengths[0] < 0 or plays > most_plays:
                return False, None
        sizes = np.array([len(words) for words, _ in found])
        tables = np.zeros((len(found), sizes.max(), max(words.shape[1] for words, _ in found)), np.int32)
        table_lengths = np.zeros((len(found), sizes.max()), np.int64)
        for device, (words, lengths) in enumerate(found):
            tables[device, : len(words), : words.shape[1]] = words
            table_lengths[device, : len(words)] = lengths
        value, pick = best_order(net, tables, table_lengths, sizes, threshold, self.by_span)
        if pick[0] < 0:
            return True, None
        each = np.arange(len(found))
        return True, replace(candidate, objective=int(value), words=_decode(net, tables[each, pick], table_lengths[each, pick]))

    def _net(self, stage_of: Integers, groups: tuple[tuple[int, ...], ...], recompute: Integers) -> Net:
        start, devices = _flatten(groups)
        net: Net = assemble(self.layers, stage_of, start, devices, recompute)
        return net

    def words(self, candidate: Candidate) -> tuple[dict[int, Word], int]:
        """The orders of a candidate and the objective they reach."""
        net, words, lengths, value = self._play(candidate)
        return _decode(net, words, lengths), value

    def polish(self, candidate: Candidate, *, iterations: int, heat: float, seed: int) -> Candidate:
        """Improve the words of a candidate with its partition and mapping fixed."""
        net, words, lengths, _ = self._play(candidate)
        value, _ = polish(net, words, lengths, iterations, heat, seed, self.by_span)
        return Candidate(
            stage_of=candidate.stage_of,
            groups=candidate.groups,
            recompute=candidate.recompute,
            knobs=candidate.knobs,
            objective=int(value),
            words=_decode(net, words, lengths),
        )

    def _play(self, candidate: Candidate) -> tuple[Net, Integers, Integers, int]:
        net = self._net(candidate.stage_of, candidate.groups, candidate.recompute)
        words = np.zeros((len(self.instance.capacity), longest_word(net)), np.int32)
        lengths = np.zeros(len(self.instance.capacity), np.int64)
        if candidate.words is not None:
            _encode(net, candidate.words, words, lengths)
        policy = make_policy(net, candidate.knobs, len(candidate.groups))
        makespan, span, _ = play(net, policy, words, lengths, candidate.words is not None)
        if peak_excess(net, words, lengths) > 0:
            return net, words, lengths, 2 * PENALTY
        return net, words, lengths, int(span if self.by_span else makespan)


def make_layers(instance: Instance) -> Layers:
    """The arrays that the kernels read."""
    options = [instance.num_microbatches, instance.num_links, instance.receive_buffers, instance.tail, instance.can_split]
    return Layers(
        instance.work, instance.table_of_replicas, instance.gradient, instance.state, instance.stash, instance.weight_stash,
        instance.checkpoint, instance.workspace, instance.trainable, instance.frozen, instance.edges,
        instance.device_type, instance.capacity, instance.latency, instance.bandwidth, instance.route_start,
        instance.route_links, np.array(options, dtype=np.int64),
    )  # fmt: skip


def make_rules(instance: Instance) -> Integers:
    """What `moves.is_allowed` enforces."""
    edges = instance.edges
    is_chain = len(edges) == len(instance.state) - 1 and bool(np.all(edges[:, 1] == edges[:, 0] + 1))
    return np.array(
        [
            instance.max_stages_per_device, len(instance.table_of_replicas) - 1, instance.uneven_replication,
            instance.skip_edges, instance.idle_devices, instance.recompute, not is_chain,
            instance.fixed_partition, instance.fixed_mapping,
        ],
        dtype=np.int64,
    )  # fmt: skip


def _flatten(groups: tuple[tuple[int, ...], ...]) -> tuple[Integers, Integers]:
    start = np.cumsum([0, *(len(group) for group in groups)]).astype(np.int64)
    return start, np.array([device for group in groups for device in group], dtype=np.int64)


def _unflatten(start: Integers, devices: Integers) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(devices[a:b].tolist()) for a, b in zip(start, start[1:], strict=False))


def _decode(net: Net, words: Integers, lengths: Integers) -> dict[int, Word]:
    """Codes to (kind, stage, microbatch) triples; a W takes the oldest microbatch whose I has run without its W."""
    stages = net.lane_stage.tolist()
    result: dict[int, Word] = {}
    for device, length in enumerate(lengths.tolist()):
        forward: dict[int, int] = {}
        backward: dict[int, int] = {}
        waiting: dict[int, deque[int]] = {}
        word = []
        for code in words[device, :length].tolist():
            lane, kind = code >> 2, code & 3
            if kind == WEIGHT_GRAD:
                microbatch = waiting[lane].popleft()
            else:
                counts = forward if kind == FORWARD else backward
                microbatch = counts.get(lane, 0)
                counts[lane] = microbatch + 1
                if kind == INPUT_GRAD:
                    waiting.setdefault(lane, deque()).append(microbatch)
            word.append((kind, stages[lane], microbatch))
        if word:
            result[device] = word
    return result


def _encode(net: Net, orders: dict[int, Word], words: Integers, lengths: Integers) -> None:
    """(kind, stage, microbatch) triples to codes."""
    lanes = {
        (device, stage): lane
        for lane, (device, stage) in enumerate(zip(net.lane_device.tolist(), net.lane_stage.tolist(), strict=True))
    }
    for device, word in orders.items():
        lengths[device] = len(word)
        words[device, : len(word)] = [lanes[device, stage] * 4 + kind for kind, stage, _ in word]
