"""HTML report of a command: its result with files and speed, or its failures, a picture, and a link to dask's performance report."""

from __future__ import annotations

import os
import shlex
import socket
import sys
import time
from html import escape
from typing import TYPE_CHECKING, Any

from wkwdask.cli.messages import on_command_line
from wkwdask.cli.results import Facts
from wkwdask.runs.report import Report, html_table

if TYPE_CHECKING:
    from wkwdask.runs.report import MagReport

_PIXELS = 480
_STYLE = """
body { font: 15px sans-serif; max-width: 70em; margin: 2em auto; padding: 0 1em }
th, td { padding: 2px 12px 2px 0; text-align: left }
pre { white-space: pre-wrap }
img { max-width: 100% }
"""


def write_page(path: str, *, result: Any = None, error: Exception | None = None, performance_report: str | None = None) -> None:
    """Write the report of the command of this process, which returned a result or raised an error."""
    command = shlex.join(["wkwdask", *sys.argv[1:]])
    facts = {"finished": time.strftime("%Y-%m-%d %H:%M:%S"), "machine": socket.gethostname(), "folder": os.getcwd()}
    parts = [f"<h1>{escape(command)}</h1>", html_table((), facts.items())]
    if error is not None:
        notes = "".join(f"\n{note}" for note in getattr(error, "__notes__", ()))
        parts += ["<h2>Failed</h2>", f"<pre>{escape(on_command_line(f'{error}{notes}'))}</pre>"]
    else:
        values = result.value if isinstance(result, Facts) else [result]
        parts += ["<h2>Result</h2>", *map(_html, values)]
    if performance_report is not None:
        link = os.path.relpath(performance_report, os.path.dirname(os.path.abspath(path)))
        parts.append(f"<p><a href='{escape(link)}'>dask's performance report</a></p>")
    text = f"<!doctype html><html lang='en'><meta charset='utf-8'><title>{escape(command)}</title><style>{_STYLE}</style>\n" + "\n".join(parts) + "\n</html>\n"
    with open(path, "w", encoding="utf-8") as file:
        file.write(text)


def _html(value: Any) -> str:
    """Return the card of a report or a plan, with a picture of the finest mag that is quickly drawn; the text of any other value."""
    if not hasattr(value, "_repr_html_"):
        return f"<pre>{escape(on_command_line(str(value)))}</pre>"
    pictures = map(_picture, value.mags) if isinstance(value, Report) else ()
    return on_command_line(value._repr_html_()) + next(filter(None, pictures), "")


def _picture(mag: MagReport) -> str:
    from wkwdask.api.layers import image_tag, is_quickly_drawn
    from wkwdask.formats.opening import find
    from wkwdask.viewer.slices import is_segmentation

    try:
        image, volume = find(mag.path).open(None, None)
        category = "segmentation" if is_segmentation(image, volume) else "color"
        return image_tag({category: volume}, volume.lengths_nm, _PIXELS) if is_quickly_drawn(volume) else ""
    except Exception:  # the report is of more use without a picture than not at all
        return ""
