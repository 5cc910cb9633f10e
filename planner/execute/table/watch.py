"""Ends all processes with one message when one of them fails, dies or waits for too long.

A thread looks at what the process is doing. It can speak while the process itself is stuck inside torch. Processes
talk through a store of their own connection: the one that finds something wrong first writes down what, everyone adds
what it is doing, and everyone prints the whole.
"""

import os
import select
import signal
import socket
import threading
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from planner.execute.table.last_words import say_last
from planner.execute.table.layout import Layout
from planner.execute.table.routes import make_routes, needs
from planner.execute.table.wiring import StageEdge

if TYPE_CHECKING:
    from torch.distributed import Store  # type: ignore[attr-defined]

POLL_S = 0.2
"""Seconds between two looks of the thread."""
ANSWER_S = 3.0
"""How long the others are given to say what they are doing."""

_STOPPING = (signal.SIGTERM, signal.SIGINT)


class _ActionProgress(Protocol):
    """What is used of the action log."""

    current: str
    since: float
    needs: Mapping[str, str]

    def state(self) -> tuple[str, bool]:
        """The current cell and whether it has what it needs."""


def make_timeout_s(makespan_ns: int | None) -> float:
    """How long nothing may happen: 20 iterations as planned, half a minute at least (the first ones are slow)."""
    return max(30.0, 20 * (makespan_ns or 0) / 1e9)


class Watch:
    """The thread of one process."""

    def __init__(
        self, store: "Store", progress: _ActionProgress, *, layout: Layout, rank: int, timeout_s: float
    ) -> None:
        self.store, self.progress, self.layout, self.rank, self.timeout_s = store, progress, layout, rank, timeout_s
        self._handlers: dict[signal.Signals, Any] = {}
        self._stopping = threading.Event()
        self._lock = threading.Lock()
        self._signals, self._wakeup = socket.socketpair()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)

    def start(self) -> None:
        """To be called on the main thread: from now on SIGTERM and SIGINT are answered by the thread, stuck or not."""
        self._wakeup.setblocking(False)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        self._handlers = {number: signal.signal(number, lambda *_: None) for number in _STOPPING}
        self._thread.start()

    def stop(self) -> None:
        """End the watch after a run without fault."""
        self._stopping.set()
        self._thread.join()
        signal.set_wakeup_fd(-1)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)

    def _run(self) -> None:
        while not self._stopping.is_set():
            if cause := self._cause():
                self.end(cause)

    def _cause(self) -> str:
        """What is wrong, if anything; looks for a moment."""
        readable, _, _ = select.select([self._signals], [], [], POLL_S)
        if readable and set(_STOPPING) & set(self._signals.recv(4096)):
            return "the launcher, or its user, stops all processes"
        waited = time.monotonic() - self.progress.since
        if self.progress.current and waited > self.timeout_s:
            return f"rank {self.rank} ({self.layout.devices[self.rank]}) has not got on for {waited:.0f} s"
        try:
            return self.store.get("failed").decode() if self.store.check(["failed"]) else ""
        except RuntimeError:
            return ""  # the store is gone with its host: the connections to the others will say so

    def end(self, cause: str) -> NoReturn:
        """Tell the others, hear them, print everything and end this process."""
        with self._lock:
            say_last(self._report(cause))
            os._exit(1)

    def _report(self, cause: str) -> str:
        try:
            self.store.set(f"state/{self.rank}", self._state())
            cause = self.store.compare_set("failed", "", cause).decode()
            states = self._states()
            self._let_others_read()
        except RuntimeError:
            states = [self._state() if rank == self.rank else "" for rank in range(self.layout.world_size)]
        return render_report(cause, states, devices=self.layout.devices)

    def _states(self) -> list[str]:
        end = time.monotonic() + ANSWER_S
        keys = [f"state/{rank}" for rank in range(self.layout.world_size)]
        while not self.store.check(keys) and time.monotonic() < end:
            time.sleep(POLL_S / 4)
        return [self.store.get(key).decode() if self.store.check([key]) else "" for key in keys]

    def _let_others_read(self) -> None:
        """Without torchrun the store lives in rank 0, so that one leaves last."""
        self.store.set(f"told/{self.rank}", "")
        others = [f"told/{rank}" for rank in range(self.layout.world_size)] if self.rank == 0 else []
        end = time.monotonic() + ANSWER_S
        while others and not self.store.check(others) and time.monotonic() < end:
            time.sleep(POLL_S / 4)

    def _state(self) -> str:
        cell, is_computing = self.progress.state()
        if not cell:
            return "between two iterations"
        if is_computing:
            return f"computes {cell}"
        return f"waits in {cell}{self.progress.needs.get(cell, '')}"


def describe_needs(layout: Layout, edges: Sequence[StageEdge], *, rank: int) -> dict[str, str]:
    """What F, I and B of a rank wait for, by cell: ` for stage 0 on rank 1 (d1)`; nothing where they wait for none."""
    found, routes = {}, make_routes(layout, edges)
    for action in layout.rows[rank]:
        ranks = [
            (other, owner)
            for owner, other, _ in needs(layout, routes, rank=rank, action=action)
            if other != action.stage
        ]
        if ranks:
            places = (f"stage {other} on rank {owner} ({layout.devices[owner]})" for other, owner in ranks)
            found[str(action)] = f" for {', '.join(places)}"
    return found


def render_report(cause: str, states: Sequence[str], *, devices: Sequence[str]) -> str:
    """The message that every process prints; a rank without a state has not answered."""
    silent = [f"rank {rank} ({devices[rank]})" for rank, state in enumerate(states) if not state]
    if silent:
        cause = f"{', '.join(silent)} does not answer: killed, or out of reach; {cause}"
    lines = [f"  rank {rank} ({devices[rank]}): {state or 'no answer'}" for rank, state in enumerate(states)]
    return "\n".join([f"planner.execute: the plan was not run to its end: {cause}", *lines]) + "\n"


def connect(environment: Any, *, timeout_s: float) -> Any:
    """A connection of its own to the store that the launcher or rank 0 keeps."""
    from datetime import timedelta

    from torch.distributed import PrefixStore, TCPStore  # type: ignore[attr-defined]

    store = TCPStore(
        environment["MASTER_ADDR"],
        int(environment["MASTER_PORT"]),
        is_master=False,
        timeout=timedelta(seconds=timeout_s),
    )
    run, attempt = environment.get("TORCHELASTIC_RUN_ID", ""), environment.get("TORCHELASTIC_RESTART_COUNT", "0")
    return PrefixStore(f"planner.execute/{run}/{attempt}", store)
