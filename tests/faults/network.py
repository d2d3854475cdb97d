"""A separate network for one process, which can be cut: a namespace behind a pair of virtual
devices. Needs root."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess


class Namespace:
    """A network namespace, reached at another address than this machine.

    Parameters
    ----------
    name : str
        Its name, at most ten letters.
    """

    def __init__(self, name):
        self.name = name
        subnet = f"10.213.{os.getpid() % 256}"  # tests of other processes may run
        # of this machine as seen from inside, and of what runs inside
        self.outside, self.address = f"{subnet}.1", f"{subnet}.2"
        self.inside = ("ip", "netns", "exec", name)

    def __enter__(self):
        _ip("netns", "add", self.name)
        try:
            _ip(
                "link",
                "add",
                f"{self.name}-a",
                "type",
                "veth",
                "peer",
                "name",
                f"{self.name}-b",
                "netns",
                self.name,
            )
            _ip("address", "add", f"{self.outside}/30", "dev", f"{self.name}-a")
            _ip("link", "set", f"{self.name}-a", "up")
            _ip("-n", self.name, "address", "add", f"{self.address}/30", "dev", f"{self.name}-b")
            _ip("-n", self.name, "link", "set", "lo", "up")
            self.mend()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("netns", "del", self.name)  # takes the devices along

    def cut(self):
        """Let no packet through; both ends wait, nobody is told."""
        _ip("-n", self.name, "link", "set", f"{self.name}-b", "down")

    def mend(self):
        """Let packets through."""
        _ip("-n", self.name, "link", "set", f"{self.name}-b", "up")


def why_not():
    """Tell why there can be no such network here; empty where there can."""
    if shutil.which("ip") is None:
        return "iproute2 is absent: no ip; apt-get install iproute2"
    if os.geteuid() != 0:
        return "network namespaces need root"
    try:
        with Namespace(f"wkwt{os.getpid() % 100000}"):
            # another name, which the kernel forgets late
            return ""
    except subprocess.CalledProcessError as error:
        return f"no network namespace here: {error.stderr.strip()}"


def _ip(*arguments):
    subprocess.run(("ip", *arguments), check=True, capture_output=True, text=True, timeout=20)
