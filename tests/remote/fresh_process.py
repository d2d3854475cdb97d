"""Reads in fresh processes, which have a time limit and none of the user's credentials."""

from __future__ import annotations

import os
import re
import resource
import subprocess
from pathlib import Path

import numpy as np
from support.warm_processes import WarmProcess

import wkwdask

KEYS = {
    "AWS_ACCESS_KEY_ID": "AKIDOFTHETESTS",
    "AWS_SECRET_ACCESS_KEY": "secret-of-the-tests",
    "AWS_SESSION_TOKEN": "token-of-the-tests",
}
"""Credentials that no server knows."""
_SECONDS = 60  # more than any read takes on a busy machine: a process that takes longer hangs


def hidden(folder):
    """Return the variables that hide configuration files with credentials."""
    names = ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "CLOUDSDK_CONFIG", "XDG_CONFIG_HOME")
    return {"AWS_EC2_METADATA_DISABLED": "true", **dict.fromkeys(names, str(folder / "none"))}


# of address space that such a read may ask for: the machine survives a read without end
_MOST_NBYTES = 3 << 30


class FreshProcess:
    """A process that calls a function; the folder is for what it prints."""

    def __init__(self, function, *arguments, folder, **environment):
        self._process = WarmProcess(
            function,
            *arguments,
            output=folder / "out",
            errors=folder / "err",
            **{**hidden(folder), **environment},
        )

    def output(self):
        """Wait for the end, and return what was printed."""
        try:
            self._process.wait(_SECONDS)
        except subprocess.TimeoutExpired:
            self.kill()
            raise AssertionError("the process hangs") from None
        output, errors = self._process.communicate()
        assert (self._process.returncode, errors) == (0, ""), (
            self._process.returncode,
            errors[-500:],
        )
        return output

    def kill(self):
        """End it."""
        self._process.kill()
        self._process.wait()


def report(url):
    """Print the error of a read."""
    print(_error_of(url, ((0, 0, 0), (24, 24, 24))))


def report_with_memory(url):
    """Print the growth of memory in the course of a read [bytes], and its error."""
    with open("/proc/self/statm") as file:
        address_space = int(file.read().split()[0]) * resource.getpagesize() + _MOST_NBYTES
    resource.setrlimit(resource.RLIMIT_AS, (address_space, address_space))
    before = _peak_nbytes()
    text = _error_of(url, None)
    print(_peak_nbytes() - before, text)


def _error_of(url, box):
    try:
        return f"no error, {wkwdask.read(url, box).shape}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"


def _peak_nbytes():
    return int(re.search(r"VmHWM:\s*(\d+)", Path("/proc/self/status").read_text())[1]) << 10


def read_then_fork(url, box, expected):
    """Read in this process, in a fork of it, and here again; print what the last two found."""
    wkwdask.read(url, box)
    pid = os.fork()
    if pid == 0:
        try:
            print(np.array_equal(wkwdask.read(url, box), expected), flush=True)
        except Exception as error:
            print(f"{type(error).__name__}: {error}", flush=True)
        os._exit(0)
    os.waitpid(pid, 0)
    print(np.array_equal(wkwdask.read(url, box), expected))
