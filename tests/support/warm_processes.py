"""Fresh processes that start fast: forks of one process that has imported the package and loaded
its kernels, and that has no threads."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
from multiprocessing import forkserver
from pathlib import Path

import dask

import wkwdask

# processes that tests start find the package and the helpers of the tests
_PATHS = [str(Path(file).resolve().parent.parent) for file in (__file__, wkwdask.__file__)]
ENVIRONMENT = {**os.environ, "WKWDASK_PROGRESS": "off", "PYTHONPATH": os.pathsep.join(_PATHS)}


def warm_context():
    """Return the context of multiprocessing whose processes are such forks; the server starts with
    the first call and ends with this process."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["support.warm_imports"])
    before = dict(os.environ)
    os.environ.update(ENVIRONMENT)
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return context


class WarmProcess:
    """A process with the interface of :class:`subprocess.Popen`, which is the leader of its
    session.

    Parameters
    ----------
    function : callable
        Importable.
    *arguments
        Of the function.
    output, errors : str or Path
        Files for what it prints.
    **environment : str
        Further variables of its environment; dask reads its own again.
    """

    def __init__(self, function, *arguments, output, errors, **environment):
        self._paths = output, errors
        self._process = warm_context().Process(
            target=_run, args=(function, arguments, str(output), str(errors), environment)
        )
        self._process.start()
        self.pid = self._process.pid

    @property
    def returncode(self):
        """Exit code, negative for a signal; None while the process runs."""
        return self._process.exitcode

    def poll(self):
        """Return the exit code."""
        return self.returncode

    def wait(self, timeout=None):
        """Wait for the end, and return the exit code."""
        self._process.join(timeout)
        if self.returncode is None:
            raise subprocess.TimeoutExpired(str(self._process), timeout)
        return self.returncode

    def communicate(self):
        """Wait for the end, and return what was printed: output, errors."""
        self.wait()
        return tuple(Path(path).read_text() for path in self._paths)

    def kill(self):
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number):
        """Send a signal, if the process still runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                # it has ended, and the server that forked it has not told yet
                os.kill(self.pid, number)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.wait()


def _run(function, arguments, output, errors, environment):
    os.setsid()
    for path, number in ((output, 1), (errors, 2)):
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
        os.dup2(file, number)
        os.close(file)
    os.environ.update({**ENVIRONMENT, **environment})
    if environment:
        dask.config.refresh()
    try:
        function(*arguments)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def is_running(pid):
    """Return whether a process exists."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 0)
        return True
    return False


def state_of(pid):
    """Return the letter of a process's state, T if stopped; empty if there is no process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return ""
