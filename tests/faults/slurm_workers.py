"""A dask cluster whose scheduler is a process and whose workers are SLURM jobs."""

from __future__ import annotations

import contextlib
import os
import sys
import threading

import distributed
from faults.cluster_processes import ClusterProcesses
from faults.drivers import ENVIRONMENT
from slurm.sites import wait_until
from support.warm_processes import state_of

held = []

# by itself dask takes the share of a job's memory that its threads have of the machine's cores
PLAIN = ("--no-nanny", "--memory-limit", "1GB")
"""Options of a worker."""

_SCRIPT = """\
#!/bin/bash
exec {python} -m distributed.cli.dask_worker {address} --host 127.0.0.1 --nthreads 1 --no-dashboard --local-directory {folder} \\
  --name job-$SLURM_JOB_ID {options}
"""  # noqa: E501


class SlurmWorkers:
    """Workers of one thread, each a separate job that is requeued when its node is lost; two of
    them fill a node of four cores.

    Parameters
    ----------
    slurm : PrivateSlurm
        Where they run.
    folder : Path
        For scripts and logs; made.
    """

    def __init__(self, slurm, folder):
        folder.mkdir()
        self.slurm = slurm
        self.folder = folder
        self.processes = ClusterProcesses(folder)
        self.jobs = []
        self._started = 0

    @property
    def address(self):
        """Address of the scheduler."""
        return self.processes.address

    def start_worker(self, *options, sbatch=()):
        """Submit a worker and give the id of its job."""
        script = self.folder / f"worker-{self._started}.sh"
        self._started += 1
        script.write_text(
            _SCRIPT.format(
                python=sys.executable,
                address=self.address,
                folder=self.folder,
                options=" ".join(options or PLAIN),
            )
        )
        limits = (
            "-c",
            "2",
            "--mem",
            "1200M",
            "--requeue",
            "--open-mode=append",
            "-o",
            f"{self.folder}/%j.log",
        )
        environment = [
            f"{name}={ENVIRONMENT[name]}" for name in ("PYTHONPATH", "WKWDASK_PROGRESS", "PATH")
        ]
        job = self.slurm.run(
            "sbatch",
            "--parsable",
            *limits,
            *sbatch,
            f"--export={','.join(environment)}",
            str(script),
        )
        self.jobs.append(job)
        return job

    def restore(self, workers):
        """Make sure that so many workers are there, on nodes that work."""
        self.slurm.make_idle()
        for job in [job for job in self.jobs if self.slurm.state(job) != "RUNNING"]:
            # a requeued one waits, and would start beside its replacement
            self.slurm.run("scancel", "--full", job, check=False)
            self.jobs.remove(job)
        while len(self.jobs) < workers:
            self.start_worker()

    def __enter__(self):
        self.processes.start_scheduler()
        return self

    def __exit__(self, *_):
        waiting = set(self.jobs) & set(self.slurm.jobs())
        if waiting:
            self.slurm.run("scancel", "--full", *waiting, check=False)
        self.processes.__exit__()

    @contextlib.contextmanager
    def connected(self, workers):
        """A client of the cluster, active, as soon as so many workers are there."""
        with distributed.Client(self.address, timeout=60) as client:
            client.wait_for_workers(workers, timeout=240)
            # a worker that was lost before may still be listed among so many
            names = {f"job-{job}" for job in self.jobs[-workers:]}
            wait_until(
                lambda: (
                    names
                    <= {
                        worker["name"]
                        for worker in client.scheduler_info(n_workers=-1)["workers"].values()
                    }
                ),
                240,
            )
            yield client


def allocate(nbytes):
    """Take memory and touch it, in a thread of a worker, and keep it."""
    threading.Thread(target=lambda: held.append(bytearray(b"x" * nbytes)), daemon=True).start()


def pid_of(client, name):
    """Return the process id of the worker of a name."""
    workers = client.scheduler_info(n_workers=-1)["workers"]
    address = next(address for address, worker in workers.items() if worker["name"] == name)
    return client.run(os.getpid, workers=[address])[address]


def is_running(pid):
    """Return whether a process runs; a zombie does not."""
    return state_of(pid) not in ("", "Z", "X")
