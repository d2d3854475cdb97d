"""Run ``wkwdask`` and scripts in this process, since another one takes seconds to start."""

from __future__ import annotations

import contextlib
import io
import runpy
import subprocess
import sys
from unittest import mock

from wkwdask import cli


class Terminal(io.StringIO):
    """Typed input."""

    def isatty(self):
        return True


class Done(subprocess.CompletedProcess):
    """Output and exit code of a command."""

    @property
    def output(self):
        """Standard output, then standard error."""
        return self.stdout + self.stderr


COMMAND = cli.cli
"""The command as an object of click."""


def run_here(*arguments, typed=None):
    """Return exit code and output, as ``subprocess.run`` does; ``typed`` is the answer at a
    terminal, None without one."""
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
    """Return the output of a script."""
    out = io.StringIO()
    with (
        mock.patch.object(sys, "argv", [str(path), *map(str, arguments)]),
        contextlib.redirect_stdout(out),
    ):
        runpy.run_path(str(path), run_name="__main__")
    return out.getvalue()
