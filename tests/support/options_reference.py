"""The reference of all storage options, ``docs/options.md``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wkwdask.model.options import options_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wkwdask.model.options import StorageOptions


def reference(records: Sequence[type[StorageOptions]]) -> str:
    """Write the reference of all options in Markdown."""
    parts = [
        "# Storage options\n\nEach format takes its own options, in Python (`chunk_shape=(64, 64, "
        "64)`) and on the command line (`--chunk-shape 64,64,64`); one number is a cube. "
        "If new data are derived from stored data, options that are not given are those of the "
        "source. The defaults below apply to all other new data. "
        "This page is generated from the records in `wkwdask/formats/*/options.py`."
    ]
    for record in records:
        rows = [f"## {record.title}", "", "| option | values | default | |", "|---|---|---|---|"]
        for name, option in options_of(record):
            values = (
                f"{option.bounds[0]} to {option.bounds[1]}"
                if option.bounds
                else {"number": "whole number", "shape": "x, y, z"}.get(option.kind, "")
            )
            words = (
                ", `True` (`auto`), `False` (`none`)"
                if option.accepts_bool
                else "".join(f", {word}" for word in option.words)
            )
            cells = (
                f"`{name}`",
                f"{', '.join(option.choices) or values}{words}",
                option.default_text,
                option.text(with_default=False),
            )
            rows.append(
                f"| {' | '.join(cells)} |".replace("{auto}", "`True`").replace("{none}", "`False`")
            )
        if record.levels:
            rows += [
                "",
                "Levels: "
                + "; ".join(
                    f"{name} {least} to {most} (default {usual})"
                    for name, (usual, least, most) in record.levels.items()
                )
                + ".",
            ]
        parts.append("\n".join(rows))
    return "\n\n".join(parts) + "\n"
