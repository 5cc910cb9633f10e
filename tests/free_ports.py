"""Ports that a test may listen on a moment later."""

import itertools
import os
import socket

FIRST, COUNT = 10_000, 20_000
"""Below those that systems give to outgoing connections, one of which could take a port before its listener does."""

_numbers = itertools.count()


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on now, and that another process of the tests is unlikely to be given."""
    for number in _numbers:
        port = FIRST + (os.getpid() * 997 + number) % COUNT
        with socket.socket() as probe:
            try:
                probe.bind((host, port))
            except OSError:
                continue
        return port
    raise AssertionError("the numbers never end")
