"""The driver's side of the talk with a worker."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Self

from .measure import ONE_THREAD


class Worker:
    """A process that holds one work; use it in a ``with``.

    Parameters
    ----------
    name : str
        The work, such as ``ours.Read``.
    options : dict
        Its arguments.
    site : str
        A folder with packages that come before those of the environment, or empty.
    """

    def __init__(self, name: str, options: dict[str, Any], site: str = "") -> None:
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
        environment = (
            os.environ
            | ONE_THREAD
            | {"WKWDASK_PROGRESS": "off", "WKWDASK_CACHE_NBYTES": "0", "TQDM_DISABLE": "1"}
            | ({"PYTHONPATH": site} if site else {})
        )
        self._process = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            env=environment,
        )
        self.set_up(name, options)

    @property
    def pid(self) -> int:
        """Id of the process."""
        return self._process.pid

    def set_up(self, name: str, options: dict[str, Any]) -> dict[str, Any]:
        """Let the process hold this work from now on, and give its answer."""
        self.setup = self.ask("setup", name=name, options=options)
        return self.setup

    def ask(self, what: str, **arguments: Any) -> dict[str, Any]:
        """Send one request and wait for the answer, which has the key ``error`` where it failed."""
        try:
            self._process.stdin.write(json.dumps({"ask": what, **arguments}) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return {"error": f"the process is gone\n{self._log_tail()}"}
        line = self._process.stdout.readline()
        return json.loads(line) if line else {"error": f"the process died\n{self._log_tail()}"}

    def _log_tail(self) -> str:
        self._log.seek(0)
        return self._log.read().decode(errors="replace")[-2000:]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
        self._log.close()
