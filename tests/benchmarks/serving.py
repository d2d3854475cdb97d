"""The worker's side of the talk: one JSON line in, one JSON line out. The first line says which
work to set up."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
import traceback
from dataclasses import asdict
from typing import Any

from .measure import measure, timed


def create(name: str, options: dict[str, Any]) -> Any:
    """Set up a work.

    Parameters
    ----------
    name : str
        Module and class below ``works``, such as ``ours.Read``.
    options : dict
        Arguments of the class.

    Returns
    -------
    work
        None where the module's tool is not installed.
    """
    module_name, class_name = name.split(".")
    module = importlib.import_module(f"{__package__}.works.{module_name}")
    if any(importlib.util.find_spec(package) is None for package in module.REQUIRES):
        return None
    return getattr(module, class_name)(**options)


class Server:
    """One work, and what can be asked of it."""

    def __init__(self) -> None:
        self._work: Any = None

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """Answer one request; an error is an answer too."""
        try:
            return getattr(self, request.pop("ask"))(**request)
        except Exception as error:
            notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
            return {
                "error": f"{traceback.format_exc(limit=-6)}\n{type(error).__name__}: {error}{notes}"
            }

    def setup(self, name: str, options: dict[str, Any]) -> dict[str, Any]:
        """Make the work, in place of the one before."""
        self._work = None
        self._work = create(name, options)
        if self._work is None:
            return {"missing": True}
        return {"nbytes": self._work.nbytes, "version": self._work.version()}

    def measure(self) -> dict[str, Any]:
        """Measure once."""
        return asdict(measure(self._work))

    def prepare(self) -> dict[str, Any]:
        """Prepare the work."""
        self._work.prepare()
        return {}

    def timed(self) -> dict[str, Any]:
        """Measure once, after :meth:`prepare`."""
        return asdict(timed(self._work))

    def digests(self) -> dict[str, Any]:
        """Hash what the last measurement made."""
        return {"digests": self._work.digests()}


def main() -> None:
    """Serve until the input ends. What libraries print goes to the log."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    server = Server()
    for line in sys.stdin:
        answers.write(json.dumps(server.answer(json.loads(line))) + "\n")
        answers.flush()
