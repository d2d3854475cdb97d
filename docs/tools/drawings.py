"""Drawings of the site. ``python docs/tools/drawings.py`` writes them to ``docs/images/``."""

from __future__ import annotations

from pathlib import Path

FOLDER = Path(__file__).resolve().parent.parent / "images"
INK, PALE, TEAL, ORANGE, GRAY = "#263238", "#eceff1", "#26a69a", "#ff7043", "#90a4ae"


def rect(
    x: float, y: float, width: float, height: float, fill: str = PALE, stroke: str = INK
) -> str:
    """Return a rectangle."""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="2" fill="{fill}" '
        f'stroke="{stroke}"/>'
    )


def text(
    x: float,
    y: float,
    words: str,
    size: int = 13,
    anchor: str = "middle",
    fill: str = INK,
    weight: str = "normal",
) -> str:
    """Return a line of text."""
    return (
        f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{fill}" '
        f'font-weight="{weight}">{words}</text>'
    )


def arrow(x1: float, y1: float, x2: float, y2: float, color: str = INK) -> str:
    """Return a line with a tip at its end."""
    return (
        f'<line x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke="{color}" '
        'stroke-width="1.5" marker-end="url(#tip)"/>'
    )


def card(x: float, y: float, width: float, title: str, *lines: str, fill: str = PALE) -> str:
    """Return a box with a title and lines of text."""
    parts = [
        rect(x, y, width, 26 + 17 * len(lines), fill),
        text(x + width / 2, y + 18, title, weight="bold"),
    ]
    return "".join(
        parts
        + [text(x + width / 2, y + 36 + 17 * number, line, 12) for number, line in enumerate(lines)]
    )


def drawing(width: int, height: int, label: str, *parts: str) -> str:
    """Return a whole SVG on a light ground, which is readable in light and in dark pages."""
    tip = (
        '<marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        f'orient="auto"><path d="M0 0 8 4 0 8z" fill="{INK}"/></marker>'
    )
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
        f'height="{height}" role="img" aria-label="{label}"'
    )
    ground = f'<rect width="{width}" height="{height}" rx="6" fill="#fff"/>'
    return (
        f'{head} font-family="system-ui, sans-serif"><defs>{tip}</defs>{ground}\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def morton(number: int) -> tuple[int, int]:
    """Return the column and row of a block in Morton order, in two dimensions."""
    return sum((number >> 2 * bit & 1) << bit for bit in range(4)), sum(
        (number >> 2 * bit + 1 & 1) << bit for bit in range(4)
    )


def blocks() -> str:
    """Draw the blocks of a file in Morton order, and a square of them as one run of the file."""
    edge, left, top, run = 34, 24, 40, range(16, 32)
    parts = [
        text(left, 26, "blocks of a file (drawn in two dimensions)", anchor="start", weight="bold")
    ]
    for number in range(64):
        column, row = morton(number)
        parts.append(
            rect(
                left + column * edge,
                top + row * edge,
                edge,
                edge,
                "#b2dfdb" if number in run else PALE,
                "#b0bec5",
            )
        )
    points = " ".join(
        f"{left + (column + 0.5) * edge:g},{top + (row + 0.5) * edge:g}"
        for column, row in map(morton, range(64))
    )
    parts.append(f'<polyline points="{points}" fill="none" stroke="{TEAL}" stroke-width="1.5"/>')
    for number in (0, 1, 2, 3, 16, 31, 63):
        column, row = morton(number)
        x, y = left + (column + 0.5) * edge, top + (row + 0.5) * edge
        parts += [
            f'<circle cx="{x:g}" cy="{y:g}" r="9" fill="#fff" stroke="{TEAL}"/>',
            text(x, y + 4, str(number), 10),
        ]
    x, y, width = 340, 84, 5.6
    parts += [
        text(x, 62, "the same blocks in the file", anchor="start", weight="bold"),
        rect(x, y, 46, 40, "#fff"),
        text(x + 23, y + 24, "header", 11),
    ]
    parts += [rect(x + 46, y, 70, 40, "#fff"), text(x + 81, y + 24, "jump table", 11)]
    parts += [
        rect(
            x + 116 + number * width, y, width, 40, "#80cbc4" if number in run else PALE, "#b0bec5"
        )
        for number in range(64)
    ]
    start, end = x + 116 + run.start * width, x + 116 + run.stop * width
    parts += [
        arrow((start + end) / 2, 172, (start + end) / 2, y + 44),
        text((start + end) / 2, 190, "blocks 16 to 31: one run, one byte range", 12),
    ]
    lines = (
        "An aligned cube of blocks is a run.",
        "A run and its part of the jump table make a smaller file.",
        "Joined runs make a larger file. No block is decoded.",
    )
    parts += [text(x, 240 + 22 * number, line, anchor="start") for number, line in enumerate(lines)]
    return drawing(840, 336, "Blocks in Morton order, and a run of them in the file", *parts)


def pyramid() -> str:
    """Draw the stream of blocks that becomes all coarser mags."""
    width, left, parts = 22, 150, []
    for level, (name, count, fill) in enumerate(
        (
            ("mag 1: read", 32, PALE),
            ("mag 2: written", 8, "#b2dfdb"),
            ("mag 4: written", 2, "#ffccbc"),
        )
    ):
        y, step = 50 + 100 * level, 4**level * width
        parts.append(text(left - 14, y + 20, name, anchor="end", weight="bold"))
        for number in range(count):
            x = left + number * step + (step - width) / 2
            done = (number + 1) * 4**level <= 22
            parts.append(
                rect(x, y, width, 30, fill if done or level == 0 else "#fff", INK if done else GRAY)
            )
            if level < 2:
                parent = left + (number // 4) * 4 * step + 2 * step
                tip = (
                    arrow
                    if number % 4 == 3 and done
                    else lambda *ends: (
                        arrow(*ends).replace(' marker-end="url(#tip)"', "").replace(INK, GRAY)
                    )
                )
                parts.append(tip(x + width / 2, y + 32, parent, y + 96))
    now = left + 22 * width
    parts += [
        (
            f'<line x1="{now}" y1="30" x2="{now}" y2="296" stroke="{ORANGE}" stroke-width="2" '
            'stroke-dasharray="5 4"/>'
        ),
        text(now, 22, "now", fill=ORANGE),
    ]
    parts += [
        text(
            left,
            318,
            "Left of the line, blocks are finished. On the line, one block of each mag is open.",
            anchor="start",
        ),
        text(left, 340, "Here 4 blocks make one; in three dimensions 8 do.", anchor="start"),
    ]
    return drawing(880, 356, "One pass over the blocks of mag 1 writes all coarser mags", *parts)


def parts_of_a_format() -> str:
    """Draw the five parts between a box of voxels and stored bytes."""
    cards = (
        ("grid", "Which chunks", "does the box touch?"),
        ("naming", "Which file", "holds a chunk?"),
        ("store", "Where are the", "bytes of the file?"),
        ("layout", "Which bytes are", "the chunk?"),
        ("codec", "Which voxels do", "the bytes mean?"),
    )
    drawn = [
        card(20 + 166 * number, 70, 140, *lines, fill="#b2dfdb")
        for number, lines in enumerate(cards)
    ]
    drawn += [arrow(160 + 166 * number, 100, 184 + 166 * number, 100) for number in range(4)]
    drawn += [
        text(90, 36, "a box of voxels", weight="bold"),
        arrow(90, 42, 90, 66),
        arrow(754, 132, 754, 160),
        text(754, 178, "an array", weight="bold"),
    ]
    drawn.append(
        text(
            20,
            200,
            "A read asks the five parts in this order. A write asks them in the opposite order.",
            anchor="start",
        )
    )
    return drawing(
        844, 216, "The five parts of a format: grid, naming, store, layout, codec", *drawn
    )


def job() -> str:
    """Draw the life of a job, on a file system and in a bucket, and what a reader sees in each part
    of it."""
    cards = (
        ("plan", "Check sources, options,", "free space and locks."),
        ("build", "Tasks write files into the", "job's hidden folder."),
        ("publish", "One rename puts the", "new mag into place."),
        ("document", "The JSON lists", "the new mag."),
    )
    cards_in_bucket = (
        ("plan", "Take the lease of", "the mag."),
        ("build", "Tasks put objects under the", "new name of the mag."),
        ("commit", "A renewal of the lease", "states what is published."),
        ("switch", "One change makes the", "document list that name."),
    )
    fills = (PALE, PALE, "#ffccbc", "#b2dfdb")
    drawn = []
    for top, row in ((24, cards), (304, cards_in_bucket)):
        drawn += [
            card(20 + 206 * number, top, 176, *lines, fill=fills[number])
            for number, lines in enumerate(row)
        ]
        drawn += [
            arrow(196 + 206 * number, top + 30, 224 + 206 * number, top + 30) for number in range(3)
        ]
    drawn.append(card(226, 130, 176, "journal", "One line for each", "finished task."))
    drawn += [
        arrow(314, 86, 314, 126),
        arrow(226, 160, 150, 88),
        text(96, 140, "The same call", 12),
        text(96, 157, "resumes here.", 12),
    ]
    drawn += [
        rect(20, 222, 382, 34, "#fff"),
        text(211, 244, "killed here: readers see the old data, or no mag"),
    ]
    drawn += [
        rect(432, 222, 382, 34, "#fff"),
        text(623, 244, "from here on: readers see the whole new mag"),
    ]
    drawn += [
        text(20, 290, "In a bucket, where nothing can be renamed", anchor="start", weight="bold"),
        text(
            20,
            396,
            "From the commit on, the holder of the lease completes the switch. "
            "Readers see the old mag until then,",
            12,
            "start",
        ),
        text(20, 413, "and its objects stay for a grace period.", 12, "start"),
    ]
    label = "Plan, build, publish and document a new mag, on a file system and in a bucket"
    return drawing(836, 422, label, *drawn)


def splice() -> str:
    """Draw how a WKW block becomes a chunk of Zarr without decoding."""
    drawn = [
        text(20, 30, "WKW block", anchor="start", weight="bold"),
        rect(150, 12, 300, 28, "#b2dfdb"),
        text(300, 31, "LZ4 bytes", 12),
    ]
    drawn += [
        text(20, 100, "Zarr chunk", anchor="start", weight="bold"),
        rect(60 + 50, 82, 40, 28, "#ffccbc"),
        rect(150, 82, 300, 28, "#b2dfdb"),
    ]
    drawn += [
        text(130, 101, "24", 12),
        text(300, 101, "the same LZ4 bytes", 12),
        arrow(300, 42, 300, 78),
        text(470, 31, "in a WKW file, which becomes a shard", 12, "start"),
    ]
    drawn.append(text(470, 101, "a Blosc frame, which every Zarr reader decodes", 12, "start"))
    return drawing(800, 126, "24 bytes before a WKW block make it a Blosc frame", *drawn)


def logo() -> str:
    """Draw a pyramid of three mags."""
    squares = "".join(
        f'<rect x="{x}" y="{y}" width="{edge}" height="{edge}" rx="1" fill="{fill}"/>'
        for x, y, edge, fill in ((2, 14, 16, "#fff"), (14, 6, 10, "#b2dfdb"), (22, 2, 6, ORANGE))
    )
    return (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 32 32"><rect width="32" height="32" '
        f'rx="5" fill="#00796b"/>{squares}</svg>\n'
    )


DRAWINGS = {
    "blocks": blocks,
    "formats": parts_of_a_format,
    "job": job,
    "logo": logo,
    "pyramid": pyramid,
    "splice": splice,
}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, draw in DRAWINGS.items():
        (FOLDER / f"{name}.svg").write_text(draw(), encoding="utf-8")
