"""Sends that are let go of."""

import weakref
from threading import Event

import pytest
import torch

from planner.execute.stage.sending import WAKING_BYTES, Sending, as_stored


class Work:
    """A send that is done when it is told so."""

    def __init__(self, *, error: str = "") -> None:
        self.done, self.waited, self.error = Event(), Event(), error

    def is_completed(self) -> bool:
        return self.done.is_set()

    def wait(self) -> None:
        assert self.done.wait(10)
        self.waited.set()
        if self.error:
            raise RuntimeError(self.error)


@pytest.mark.parametrize("is_host", [True, False])
def test_what_was_sent_is_let_go(is_host: bool):
    """Tests that a send is forgotten when it is done, while later ones are still under way."""
    sending, first, second, third = Sending(is_host=is_host), Work(), Work(), Work()
    done, waited, gone = first.done, second.waited, Event()
    weakref.finalize(first, gone.set)
    sending.add([first, second], num_bytes=WAKING_BYTES + 1)
    del first
    assert not gone.is_set()
    done.set()
    sending.add([third], num_bytes=0)
    assert gone.wait(10)
    assert not waited.is_set()
    second.done.set()
    third.done.set()
    sending.finish()
    assert waited.is_set()
    assert third.waited.is_set()


@pytest.mark.parametrize("is_host", [True, False])
def test_a_send_that_fails_is_told(is_host: bool):
    """Tests that an error of a send is raised at the end of the iteration, once, and does not stop the others."""
    sending, work = Sending(is_host=is_host), Work(error="connection closed")
    sending.add([work], num_bytes=1)
    work.done.set()
    with pytest.raises(RuntimeError, match="connection closed"):
        sending.finish()
    sending.finish()


def test_small_sends_wake_nobody():
    """Tests that no thread waits for sends that hold little, and that they are waited for at the end."""
    sending, works = Sending(is_host=True), [Work() for _ in range(4)]
    for work in works:
        work.done.set()
        sending.add([work], num_bytes=WAKING_BYTES // 4)
    assert not any(work.waited.is_set() for work in works)
    sending.finish()
    assert all(work.waited.is_set() for work in works)


def test_what_is_sent_has_its_values_in_memory():
    """Tests that conjugates and negatives, which are only marked, are written out, and all else is left alone."""
    given = torch.tensor([1 + 2j])
    for marked in (given.conj(), given.conj().imag):
        assert marked.is_conj() or marked.is_neg()
        assert marked.is_contiguous()
        sent = as_stored(marked)
        assert not sent.is_conj()
        assert not sent.is_neg()
        assert torch.equal(sent, marked)
    assert as_stored(given) is given
