"""Batch scripts: which kind one is, and how it is handed to SLURM."""

from __future__ import annotations

import re

from wkwdask.errors import FormatError

_KIND = re.compile(r"^#\s*kind:\s*(\S+)\s*$", re.MULTILINE)
_KINDS = ("allocation", "array")


def kind_of_script(text: str, where: str) -> str:
    """Tell the kind of a batch script by its line ``# kind: ...``."""
    kinds = _KIND.findall(text)
    if not text.startswith("#!"):
        raise FormatError(f"{where}: not a batch script: it has to begin with #!/usr/bin/env bash")
    if len(kinds) != 1 or kinds[0] not in _KINDS:
        raise FormatError(f"{where}: found {' and '.join(kinds) or 'no'} '# kind: ...', expected one of {', '.join(f'# kind: {kind}' for kind in _KINDS)}")
    return str(kinds[0])


def directives(text: str) -> list[str]:
    """List what a batch script tells SLURM."""
    return [line.removeprefix("#SBATCH").partition(" #")[0].strip() for line in text.splitlines() if line.startswith("#SBATCH")]
