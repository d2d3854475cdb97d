"""Sockets on which a process and its children listen, as Linux tells them."""

from __future__ import annotations

import os
import re
import socket
import struct
from contextlib import suppress
from pathlib import Path


def processes_below(number):
    """List a process and all that it started."""
    found = [number]
    with suppress(OSError):
        for thread in Path(f"/proc/{number}/task").iterdir():
            for child in (thread / "children").read_text().split():
                found += processes_below(int(child))
    return found


def _listening():
    """Map the inodes of all TCP sockets that listen to host and port."""
    found = {}
    for name, family, words in (("tcp", socket.AF_INET, 1), ("tcp6", socket.AF_INET6, 4)):
        for line in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                address, port = fields[1].split(":")
                raw = struct.pack(
                    f"={words}I", *(int(address[8 * n : 8 * n + 8], 16) for n in range(words))
                )
                found[fields[9]] = (socket.inet_ntop(family, raw), int(port, 16))
    return found


def listening(number=None):
    """Return (host, port) of every TCP socket on which a process or one that it started listens; by
    default this process."""
    inodes, found = _listening(), set()
    for process in processes_below(number or os.getpid()):
        with suppress(OSError):
            for descriptor in Path(f"/proc/{process}/fd").iterdir():
                with suppress(OSError):
                    match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(descriptor))
                    if match and match[1] in inodes:
                        found.add(inodes[match[1]])
    return found
