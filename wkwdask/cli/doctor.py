"""Command that checks the installation and this machine."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sys
import time
from functools import partial
from importlib import metadata
from typing import TYPE_CHECKING

import click

import wkwdask
from wkwdask.cli.results import FOUND, Facts, prints_check
from wkwdask.clusters.finding import Finding, finding

if TYPE_CHECKING:
    from collections.abc import Iterator

    from packaging.requirements import Requirement

_PACKAGE = "wkwdask"
_EXTRAS_OF_DEVELOPERS = {"benchmarks", "dev", "docs", "oracles", "test"}
_CLUSTER_TOOLS = ("sbatch", "munge", "qsub", "bsub", "kubectl")
_VOXEL_TYPE = re.compile(rb"\barray\((\w+), 1d, C\)")
_LEAST_NBYTES = 1 << 30
_LEAST_SHARED_NBYTES = 32 << 20  # containers have 64 MiB by default
_LEAST_OPEN_FILES = 1024


@click.command(short_help="Check the installation and this machine.")
@click.argument("urls", nargs=-1, metavar="[URL]...")
@prints_check
def doctor(urls: tuple[str, ...]) -> Facts:
    """Check versions, extras, compiled kernels, cluster programs, memory and limits, and whether
    each URL can be opened.

    A missing extra or cluster program is shown, but is not wrong. Exit code 0: all is fine; 1:
    something is wrong; 2: the check failed.

    \b
    Examples:
      wkwdask doctor
      wkwdask doctor s3://bucket/dataset precomputed://https://host/volume
      wkwdask doctor --json
    """
    findings = [
        *_versions(),
        *_extras(),
        *_kernels(),
        *_cluster_tools(),
        *_machine(),
        *map(_reach, urls),
    ]
    return facts_of(findings)


def facts_of(findings: list[Finding]) -> Facts:
    """Return the result of a command that checks something."""
    from wkwdask.cli.tables import print_findings

    is_fine = all(finding.is_fine for finding in findings)
    return Facts(findings, partial(print_findings, findings), 0 if is_fine else FOUND)


def _requirements() -> list[Requirement]:
    from packaging.requirements import Requirement

    return [Requirement(text) for text in metadata.requires(_PACKAGE) or ()]


def _installed(requirement: Requirement) -> str:
    try:
        return metadata.version(requirement.name)
    except metadata.PackageNotFoundError:
        return ""


def _is_met(requirement: Requirement) -> bool:
    return bool(found := _installed(requirement)) and requirement.specifier.contains(
        found, prereleases=True
    )


def _versions() -> Iterator[Finding]:
    yield finding("python", f"{platform.python_version()} ({sys.executable})")
    yield finding(_PACKAGE, f"{metadata.version(_PACKAGE)} ({os.path.dirname(wkwdask.__file__)})")
    for requirement in _requirements():
        if requirement.marker is None:
            yield finding(
                requirement.name,
                _installed(requirement) or "missing",
                _is_met(requirement),
                f"pip install '{requirement}'",
            )


def _extras() -> Iterator[Finding]:
    for extra in sorted(
        set(metadata.metadata(_PACKAGE).get_all("Provides-Extra") or ()) - _EXTRAS_OF_DEVELOPERS
    ):
        needed = [
            each
            for each in _requirements()
            if each.marker is not None and each.marker.evaluate({"extra": extra})
        ]
        missing = [each.name for each in needed if not _is_met(each)]
        remedy = f"pip install '{_PACKAGE}[{extra}]'" if missing else ""
        yield Finding(
            f"extra {extra}",
            f"without {', '.join(missing)}" if missing else "installed",
            True,
            remedy,
        )


def _kernels() -> Iterator[Finding]:
    from wkwdask.kernels.compiler import CACHE_VARIABLE, cache_folder

    folder = cache_folder()
    if folder is None:
        yield finding(
            "kernels",
            "no writable folder: compiled again in each process",
            False,
            f"set {CACHE_VARIABLE} to a folder of your own",
        )
        return
    files = [path for path in folder.iterdir() if path.is_file()]
    types = {
        match.decode()
        for path in files
        if path.name.startswith("reduce")
        for match in _VOXEL_TYPE.findall(path.read_bytes())
    }
    kept = f"{len(files)} in {folder}; pyramids of {', '.join(sorted(types)) or 'no type'}"
    yield finding("kernels", kept, bool(files), "wkwdask warmup compiles them beforehand")


def _cluster_tools() -> Iterator[Finding]:
    for name in _CLUSTER_TOOLS:
        yield finding(name, shutil.which(name) or "not found")


def _machine() -> Iterator[Finding]:
    import resource

    import psutil

    from wkwdask.graphs.runners import available_memory
    from wkwdask.model.summary import format_nbytes
    from wkwdask.store.cores import available_cores

    yield finding("cores", str(available_cores()))
    free = min(available_memory(), psutil.virtual_memory().available)
    yield finding(
        "free memory",
        format_nbytes(free),
        free >= _LEAST_NBYTES,
        "end other programs, or ask for more memory",
    )
    if os.path.isdir("/dev/shm"):
        shared = shutil.disk_usage("/dev/shm").free
        yield finding(
            "free /dev/shm",
            format_nbytes(shared),
            shared >= _LEAST_SHARED_NBYTES,
            "remove files there; a container needs --shm-size",
        )
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    is_enough = limit in (resource.RLIM_INFINITY, -1) or limit >= _LEAST_OPEN_FILES
    yield finding(
        "open files",
        "no limit" if limit == resource.RLIM_INFINITY else str(limit),
        is_enough,
        f"ulimit -n {_LEAST_OPEN_FILES}",
    )
    bytecode = "not written" if sys.dont_write_bytecode else "written"
    yield finding(
        "bytecode",
        bytecode,
        not sys.dont_write_bytecode,
        "unset PYTHONDONTWRITEBYTECODE: each start compiles all modules again",
    )


def _reach(url: str) -> Finding:
    """Open a path or URL."""
    from wkwdask.formats.opening import find

    begin = time.monotonic()
    try:
        layers = find(url).layers
    except Exception as error:
        return finding(url, f"{type(error).__name__}: {error}", False)
    return finding(
        url,
        (
            f"opened {', '.join(layer.name or layer.folder for layer in layers) or 'nothing'} in "
            f"{time.monotonic() - begin:.1f} s"
        ),
    )
