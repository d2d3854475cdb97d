"""HTML report of a command: its result with files and speed, or its failures, a picture, and a link
to dask's performance report."""

from __future__ import annotations

import os
import re
import shlex
import socket
import sys
import time
from html import escape
from typing import Any

from wkwdask.cli.messages import on_command_line
from wkwdask.cli.results import Facts
from wkwdask.model.summary import html_table
from wkwdask.store.paths import is_bucket, split
from wkwdask.store.store import store_at

_PIXELS = 480
_STYLE = """
body { font: 15px sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em }
th, td { padding: 2px 12px 2px 0; text-align: left }
pre { white-space: pre-wrap }
img { max-width: 100% }
"""


def write_page(
    path: str,
    *,
    result: Any = None,
    error: Exception | None = None,
    performance_report: str | None = None,
) -> None:
    """Write the report of the command of this process, which returned a result or raised an
    error."""
    command = shlex.join(["wkwdask", *sys.argv[1:]])
    facts = {
        "finished": time.strftime("%Y-%m-%d %H:%M:%S"),
        "machine": socket.gethostname(),
        "folder": os.getcwd(),
    }
    parts = [f"<h1>{escape(command)}</h1>", html_table((), facts.items())]
    if error is not None:
        notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
        parts += ["<h2>Failed</h2>", f"<pre>{escape(on_command_line(f'{error}{notes}'))}</pre>"]
    else:
        value = result.value if isinstance(result, Facts) else result
        values = value if isinstance(value, list) else [value]
        parts += ["<h2>Result</h2>", *map(_html, values)]
    if performance_report is not None:
        link = (
            os.path.abspath(performance_report)
            if is_bucket(path)
            else os.path.relpath(performance_report, os.path.dirname(os.path.abspath(path)))
        )
        parts.append(f"<p><a href='{escape(link)}'>dask's performance report</a></p>")
    text = (
        "<!doctype html><html lang='en'><meta "
        f"charset='utf-8'><title>{escape(command)}</title><style>{_STYLE}</style>\n"
        + "\n".join(parts)
        + "\n</html>\n"
    )
    if is_bucket(path):
        folder, name = split(path)
        store_at(folder).put(name, text.encode())
        return
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _html(value: Any) -> str:
    """Return the card of a report or a plan, and the text of any other value."""
    text = (
        value.to_html(_PIXELS) if hasattr(value, "to_html") else f"<pre>{escape(str(value))}</pre>"
    )
    return "".join(
        part if part.startswith("<img ") else on_command_line(part)
        for part in re.split("(<img [^>]*>)", text)
    )
