"""The host bound: hosts together cannot ask faster than each layer's kernels need them to."""

from planner.bounds.minimum_costs import Least
from planner.layout.costs import LayerWork


def host_bound(least: Least) -> int:
    """Makespan >= M x sum over layers of the least time of hosts for F and the backward / devices + M x o.

    Proof. A device's host asks for its actions one after the other from time 0 on, so when it has asked for the last
    one, all that its actions take of it has passed. An action ends no sooner than its host has asked for it: its
    `cross` is at least its `host`, factor by factor of the product of its layers. So the makespan T is at least the
    load of every host, and D T at least their sum. A layer on r replicas of width w is asked for by r w hosts, for F
    and for B, or for I and W; what they take together is at least the least over types, widths and numbers of replicas.
    A layer that nothing trains in may be in a stage without W, which runs I.
    o is the least overhead of an F and of an action that sends the gradient on, which hosts have too: every device used
    runs M of each, so D (T - M o) is at least the layers' share.
    """
    count, num_devices = least.problem.num_microbatches, sum(least.types.values())
    trained, alone = (zip(*least.work_per_type(each).values(), strict=True) for each in (_asking_ns, _asking_alone_ns))
    rows, trains = zip(least.layers, trained, alone, strict=True), least.problem.profile.trains
    asked: int = sum(min(own if trains((layer.name,)) else other) for layer, own, other in rows)
    return -(-count * asked // num_devices) + count * sum(least.overhead)


def _asking_ns(work: LayerWork) -> int:
    """F and the cheaper of B and I with W; 0 where the host takes no time."""
    host = {action: asking.host for action, asking in work.asking}
    split = host.get("I", 0) + host.get("W", 0)
    return host.get("F", 0) + min(host.get("B", split), split)


def _asking_alone_ns(work: LayerWork) -> int:
    """F and the cheaper of B and I."""
    host = {action: asking.host for action, asking in work.asking}
    return host.get("F", 0) + min(host.get("I", 0), host.get("B", host.get("I", 0)))
