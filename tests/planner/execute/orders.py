"""Plans for the executor, made without a profile: stages on a chain, and an order that some seed gives."""

import random
from collections.abc import Iterable, Sequence

from planner.actions import Action
from planner.plan import Plan, ProblemReference, Stage


def make_reference(num_microbatches: int) -> ProblemReference:
    return ProblemReference(
        profile="chain", profile_sha256="", cluster_sha256="", num_microbatches=num_microbatches, options={}
    )


def make_random_plan(
    placement: str,
    *,
    num_microbatches: int,
    seed: int | None = None,
    cut: Sequence[int] | None = None,
    kinds: str = "",
    recompute: str = "",
    backward: str = "IW",
    edges: str = "",
) -> Plan:
    """`placement`: per stage the device of each replica, as `0/2 1/3`, or the devices of its group, as `0+1/2+3`;
    `cut`: how many layers each stage has (default one); `kinds`: a letter per layer, only `w`, `v` and `s` are trained;
    `recompute`: y or n per stage.

    The order is random for a seed, otherwise greedy: I before F before W. `backward`: B instead of I and W. `edges`:
    which stage takes which, as `0-1 0-2`, if they form no chain.
    """
    replicas = [
        tuple(tuple(f"d{device}" for device in group.split("+")) for group in stage.split("/"))
        for stage in placement.split()
    ]
    groups = [tuple(device for group in stage for device in group) for stage in replicas]
    sizes = cut or [1] * len(groups)
    names = iter(f"l{number}" for number in range(sum(sizes)))
    layers = [tuple(next(names) for _ in range(size)) for size in sizes]
    stages = tuple(
        Stage(layers=mine, replicas=held, recompute=recompute[number : number + 1] == "y")
        for number, (mine, held) in enumerate(zip(layers, replicas, strict=True))
    )
    trained = [not kinds or any(kinds[int(name[1:])] in "wvs" for name in stage.layers) for stage in stages]
    sources = make_sources(len(groups), edges)
    if "+" in placement or edges or not are_side_by_side(groups):
        schedule = make_free_order(
            replicas, sources, num_microbatches=num_microbatches, seed=seed, trained=trained, backward=backward
        )
    else:
        firsts = [group[0] for group in groups]
        words = make_order(firsts, num_microbatches=num_microbatches, seed=seed, trained=trained, backward=backward)
        schedule = {device: words[group[0]] for group in groups for device in group}
    return Plan(problem=make_reference(num_microbatches), stages=stages, schedule=schedule)


def make_order(
    owners: Sequence[str], *, num_microbatches: int, seed: int | None, trained: Sequence[bool], backward: str = "IW"
) -> dict[str, tuple[Action, ...]]:
    """Runs a chain of stages a tick at a time; every device takes one of the actions that could run."""
    rng = random.Random(seed)
    done: set[Action] = set()
    words: dict[str, list[Action]] = {device: [] for device in owners}
    kinds = [("F" + backward) if is_trained or backward == "B" else "FI" for is_trained in trained]
    todo = {Action(k, s, m) for s, mine in enumerate(kinds) for k in mine for m in range(num_microbatches)}  # type: ignore[arg-type]
    while todo:
        ready = sorted(action for action in todo if needs(action, len(owners), backward=backward) <= done)
        for device in words:
            if mine := [action for action in ready if owners[action.stage] == device]:
                greedy = min(mine, key=lambda action: ("IBFW".index(action.kind), action.microbatch, -action.stage))
                chosen = greedy if seed is None else rng.choice(mine)
                words[device].append(chosen)
                todo.remove(chosen)
        done |= {action for word in words.values() for action in word}
    return {device: tuple(word) for device, word in words.items()}


def needs(action: Action, num_stages: int, *, backward: str) -> set[Action]:
    kind, stage, microbatch = action
    if kind == "F":
        return {Action("F", stage - 1, microbatch)} if stage else set()
    if kind == "W":
        return {Action("I", stage, microbatch)}
    before = {Action("F", stage, microbatch)}
    if stage + 1 < num_stages:
        before.add(Action("B" if backward == "B" else "I", stage + 1, microbatch))
    return before


Groups = Sequence[Sequence[str]]
"""Per stage the devices of its replicas."""


def are_side_by_side(groups: Groups) -> bool:
    """Replica k of every stage is in pipeline k, and devices hold like stages."""
    seats = {(device, replica) for group in groups for replica, device in enumerate(group)}
    partners = {(device, group[0]) for group in groups for device in group}
    devices = {device for device, _ in seats}
    return len({len(group) for group in groups}) == 1 and len(seats) == len(partners) == len(devices)


def make_sources(num_stages: int, edges: str) -> list[list[int]]:
    """Per stage those that it takes."""
    pairs = edges.split() or [f"{number}-{number + 1}" for number in range(num_stages - 1)]
    ends = [tuple(map(int, pair.split("-"))) for pair in pairs]
    return [[a for a, b in ends if b == number] for number in range(num_stages)]


Ready = list[tuple[Action, tuple[str, ...]]]
"""Actions, each with the devices that would run it together."""


def make_free_order(
    replicas: Sequence[Sequence[tuple[str, ...]]],
    sources: Sequence[Sequence[int]],
    *,
    num_microbatches: int,
    seed: int | None,
    trained: Sequence[bool],
    backward: str,
) -> dict[str, tuple[Action, ...]]:
    """As `make_order`, but every replica has an order of its own; what it needs has to be done by all replicas.

    All devices of a group take each of its actions in the same tick.
    """
    rng = None if seed is None else random.Random(seed)
    kinds = [("F" + backward) if is_trained or backward == "B" else "FI" for is_trained in trained]
    todo = {
        (Action(k, s, m), team)  # type: ignore[arg-type]
        for s, mine in enumerate(kinds)
        for k in mine
        for m in range(num_microbatches)
        for team in replicas[s]
    }
    words: dict[str, list[Action]] = {device: [] for stage in replicas for team in stage for device in team}
    pick = pick_for_groups if any(len(team) > 1 for stage in replicas for team in stage) else pick_for_devices
    while todo:
        open_actions = {action for action, _ in todo}
        ready = [
            (action, team)
            for action, team in sorted(todo)
            if not open_actions & set(before(action, sources))
            and not (action.kind != "F" and (action._replace(kind="F" if action.kind != "W" else "I"), team) in todo)
        ]
        for action, team in pick(ready, words, rng=rng):
            todo.remove((action, team))
            for device in team:
                words[device].append(action)
    return {device: tuple(word) for device, word in words.items()}


def pick_for_devices(ready: Ready, devices: Iterable[str], *, rng: random.Random | None) -> Ready:
    """What each device takes."""
    mine = [[one for one in ready if one[1] == (device,)] for device in devices]
    return [min(each, key=greed) if rng is None else rng.choice(each) for each in mine if each]


def pick_for_groups(ready: Ready, devices: Iterable[str], *, rng: random.Random | None) -> Ready:
    """What groups take of which no device is busy."""
    ready.sort(key=greed)
    if rng is not None:
        rng.shuffle(ready)
    free, picked = set(devices), Ready()
    for action, team in ready:
        if free.issuperset(team):
            free.difference_update(team)
            picked.append((action, team))
    return picked


def greed(one: tuple[Action, tuple[str, ...]]) -> tuple[int, int, int]:
    """I comes before F before W."""
    action, _ = one
    return "IBFW".index(action.kind), action.microbatch, -action.stage


def before(action: Action, sources: Sequence[Sequence[int]]) -> list[Action]:
    """What other stages have to have done for the same microbatch."""
    kind, stage, microbatch = action
    if kind == "F":
        return [Action("F", source, microbatch) for source in sources[stage]]
    if kind == "W":
        return []
    takers = [number for number, mine in enumerate(sources) if stage in mine]
    return [Action(letter, taker, microbatch) for taker in takers for letter in ("I", "B")]
