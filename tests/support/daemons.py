"""Servers that run as programs beside the tests, and end with them."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import time

_UP_SECONDS = 30
_END_SECONDS = 20

_ATTEMPTS = 5
_ENDED_BY_INPUT = '"$@" < /dev/null & pid=$!; read -r _; kill $pid; wait $pid'
"""Script of a shell that runs a program until its own input is closed: at the end of the tests, or
when their process is killed."""


@contextlib.contextmanager
def daemon(make_command, num_ports, log):
    """Run a program that listens at free ports of this machine.

    Parameters
    ----------
    make_command : callable
        Returns the command for a list of ports.
    num_ports : int
        Number of ports.
    log : Path
        File for what the program prints.

    Yields
    ------
    list of int
        The ports; the program listens at the first one.
    """
    for attempt in range(1, 1 + _ATTEMPTS):
        ports = free_ports(num_ports)
        with log.open("wb") as output:
            command = ["sh", "-c", _ENDED_BY_INPUT, "sh", *map(str, make_command(ports))]
            process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=output, stderr=output)
        try:
            if _is_up(process, ports[0]):
                yield ports
                return
        finally:
            process.stdin.close()
            process.wait(_END_SECONDS)
        assert attempt < _ATTEMPTS, (
            f"{command[4]} does not listen: {log.read_text(errors='replace')[-2000:]}"
        )


def free_ports(number):
    """Find free ports. Another process may take one of them before they are used: the program is
    then started again."""
    with contextlib.ExitStack() as stack:
        return [
            stack.enter_context(socket.create_server(("127.0.0.1", 0))).getsockname()[1]
            for _ in range(number)
        ]


def _is_up(process, port):
    until = time.monotonic() + _UP_SECONDS
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.02)
            return False
    return False
