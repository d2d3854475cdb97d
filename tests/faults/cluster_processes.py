"""A dask cluster of separate processes, as a site runs it: a test can kill, stop and restart its
scheduler and workers."""

from __future__ import annotations

import contextlib
import importlib
import random
import signal
import socket
import subprocess
import sys

from faults.drivers import wait_until
from support.warm_processes import ENVIRONMENT, WarmProcess


class ClusterProcesses:
    """A scheduler and two workers of one thread, without nannies: what dies stays dead until the
    test starts another.

    Parameters
    ----------
    folder : Path
        For what the processes print.
    host : str
        Address on which all processes listen.
    configuration : str
        Variables of the environment that dask reads.
    """

    def __init__(self, folder, host="127.0.0.1", **configuration):
        self._folder = folder
        self._configuration = configuration
        self._host = host
        self._started = []
        self._port = free_port()
        self.scheduler = None
        self.workers = []

    @property
    def address(self):
        """Address of the scheduler, which a restart keeps."""
        return f"tcp://{self._host}:{self._port}"

    def start_scheduler(self):
        """Start the scheduler, at the same address each time."""
        self.scheduler = self._start(
            "dask_scheduler",
            "--host",
            self._host,
            "--port",
            str(self._port),
            "--no-dashboard",
            "--no-show",
        )
        wait_until(self._listens)

    def _listens(self):
        with socket.socket() as probe:
            return probe.connect_ex((self._host, self._port)) == 0

    def start_worker(self, *options, inside=()):
        """Start a worker; ``inside`` is a command that runs another one, such as ``ip netns exec
        NAME``."""
        options = options or ("--no-nanny", "--host", self._host)
        common = ("--nthreads", "1", "--no-dashboard", "--local-directory", str(self._folder))
        worker = self._start("dask_worker", self.address, *common, *options, inside=inside)
        self.workers.append(worker)
        return worker

    def _start(self, module, *arguments, inside=()):
        log = open(self._folder / f"{len(self._started)}-{module}.log", "w")  # noqa: SIM115 (the process writes to it)
        with log:
            if inside:
                command = [*inside, sys.executable, "-m", f"distributed.cli.{module}", *arguments]
                process = subprocess.Popen(
                    command, env={**ENVIRONMENT, **self._configuration}, stdout=log, stderr=log
                )
            else:
                process = WarmProcess(
                    _run_command,
                    module,
                    arguments,
                    output=log.name,
                    errors=log.name,
                    **self._configuration,
                )
        self._started.append(process)
        return process

    def kill(self, process):
        """Kill one of the processes."""
        process.kill()
        process.wait()
        if process in self.workers:
            self.workers.remove(process)

    def restore(self):
        """Make sure that the scheduler and two workers are there."""
        if self.scheduler is None or self.scheduler.poll() is not None:
            for worker in list(self.workers):
                self.kill(worker)
            self.start_scheduler()
        # one that lost its scheduler ends by itself
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        for worker in self.workers[2:]:
            self.kill(worker)
        while len(self.workers) < 2:
            self.start_worker()

    def __enter__(self):
        self.restore()
        return self

    def __exit__(self, *_):
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)  # in case that it was stopped
                process.kill()
        for process in self._started:
            process.wait()


def _run_command(module, arguments):
    importlib.import_module(f"distributed.cli.{module}").main(arguments, prog_name=module)


def free_port():
    """Find a port that nobody listens on, none of those that the system gives to others while the
    scheduler is down."""
    for port in random.sample(range(10_000, 32_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise RuntimeError("no free port")
