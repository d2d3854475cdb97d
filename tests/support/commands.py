"""The command ``wkwdask`` and scripts in this process, since another one takes seconds to start."""

from __future__ import annotations

import contextlib
import io
import runpy
import subprocess
import sys
from unittest import mock

from wkwdask import cli

COMMAND = cli.cli
"""What click knows of the command."""


class Terminal(io.StringIO):
    """What somebody types."""

    def isatty(self):
        return True


class Done(subprocess.CompletedProcess):
    """What a command printed, and its exit code."""

    @property
    def output(self):
        """What it printed, errors last."""
        return self.stdout + self.stderr


COMMAND = cli.cli
"""What click knows of the command."""


def run_here(*arguments, typed=None):
    """Give the exit code and what is printed, as ``subprocess.run`` does; ``typed`` is the answer at a terminal, where there is one."""
    out, errors, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["wkwdask", *map(str, arguments)]),
        mock.patch.object(sys, "stdin", io.StringIO() if typed is None else Terminal(typed)),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(errors),
    ):
        try:
            cli.main()
        except SystemExit as end:
            code = end.code
    return Done(arguments, code, out.getvalue(), errors.getvalue())


def run_script_here(path, *arguments):
    """Give what a script prints."""
    out = io.StringIO()
    with mock.patch.object(sys, "argv", [str(path), *map(str, arguments)]), contextlib.redirect_stdout(out):
        runpy.run_path(str(path), run_name="__main__")
    return out.getvalue()
