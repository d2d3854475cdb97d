"""A manifest: the SHA-256 of every file of a folder, in the form of ``sha256sum``, which can check it too.

Text in, records out, and back. Opens nothing.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from wkwdask.errors import CorruptError

if TYPE_CHECKING:
    from collections.abc import Iterable

MANIFEST_NAME = "wkwdask-manifest.txt"
_LINE = re.compile(r"(\\?)([0-9a-f]{64}) [ *](.+)", re.DOTALL)
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}


def format_manifest(hashes: Iterable[tuple[str, str]], nbytes: int) -> str:
    """Write a manifest.

    Examples
    --------
    >>> print(format_manifest([("color/1/header.wkw", "0" * 64)], 16), end="")
    # wkwdask manifest: 1 files, 16 bytes; check it with "wkwdask verify --manifest check" or "sha256sum -c"
    0000000000000000000000000000000000000000000000000000000000000000  color/1/header.wkw
    """
    lines = [_line(path, digest) for path, digest in sorted(hashes)]
    head = f'# wkwdask manifest: {len(lines)} files, {nbytes} bytes; check it with "wkwdask verify --manifest check" or "sha256sum -c"'
    return "\n".join([head, *lines]) + "\n"


def _line(path: str, digest: str) -> str:
    """Write one line; names with a line break or backslash are escaped as GNU coreutils do."""
    escaped = "".join(_ESCAPES.get(letter, letter) for letter in path)
    return f"{'' if escaped == path else chr(92)}{digest}  {escaped}"


def parse_manifest(text: str, source: str) -> dict[str, str]:
    """Read a manifest, also one that ``sha256sum`` wrote."""
    found = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line or line.startswith("#"):
            continue
        named = _LINE.fullmatch(line)
        if named is None:
            raise CorruptError(f"{source}: line {number}: expected a SHA-256, two spaces and a path, found {line[:80]!r}")
        path = re.sub(r"\\(.)", lambda match: {"n": "\n", "r": "\r"}.get(match[1], match[1]), named[3]) if named[1] else named[3]
        found[path.removeprefix("./")] = named[2]
    return found
