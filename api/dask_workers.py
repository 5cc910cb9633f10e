"""Workers on Dask: processes, here or on other machines, that do tasks of a search. No other module knows Dask.

A task that is lost with its worker is done again by another one; after three workers it is left out. What a worker
holds that has fallen silent, frozen for instance, is done here, as is all where the scheduler or all workers are gone.
"""

import hashlib
import logging
import multiprocessing
import pickle
import platform
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import dask
import distributed

from planner.progress import MAX_THREADS
from planner.release import RELEASE
from solver_models.local_search.portable_tasks import PortableTask

_CONNECT_S = 10.0
"""How long a scheduler may take to answer."""
_START_S = 60.0
"""How long processes of this machine may take to start."""
_LOOK_S = 0.1
"""How often somebody who waits looks whether that is still wanted."""
_ALONE_S = 20.0
"""After so long without any worker, or a word of the scheduler, tasks are done here."""
_SILENT_S = 15.0
"""After so long without a heartbeat a worker gets no more tasks, and those that it has are done here."""
_FETCH_S, _FETCHES = 3.0, 5
"""How long and how often a result is asked for; then the task is done here."""
_HEAR_S = 1.0
"""How often the scheduler is asked of its workers."""
_KEPT_OWNERS = 8
"""Owners of tasks that a process keeps."""

_owners: OrderedDict[str, object] = OrderedDict()
"""Owners of tasks by their digests, the latest last: in the process of a worker."""
_lock = threading.Lock()


ABOUT = RELEASE, ".".join(platform.python_version_tuple()[:2]), distributed.__version__


def about() -> tuple[str, str, str]:
    """What tasks must find alike on a worker: this release, Python, and Dask."""
    return ABOUT


def do_task(release: str, digest: str, *, packed: bytes | None, call: bytes) -> tuple[Any, float] | str:
    """In the process of a worker: what the task finds and its seconds, or why it cannot be done like this."""
    if release != RELEASE:
        return "release"
    with _lock:
        if packed is not None:
            _owners[digest] = pickle.loads(packed)
        owner = _owners.get(digest)
        if owner is None:
            return "owner"
        _owners.move_to_end(digest)
        while len(_owners) > _KEPT_OWNERS:
            _owners.popitem(last=False)
    method, given = pickle.loads(call)
    begin = time.monotonic()
    found = PortableTask(owner, method, given)()
    return found, time.monotonic() - begin


class _Watch:
    """What the scheduler says of its workers, heard in a thread of its own: a frozen scheduler never answers."""

    def __init__(self, client: "distributed.Client") -> None:
        self._client, self._closed, self._beats = client, threading.Event(), dict[str, tuple[float, float]]()
        self.alone_since: float | None = time.monotonic()
        """Since when there are no workers, or nobody says so; None: there are."""
        self.heard: tuple[str, ...] | None = None
        """The workers whose hearts beat, where others have fallen silent; None: all."""
        self.beating: frozenset[str] = frozenset()
        """The same workers, whether others are silent or not; none before the scheduler has answered."""
        self.stuck: frozenset[str] = frozenset()
        """Keys of the tasks of those that have."""
        threading.Thread(target=self._hear, daemon=True).start()

    def is_alone(self) -> bool:
        """Whether nobody does tasks for long, as far as is known."""
        return self.alone_since is not None and time.monotonic() - self.alone_since > _ALONE_S

    def close(self) -> None:
        """Ask no more."""
        self._closed.set()

    def _hear(self) -> None:
        while not self._closed.is_set() and self._client.status == "running":
            asked = time.monotonic()
            self.alone_since = self.alone_since or asked
            with suppress(Exception):  # whatever it is: nobody has answered
                self._look(self._client.scheduler_info()["workers"], now=asked)
            self._closed.wait(_HEAR_S)
        self.alone_since = self.alone_since or time.monotonic()

    def _look(self, found: Mapping[str, Mapping[str, Any]], *, now: float) -> None:
        self._beats = {
            name: old if (old := self._beats.get(name)) and old[0] == each["last_seen"] else (each["last_seen"], now)
            for name, each in found.items()
        }
        silent = [name for name, (_, since) in self._beats.items() if now - since > _SILENT_S]
        self.beating = frozenset(found.keys() - {*silent})
        self.heard = tuple(self.beating) if silent else None
        held = self._client.processing(silent) if silent else {}
        self.stuck = frozenset(str(key) for keys in held.values() for key in keys)
        self.alone_since = self.alone_since if len(silent) == len(found) else None


class DaskWorkers:
    """The workers of one cluster."""

    def __init__(self, client: "distributed.Client", *, num_workers: int) -> None:
        self._client, self.num_workers = client, num_workers
        self._threads = ThreadPoolExecutor(num_workers, thread_name_prefix="workers")
        self._packed: OrderedDict[int, tuple[object, str, bytes]] = OrderedDict()
        self._watch, self._is_lost, self.num_tasks = _Watch(client), False, 0

    def submit(
        self, task: PortableTask, *, may_start: Callable[[], bool], is_over: Callable[[], bool]
    ) -> "Future[tuple[Any, float] | None]":
        """As `Workers.submit` says."""
        return self._threads.submit(self._do, task, may_start=may_start, is_over=is_over)

    def close(self) -> None:
        """Forget what has not begun."""
        self._watch.close()
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _do(
        self, task: PortableTask, *, may_start: Callable[[], bool], is_over: Callable[[], bool]
    ) -> tuple[Any, float] | None:
        if is_over() or not may_start():
            return None
        digest, packed = self._pack(task.owner)
        call, sent = pickle.dumps((task.method, task.given)), None
        while not self._is_lost:
            answer = self._ask(digest, packed=sent, call=call, is_over=is_over)
            if not isinstance(answer, str):
                with _lock:
                    self.num_tasks += answer is not None
                return answer
            if answer != "owner":
                break
            sent = packed
        begin = time.monotonic()
        return task(), time.monotonic() - begin

    def _pack(self, owner: object) -> tuple[str, bytes]:
        """The owner's digest and what is sent of it; packed once as long as it is in use."""
        with _lock:
            known = self._packed.get(id(owner))
            if known is None:
                packed = pickle.dumps(owner)
                known = self._packed[id(owner)] = owner, hashlib.sha256(packed).hexdigest(), packed
            self._packed.move_to_end(id(owner))
            while len(self._packed) > _KEPT_OWNERS:
                self._packed.popitem(last=False)
        return known[1:]

    def _ask(
        self, digest: str, *, packed: bytes | None, call: bytes, is_over: Callable[[], bool]
    ) -> tuple[Any, float] | str | None:
        """A worker's answer; None if nobody waits any more, or it was the end of too many workers."""
        ended, bound = threading.Event(), self._watch.heard
        try:
            future = self._client.submit(do_task, RELEASE, digest, packed=packed, call=call, pure=False, workers=bound)
        except (OSError, RuntimeError):
            self._is_lost = True
            return "lost"
        future.add_done_callback(lambda _: ended.set())
        while not ended.wait(_LOOK_S):
            is_unreachable = bound is not None and self._watch.beating.isdisjoint(bound)  # one that restarts moves
            if is_over() or is_unreachable or str(future.key) in self._watch.stuck:
                threading.Thread(target=future.cancel, daemon=True).start()  # a frozen scheduler holds it up
                return None if is_over() else "silent"
            if self._watch.is_alone():
                self._is_lost = True
                return "lost"
        if future.status == "cancelled" or future.status == "lost":
            self._is_lost = True
            return "lost"
        for _ in range(_FETCHES):
            if is_over():
                return None
            try:
                return future.result(_FETCH_S)  # type: ignore[no-any-return]
            except distributed.KilledWorker:
                return None
            except (TimeoutError, CancelledError):  # who has it is frozen, or gone
                continue
        return "silent"


@contextmanager
def open_workers(where: str) -> Iterator[DaskWorkers]:
    """The workers of the scheduler at an address, or so many processes of this machine.

    Raises ValueError, with field, value and remedy, if nobody answers, or what answers is of another release.
    """
    with ExitStack() as stack:
        stack.enter_context(
            dask.config.set({"distributed.admin.large-graph-warning-threshold": "4GiB", "distributed.logging": {}})
        )
        logging.getLogger("distributed").setLevel(logging.CRITICAL)
        address = _start_here(int(where), stack) if where.isdigit() else where
        client = _connect(address, where, stack=stack)
        workers = DaskWorkers(client, num_workers=_count(client, where))
        stack.callback(workers.close)
        yield workers


def _start_here(count: int, stack: ExitStack) -> str:
    """The address of its scheduler, before its processes have started."""
    if not 1 <= count <= MAX_THREADS:
        raise ValueError(
            f"workers: {count} processes are out of range; give 1 to {MAX_THREADS}, or the address of a Dask scheduler"
        )
    others = {*multiprocessing.active_children()}
    cluster = distributed.LocalCluster(
        n_workers=0,
        threads_per_worker=1,
        host="127.0.0.1",
        dashboard_address="127.0.0.1:0",
        memory_limit=0,
        silence_logs=logging.CRITICAL,
    )
    stack.callback(_end, cluster, others=others)
    cluster.scale(count)  # which waits for nobody
    return str(cluster.scheduler_address)


def _end(cluster: "distributed.LocalCluster", *, others: set[Any]) -> None:
    """Close it; processes that are frozen before they have begun are killed, and it waits for them no longer."""
    for _ in range(2):
        with suppress(Exception):  # also what Dask says of a process that was killed
            _within(_CONNECT_S, cluster.close)
            return
        for process in {*multiprocessing.active_children()} - others:
            process.kill()


def _connect(address: str, where: str, *, stack: ExitStack) -> "distributed.Client":
    try:
        client = _within(2 * _CONNECT_S, lambda: distributed.Client(address, timeout=_CONNECT_S, set_as_default=False))
        return stack.enter_context(client)
    except (OSError, ValueError, TimeoutError) as error:
        raise ValueError(
            f"workers: no Dask scheduler answers at {where!r} ({type(error).__name__}: {str(error)[:120]}); start one "
            "with `dask scheduler`, give a number of processes on this machine, or leave it out"
        ) from None


def _count(client: "distributed.Client", where: str) -> int:
    """Tasks that the workers do at once, all of this release."""
    try:
        if where.isdigit():
            client.wait_for_workers(int(where), timeout=_START_S)
        found = _within(_START_S, lambda: client.run(about))
    except TimeoutError:
        raise ValueError(
            f"workers: of those at {where!r} {_name_silent(client)} did not answer within {_START_S:.0f} s; end what "
            "is frozen there, or leave it out"
        ) from None
    except Exception as error:
        raise ValueError(
            f"workers: those at {where!r} cannot import this program ({type(error).__name__}: {str(error)[:120]}); "
            f"run pip install 'pipeline-planner[solve,workers]=={RELEASE}' there"
        ) from None
    if not found:
        raise ValueError(f"workers: the scheduler at {where!r} has none; start some with `dask worker {where}`")
    for name, theirs in found.items():
        if theirs != ABOUT:
            raise ValueError(
                f"workers: {name} has release {theirs[0]}, Python {theirs[1]} and Dask {theirs[2]}, but here are "
                f"{ABOUT[0]}, {ABOUT[1]} and {ABOUT[2]}; install the same there, or leave that worker out"
            )
    return sum(client.nthreads().values())


def _name_silent(client: "distributed.Client") -> str:
    """The workers without a heartbeat, as far as their scheduler answers."""
    with suppress(Exception):
        known = _within(_CONNECT_S, client.scheduler_info)["workers"]
        newest = max(each["last_seen"] for each in known.values())
        return ", ".join(name for name, each in known.items() if each["last_seen"] < newest - _SILENT_S) or "some"
    return "the scheduler"


def _within(seconds: float, call: Callable[[], Any]) -> Any:
    """What a call gives that may never end; raises TimeoutError."""
    found: Future[Any] = Future()

    def ask() -> None:
        try:
            found.set_result(call())
        except Exception as error:
            found.set_exception(error)

    threading.Thread(target=ask, daemon=True).start()
    return found.result(seconds)
