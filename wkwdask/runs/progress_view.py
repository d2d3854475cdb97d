"""How progress looks: one line of text, or a bar on a terminal. What comes in is a record of :class:`wkwdask.runs.progress.Progress`."""

from __future__ import annotations

from typing import Any


def describe(record: dict[str, Any]) -> list[str]:
    """Say how far a job is, and how fast."""
    nbytes_in, nbytes_out, seconds = record["nbytes_in"], record["nbytes_out"], record["seconds"]
    moved = nbytes_in or nbytes_out
    left = seconds_left(record)
    said = [
        f"{_binary(nbytes_in)} in" if nbytes_in else "",
        f"{_binary(nbytes_out)} out" if nbytes_out else "",
        f"{moved / 1e6 / seconds:.0f} MB/s" if moved and seconds else "",
        f"{record['failed']} failed" if record["failed"] else "",
        f"{record['workers']} workers" if record["workers"] != 1 else "1 worker",
        "" if left is None else f"ETA {_clock(left)}" if left else f"after {_clock(seconds)}",
    ]
    return [item for item in said if item]


def format_line(record: dict[str, Any]) -> str:
    """Write progress as one line of a log.

    Examples
    --------
    >>> record = {"title": "pyramid of ds/color", "done": 110, "known": 10, "total": 800, "failed": 2, "nbytes_in": 14 << 30, "nbytes_out": 3 << 30}
    >>> format_line(record | {"seconds": 30, "workers": 8})
    'pyramid of ds/color: 120/800 tasks, 14.0 GiB in, 3.0 GiB out, 501 MB/s, 2 failed, 8 workers, ETA 00:03:02'
    """
    return ", ".join([f"{record['title']}: {describe_count(record)}", *describe(record)])


def describe_count(record: dict[str, Any]) -> str:
    """Say how many tasks are done."""
    return f"{record['done'] + record['known']}/{record['total']} tasks"


def seconds_left(record: dict[str, Any]) -> float | None:
    """Tell how long the rest will take at the pace so far; None where nothing is finished."""
    ended = record["done"] + record["failed"]
    if not record["done"]:
        return None
    left: float = max(0, record["total"] - record["known"] - ended) * record["seconds"] / ended
    return left


def _binary(nbytes: int) -> str:
    return f"{nbytes / (1 << 30):.1f} GiB" if nbytes >= 1 << 30 else f"{nbytes / (1 << 20):.1f} MiB"


def _clock(seconds: float) -> str:
    minutes, second = divmod(round(seconds), 60)
    hours, minute = divmod(minutes, 60)
    return f"{hours:02}:{minute:02}:{second:02}"


class Bar:
    """A bar on the terminal, which goes in the end."""

    def __init__(self, title: str) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

        columns = (TextColumn("{task.description}", markup=False), BarColumn(bar_width=20), MofNCompleteColumn(), TextColumn("{task.fields[said]}"))
        self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
        self._task = self._bar.add_task(title, total=None, said="")
        self._bar.start()

    def update(self, record: dict[str, Any]) -> None:
        """Show how far the job is."""
        self._bar.update(self._task, completed=record["done"] + record["known"], total=record["total"], said=", ".join(describe(record)))

    def stop(self) -> None:
        """Remove the bar."""
        self._bar.stop()
