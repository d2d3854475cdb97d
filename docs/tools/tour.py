"""Tour of the command line: ``python docs/tools/tour.py`` runs the commands, and writes
``docs/images/tour.cast`` (asciicast 2) and the animation of it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from html import escape
from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "images"
COMMANDS = (
    "wkwdask info demo-dataset",
    "wkwdask pyramid demo-dataset/color --overwrite",
    "wkwdask convert demo-dataset em.ome.zarr --layer color",
    "wkwdask info em.ome.zarr",
    "wkwdask verify demo-dataset",
    "wkwdask labels demo-dataset/segmentation -o labels.csv",
)
COLUMNS, ROWS = 110, 16
KEY_SECONDS, READING_SECONDS = 0.05, 3.0
PROMPT, INK, GROUND = "$ ", "#eceff1", "#263238"
COLORS = {
    "1": "#ffffff",
    "2": "#90a4ae",
    "31": "#ff8a65",
    "32": "#80cbc4",
    "33": "#ffe082",
    "34": "#90caf9",
    "35": "#ce93d8",
    "36": "#80deea",
}
CLEAR = "\x1b[2J\x1b[H"


def record() -> str:
    """Run the commands and return a recording of what they print, in which they seem typed."""
    lines: list[str] = []
    now = 0.5

    def put(text: str) -> None:
        lines.append(json.dumps([round(now, 3), "o", text]))

    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {
        **os.environ,
        "PATH": path,
        "COLUMNS": str(COLUMNS),
        "WKWDASK_PROGRESS": "off",
        "FORCE_COLOR": "1",
    }
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run(
            ["wkwdask", "demo", "demo-dataset"],
            cwd=folder,
            env=environment,
            check=True,
            capture_output=True,
        )
        for command in COMMANDS:
            put(CLEAR + PROMPT)
            for letter in command:
                now += KEY_SECONDS
                put(letter)
            started = time.monotonic()
            done = subprocess.run(
                command.split(),
                cwd=folder,
                env=environment,
                check=True,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            now += time.monotonic() - started
            put("\r\n" + done.stdout.replace(folder, "/data").replace("\n", "\r\n"))
            now += READING_SECONDS
        put(CLEAR)
    header = {
        "version": 2,
        "width": COLUMNS,
        "height": ROWS,
        "title": "wkwdask on the command line",
    }
    return "\n".join([json.dumps(header), *lines, ""])


def animation(cast: str) -> str:
    """Return an SVG that shows a recording again and again; each letter and line appears by an
    animation of CSS.

    It begins at the end of the first command, which is also what a reader sees who has turned
    animations off.
    """
    header, *events = map(json.loads, cast.splitlines())
    total = events[-1][0]
    shown: list[tuple[float, float, int, int, str]] = []  # from, until, row, column, text
    screen: list[tuple[float, int, int, str]] = []
    row = column = 0
    for moment, _, text in events:
        if text.startswith(CLEAR):
            shown += [(start, moment, *rest) for start, *rest in screen]
            screen, row, column = [], 0, 0
        for part in re.split(r"(\r\n)", text.removeprefix(CLEAR)):
            if part == "\r\n":
                row, column = row + 1, 0
            elif part:
                screen.append((moment, row, column, part))
                column += len(re.sub(r"\x1b\[[\d;]*m", "", part))
    width, height = header["width"] * 8 + 24, header["height"] * 18 + 24
    styles, texts = [], []
    first_end = min(end for _, end, *_ in shown)
    for number, (start, end, row, column, text) in enumerate(shown):
        times = f"{100 * start / total:.2f}%{{opacity:1}}{100 * end / total:.2f}%"
        styles.append(
            "@keyframes "
            f"k{number}{{0%{{opacity:0}}{times},to{{opacity:0}}}}#t{number}{{animation-name:k{number}}}"
        )
        is_first = ' class="first"' if end == first_end else ""
        texts.append(
            f'<text id="t{number}"{is_first} x="{12 + 8 * column}" '
            f'y="{28 + 18 * row}">{colored(text)}</text>'
        )
    began = f"{READING_SECONDS - first_end:.2f}s"
    style = (
        f"text{{animation:{total:.1f}s step-end {began} "
        f"infinite;opacity:0;white-space:pre;fill:{INK}}}.first{{opacity:1}}" + "".join(styles)
    )
    style += "@media (prefers-reduced-motion:reduce){text{animation:none!important}}"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{header["title"]}"'
    )
    ground = f'<rect width="{width}" height="{height}" rx="8" fill="{GROUND}"/>'
    return (
        f'{head} font-family="ui-monospace, monospace" '
        f'font-size="13.3"><style>{style}</style>{ground}\n' + "\n".join(texts) + "\n</svg>\n"
    )


def colored(text: str) -> str:
    """Return the spans of a line with the colors of a terminal."""
    first, *rest = re.split(r"\x1b\[([\d;]*)m", text)
    spans = [escape(first)]
    for codes, words in zip(rest[::2], rest[1::2], strict=True):
        color = next((COLORS[code] for code in reversed(codes.split(";")) if code in COLORS), None)
        spans.append(
            escape(words) if color is None else f'<tspan fill="{color}">{escape(words)}</tspan>'
        )
    return "".join(spans)


if __name__ == "__main__":
    cast = record()
    (FOLDER / "tour.cast").write_text(cast, encoding="utf-8")
    (FOLDER / "tour.svg").write_text(animation(cast), encoding="utf-8")
