"""Every order of the actions of given stages on given devices, searched depth first and compiled.

The search plays all devices at once, instant by instant (contract, "Time"). Whenever a device is free it commits
itself to its next action, ready or not: one branch for each action that its memory and its earlier actions allow. A
branch is left when a lower bound on whatever can come of it reaches the best objective so far; nothing else is omitted.
"""

import numpy as np

from solver_models.compiled import kernel

FAR = 2**60
STAGE, DEVICE, HAS_W, F_NS, I_NS, W_NS, B_NS, HELD, STASH, KEPT, WORKSPACE, W_WORKSPACE, WHOLE = range(13)
"""Columns of the table of seats."""
SENDER, RECEIVER, WAY, DURATION, RANK = range(5)
"""Columns of the table of legs."""


@kernel
def sections(num_microbatches, num_seats, num_devices, num_legs, num_links, num_stages):
    """Where the parts of a state begin: clock; per seat F, I committed and W pending; per device what it is committed
    to (seat, kind, microbatch), when it is free, its start, when transfers free it, bytes held; ends of F and of I;
    arrivals; links; stages' last ends and synchronisations."""
    sizes = np.array(
        [1]
        + [num_seats] * 3
        + [num_devices] * 7
        + [num_seats * num_microbatches] * 2
        + [num_legs * num_microbatches, num_links, num_stages, num_stages]
    )
    begin = np.zeros(sizes.shape[0] + 1, np.int64)
    begin[1:] = np.cumsum(sizes)
    return begin


NOW, DONE_F, DONE_I, PENDING, SEAT, KIND, MICROBATCH, FREE, FIRST, BLOCKED, BYTES = range(11)
END_F, END_I, ARRIVAL, LINK, STAGE_END, SYNC_END = range(11, 17)


@kernel
def explore(scalars, seats, legs, leg_links, ring_time, ring_links, room, best, only_bound):
    """(least objective below `best`, length, path as rows of seat, kind, microbatch); (best, 0, path) if there is none.

    With `only_bound`: a lower bound on the objective instead.
    """
    M, num_seats, num_devices = scalars[0], seats.shape[0], room.shape[0]
    tables = (scalars, seats, legs, leg_links, ring_time, ring_links, room)
    at = sections(M, num_seats, num_devices, legs.shape[0], leg_links.shape[1], ring_time.shape[0])
    depths = 3 * M * num_seats + 1
    states = np.zeros((depths + 1, at[at.shape[0] - 1]), np.int64)
    states[0, at[SEAT] : at[KIND]] = -1
    states[0, at[FIRST] : at[BLOCKED]] = -1
    states[0, at[END_F] : at[LINK]] = FAR
    path, best_path, best_length = np.zeros((depths, 3), np.int64), np.zeros((depths, 3), np.int64), 0
    choices = np.zeros((depths + 1, 4 * num_seats, 2), np.int64)
    num_choices, choice = np.zeros(depths + 1, np.int64), np.zeros(depths + 1, np.int64)
    device = np.zeros(depths + 1, np.int64)
    if only_bound:
        return bound(states[0], at, tables), 0, path
    depth = 0
    device[0] = advance(states[0], at, tables)
    num_choices[0] = list_choices(states[0], at, tables, device[0], choices[0])
    while depth >= 0:
        if choice[depth] == num_choices[depth]:
            depth -= 1
            continue
        seat, kind = choices[depth, choice[depth], 0], choices[depth, choice[depth], 1]
        choice[depth] += 1
        state = states[depth + 1]
        state[:] = states[depth]
        path[depth, 0], path[depth, 1] = seat, kind
        path[depth, 2] = commit(state, at, tables, device[depth], seat, kind)
        following = advance(state, at, tables)
        if following < 0:
            value = objective(state, at, tables)
            if value < best:
                best, best_length = value, depth + 1
                best_path[:] = path
            continue
        if bound(state, at, tables) < best:
            depth += 1
            device[depth], choice[depth] = following, 0
            num_choices[depth] = list_choices(state, at, tables, following, choices[depth])
    return best, best_length, best_path


@kernel
def list_choices(state, at, tables, device, choices):
    """Fill in (seat, kind) of the actions that may come next on a device, the most promising first."""
    scalars, seats, room = tables[0], tables[1], tables[6]
    count = 0
    for is_ready in (True, False):
        for kind in (3, 1, 0, 2):
            for seat in range(seats.shape[0] - 1, -1, -1):
                if seats[seat, DEVICE] != device or not may_follow(state, at, scalars, seats, room, seat, kind):
                    continue
                m = next_microbatch(state, at, seat, kind)
                if has_inputs(state, at, tables, seat, kind, m) == is_ready:
                    choices[count, 0], choices[count, 1] = seat, kind
                    count += 1
    return count


@kernel
def next_microbatch(state, at, seat, kind):
    """Microbatches are taken in order; of pending W the first."""
    if kind == 0:
        return state[at[DONE_F] + seat]
    if kind != 2:
        return state[at[DONE_I] + seat]
    pending, m = state[at[PENDING] + seat], 0
    while not (pending >> m) & 1:
        m += 1
    return m


@kernel
def may_follow(state, at, scalars, seats, room, seat, kind):
    """Whether counts, options and memory allow an action of this kind as the device's next."""
    done_f, done_i, pending = state[at[DONE_F] + seat], state[at[DONE_I] + seat], state[at[PENDING] + seat]
    held = state[at[BYTES] + seats[seat, DEVICE]] + seats[seat, W_WORKSPACE if kind == 2 else WORKSPACE]
    if kind == 0:
        return done_f < scalars[0] and held + seats[seat, HELD] <= room[seats[seat, DEVICE]]
    if kind == 2:
        return pending != 0 and held <= room[seats[seat, DEVICE]]
    allowed = seats[seat, HAS_W] == 1 if kind == 3 else (scalars[1] == 1 or seats[seat, HAS_W] == 0)
    during = seats[seat, WHOLE if kind == 3 else STASH]
    held += during - seats[seat, HELD]
    after = held - seats[seat, WORKSPACE] - during + (seats[seat, KEPT] if kind == 1 else 0)
    return allowed and done_i < done_f and max(held, after) <= room[seats[seat, DEVICE]]


@kernel
def commit(state, at, tables, device, seat, kind):
    """Make an action the device's next; returns its microbatch."""
    seats = tables[1]
    m = next_microbatch(state, at, seat, kind)
    state[at[SEAT] + device], state[at[KIND] + device], state[at[MICROBATCH] + device] = seat, kind, m
    if kind == 0:
        state[at[DONE_F] + seat] += 1
        state[at[BYTES] + device] += seats[seat, HELD]
    elif kind == 2:
        state[at[PENDING] + seat] &= ~(1 << m)
        state[at[BYTES] + device] -= seats[seat, KEPT]
    else:
        state[at[DONE_I] + seat] += 1
        state[at[BYTES] + device] -= seats[seat, HELD]
        if kind == 1 and seats[seat, HAS_W] == 1:
            state[at[PENDING] + seat] |= 1 << m
            state[at[BYTES] + device] += seats[seat, KEPT]
    return m


@kernel
def has_work(state, at, tables, device):
    """Whether a device has actions left that it is not committed to."""
    scalars, seats = tables[0], tables[1]
    for seat in range(seats.shape[0]):
        is_left = state[at[DONE_I] + seat] < scalars[0] or state[at[PENDING] + seat] != 0
        if is_left and seats[seat, DEVICE] == device:
            return True
    return False


@kernel
def has_inputs(state, at, tables, seat, kind, m):
    """Whether everything that an action needs is there now."""
    M, legs, now = tables[0][0], tables[2], state[at[NOW]]
    if kind == 2:
        return state[at[END_I] + seat * M + m] <= now
    if kind != 0 and state[at[END_F] + seat * M + m] > now:
        return False
    for leg in range(legs.shape[0]):
        if legs[leg, RECEIVER] == seat and legs[leg, WAY] == (1 if kind != 0 else 0):
            if legs[leg, DURATION] == 0:
                arrival = state[at[END_F + legs[leg, WAY]] + legs[leg, SENDER] * M + m]
            else:
                arrival = state[at[ARRIVAL] + leg * M + m]
            if arrival > now:
                return False
    return True


@kernel
def start(state, at, tables, device, lasting):
    """Start the action that a device is committed to, if it can and takes time (or takes none, if not `lasting`)."""
    M, overlap, seats, now = tables[0][0], tables[0][2], tables[1], state[at[NOW]]
    seat, kind, m = state[at[SEAT] + device], state[at[KIND] + device], state[at[MICROBATCH] + device]
    if seat < 0 or state[at[FREE] + device] > now:
        return False
    duration = seats[seat, F_NS + kind]
    if (duration > 0) != lasting or not has_inputs(state, at, tables, seat, kind, m):
        return False
    if lasting and not overlap and state[at[BLOCKED] + device] > now:
        return False
    end = now + duration
    state[at[SEAT] + device] = -1
    state[at[FREE] + device] = end
    if state[at[FIRST] + device] < 0:
        state[at[FIRST] + device] = now
    if kind == 0:
        state[at[END_F] + seat * M + m] = end
    elif kind != 2:
        state[at[END_I] + seat * M + m] = end
    stage = seats[seat, STAGE]
    state[at[STAGE_END] + stage] = max(state[at[STAGE_END] + stage], end)
    return True


@kernel
def advance(state, at, tables):
    """Let time pass until a free device has to commit itself; returns it, or -1 if nothing more happens."""
    num_devices = tables[6].shape[0]
    while True:
        changed = True
        while changed:
            changed = False
            for device in range(num_devices):
                is_free = state[at[SEAT] + device] < 0 and state[at[FREE] + device] <= state[at[NOW]]
                if is_free and has_work(state, at, tables, device):
                    return device
                changed = start(state, at, tables, device, False) or changed
        send(state, at, tables)
        for device in range(num_devices):
            start(state, at, tables, device, True)
        now, following = state[at[NOW]], FAR
        for part in (FREE, BLOCKED, ARRIVAL):
            for k in range(at[part], at[part + 1]):
                if now < state[k] < following:
                    following = state[k]
        if following == FAR:
            return -1
        state[at[NOW]] = following


@kernel
def send(state, at, tables):
    """Everything that has become ready now takes its links, in the order of stage, microbatch, direction and rank."""
    scalars, seats, legs, ring_time = tables[0], tables[1], tables[2], tables[4]
    M, now = scalars[0], state[at[NOW]]
    while True:
        first, chosen = FAR, -1
        for leg in range(legs.shape[0]):
            if legs[leg, DURATION] == 0:
                continue
            for m in range(M):
                end = state[at[END_F + legs[leg, WAY]] + legs[leg, SENDER] * M + m]
                if end == now and state[at[ARRIVAL] + leg * M + m] == FAR:
                    key = ((seats[legs[leg, SENDER], STAGE] * (M + 1) + m) * 3 + legs[leg, WAY]) * 10**6
                    if key + legs[leg, RANK] < first:
                        first, chosen = key + legs[leg, RANK], leg * M + m
        if scalars[3]:
            for stage in range(ring_time.shape[0]):
                if ring_time[stage] > 0 and state[at[SYNC_END] + stage] == 0 and is_done(state, at, tables, stage):
                    key = ((stage * (M + 1) + M) * 3 + 2) * 10**6
                    if key < first:
                        first, chosen = key, -2 - stage
        if chosen == -1:
            return
        if chosen < -1:
            synchronise(state, at, tables, -2 - chosen)
        else:
            transfer(state, at, tables, chosen)


@kernel
def is_done(state, at, tables, stage):
    """Whether a stage's last action has ended."""
    scalars, seats = tables[0], tables[1]
    for seat in range(seats.shape[0]):
        if seats[seat, STAGE] == stage:
            if state[at[DONE_I] + seat] < scalars[0] or state[at[PENDING] + seat] != 0:
                return False
            if state[at[SEAT] + seats[seat, DEVICE]] == seat:
                return False
    return state[at[STAGE_END] + stage] <= state[at[NOW]]


@kernel
def synchronise(state, at, tables, stage):
    """Put an all-reduce on the links of its ring."""
    ring_time, ring_links = tables[4], tables[5]
    begin = state[at[NOW]]
    for link in range(ring_links.shape[1]):
        if ring_links[stage, link]:
            begin = max(begin, state[at[LINK] + link])
    for link in range(ring_links.shape[1]):
        if ring_links[stage, link]:
            state[at[LINK] + link] = begin + ring_time[stage]
    state[at[SYNC_END] + stage] = begin + ring_time[stage]


@kernel
def transfer(state, at, tables, index):
    """Put a transfer on its links (and, without overlap, on its devices)."""
    M, overlap, seats, legs, leg_links = tables[0][0], tables[0][2], tables[1], tables[2], tables[3]
    leg = index // M
    begin = state[at[NOW]]
    for link in range(leg_links.shape[1]):
        if leg_links[leg, link]:
            begin = max(begin, state[at[LINK] + link])
    if not overlap:
        for end in range(2):
            device = seats[legs[leg, end], DEVICE]
            begin = max(begin, state[at[FREE] + device], state[at[BLOCKED] + device])
    arrival = begin + legs[leg, DURATION]
    state[at[ARRIVAL] + index] = arrival
    for link in range(leg_links.shape[1]):
        if leg_links[leg, link]:
            state[at[LINK] + link] = arrival
    if not overlap:
        for end in range(2):
            state[at[BLOCKED] + seats[legs[leg, end], DEVICE]] = arrival


@kernel
def objective(state, at, tables):
    """Makespan or span of a finished game; FAR if it is stuck."""
    scalars, seats, ring_time = tables[0], tables[1], tables[4]
    M = scalars[0]
    for seat in range(seats.shape[0]):
        for m in range(M):
            if state[at[END_I] + seat * M + m] == FAR or state[at[PENDING] + seat] != 0:
                return FAR
    for device in range(tables[6].shape[0]):
        if state[at[SEAT] + device] >= 0:
            return FAR
    value = 0
    if scalars[5]:
        for device in range(tables[6].shape[0]):
            if state[at[FIRST] + device] >= 0:
                value = max(value, state[at[FREE] + device] - state[at[FIRST] + device])
        return value
    for stage in range(ring_time.shape[0]):
        value = max(value, state[at[SYNC_END] + stage], state[at[STAGE_END] + stage] + ring_time[stage])
    return value + scalars[4]


@kernel
def bound(state, at, tables):
    """No way of going on from `state` has a lower objective.

    Two relaxations: actions wait for their inputs and for earlier microbatches of their seat, but neither for other
    seats of the device nor for links; and a device does all that it has left after the first time any of it can start.
    """
    scalars, seats, ring_time = tables[0], tables[1], tables[4]
    num_seats, is_span, value = seats.shape[0], scalars[5], 0
    begin_f, begin_i = np.zeros((num_seats, scalars[0]), np.int64), np.zeros((num_seats, scalars[0]), np.int64)
    last = relax(state, at, tables, begin_f, begin_i)
    for device in range(tables[6].shape[0]):
        end, work, sync = device_bound(state, at, tables, begin_f, begin_i, device)
        first = state[at[FIRST] + device]
        span = end - first if first >= 0 else work
        value = max(value, span if is_span else end + sync)
    if is_span:
        return value
    for seat in range(num_seats):
        stage = seats[seat, STAGE]
        value = max(
            value, max(last[seat], state[at[STAGE_END] + stage]) + ring_time[stage], state[at[SYNC_END] + stage]
        )
    return value + scalars[4]


@kernel
def backward_time(scalars, seats, seat, whole):
    """The least time of a backward pass: B, or I (with W if `whole`)."""
    split = seats[seat, I_NS] + (seats[seat, W_NS] if whole and seats[seat, HAS_W] else 0)
    if not seats[seat, HAS_W]:
        return split
    return min(seats[seat, B_NS], split) if scalars[1] else seats[seat, B_NS]


@kernel
def relax(state, at, tables, begin_f, begin_i):
    """Fill in the earliest starts of the F and I (or B) yet to start; returns the earliest last end per seat."""
    scalars, seats, legs = tables[0], tables[1], tables[2]
    M, num_seats = scalars[0], seats.shape[0]
    end = np.zeros((2, num_seats, M), np.int64)
    last = np.zeros(num_seats, np.int64)
    for way in range(2):
        for k in range(num_seats):
            seat = k if way == 0 else num_seats - 1 - k
            duration = seats[seat, F_NS] if way == 0 else backward_time(scalars, seats, seat, False)
            free = max(state[at[NOW]], state[at[FREE] + seats[seat, DEVICE]])
            for m in range(M):
                if state[at[END_F + way] + seat * M + m] != FAR:
                    end[way, seat, m] = state[at[END_F + way] + seat * M + m]
                    continue
                begin = free if m == 0 else max(free, end[way, seat, m - 1])
                if way == 1:
                    begin = max(begin, end[0, seat, m])
                for leg in range(legs.shape[0]):
                    if legs[leg, RECEIVER] == seat and legs[leg, WAY] == way:
                        arrival = state[at[ARRIVAL] + leg * M + m]
                        if arrival == FAR:
                            arrival = end[way, legs[leg, SENDER], m] + legs[leg, DURATION]
                        begin = max(begin, arrival)
                end[way, seat, m] = begin + duration
                if way == 0:
                    begin_f[seat, m] = begin
                else:
                    begin_i[seat, m] = begin
                    last[seat] = max(last[seat], begin + backward_time(scalars, seats, seat, True))
    return last


@kernel
def device_bound(state, at, tables, begin_f, begin_i, device):
    """Earliest end of all that a device has left, the work that is, and the least synchronisation that follows it."""
    scalars, seats, ring_time = tables[0], tables[1], tables[4]
    M = scalars[0]
    free = max(state[at[NOW]], state[at[FREE] + device])
    work, late_work, head, late_head, sync = 0, 0, FAR, FAR, FAR
    for seat in range(seats.shape[0]):
        if seats[seat, DEVICE] != device:
            continue
        pending, is_left = count_pending(state, at, device, seat), False
        for m in range(M):
            if state[at[END_F] + seat * M + m] == FAR:
                work, head, is_left = work + seats[seat, F_NS], min(head, begin_f[seat, m]), True
            if state[at[END_I] + seat * M + m] == FAR:
                late_work += backward_time(scalars, seats, seat, True)
                late_head, is_left = min(late_head, begin_i[seat, m]), True
        if pending:
            late_work, late_head = late_work + pending * seats[seat, W_NS], min(late_head, free)
        if pending or is_left:
            sync = min(sync, ring_time[seats[seat, STAGE]])
    if sync == FAR:
        return state[at[FREE] + device], 0, 0
    end = max(free, min(head, late_head)) + work + late_work
    if late_head < FAR:
        end = max(end, max(free, late_head) + late_work)
    return end, work + late_work, sync


@kernel
def count_pending(state, at, device, seat):
    """Number of W of a seat that have yet to start while their I has started."""
    pending, count = state[at[PENDING] + seat], 0
    if state[at[SEAT] + device] == seat and state[at[KIND] + device] == 1:
        pending &= ~(1 << state[at[MICROBATCH] + device])
    while pending:
        count += pending & 1
        pending >>= 1
    if state[at[SEAT] + device] == seat and state[at[KIND] + device] == 2:
        count += 1
    return count
