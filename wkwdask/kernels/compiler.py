"""Compile kernels with numba and keep their machine code in a cache folder.

The name of the cache folder contains a hash of all kernel sources and of the versions that the machine code depends on, because numba does not notice that a
function in another file has changed. If no folder is writable (a read-only installation and home), kernels are compiled in memory: only the first call of
each process is then slower.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numba

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CACHE_VARIABLE = "WKWDASK_CACHE_DIR"


def _candidates() -> Iterator[Path]:
    """Yield the folders to try, best first: the user's choice, the user's cache, node-local scratch."""
    if configured := os.environ.get(CACHE_VARIABLE):
        yield Path(configured)
    if base := os.environ.get("XDG_CACHE_HOME"):
        yield Path(base) / "wkwdask"
    with contextlib.suppress(RuntimeError):  # a user without an entry in the password database
        yield Path.home() / ".cache" / "wkwdask"
    with contextlib.suppress(FileNotFoundError):  # no usable temporary folder
        yield Path(tempfile.gettempdir()) / f"wkwdask-{os.getuid()}"


def _is_private_and_writable(folder: Path) -> bool:
    """Create the folder if missing. Return whether this user owns it and can write into it, and not everybody else can too."""
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = folder.stat()
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        return False
    return status.st_uid == os.getuid() and not status.st_mode & 0o002  # the cache is executed: another user's files must not end up in it


@cache
def cache_folder() -> Path | None:
    """Return the folder for machine code, None if no candidate is usable."""
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(source.read_bytes())
    for package in ("numba", "llvmlite", "lz4", "numpy"):
        digest.update(f"{package}={version(package)};".encode())
    name = f"kernels-{digest.hexdigest()[:16]}"
    return next((folder / name for folder in _candidates() if _is_private_and_writable(folder) and _is_private_and_writable(folder / name)), None)


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function on its first call, to run without the GIL, and cache its machine code if possible."""
    folder = cache_folder()
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = before if folder is None else str(folder)  # numba reads it at decoration, so kernels of other packages keep their folder
    try:
        dispatcher = _njit(function, keep=folder is not None)
    finally:
        config.CACHE_DIR = before

    def call(*arguments: Any) -> Any:
        try:
            return dispatcher(*arguments)
        except OSError:
            # The cache could not be written (a full disk or quota). The machine code was loaded before that, so the second call runs it.
            return dispatcher(*arguments)
        except SystemError as error:
            if _was_interrupted(error):
                raise KeyboardInterrupt from None
            raise

    return call


def _was_interrupted(error: BaseException | None) -> bool:
    """Return whether an error in machine code was Ctrl-C: numba wraps it in one SystemError for each call on the stack."""
    while isinstance(error, SystemError):
        error = error.__cause__
    return isinstance(error, KeyboardInterrupt)


def _njit(function: Callable[..., Any], *, keep: bool) -> Callable[..., Any]:
    compiled: Callable[..., Any] = numba.njit(function, nogil=True, cache=keep, error_model="numpy")
    return compiled


def helper(function: Callable[..., Any]) -> Callable[..., Any]:
    """Mark a function that kernels call. It is compiled into each of them."""
    compiled: Callable[..., Any] = numba.njit(function, nogil=True, error_model="numpy")
    return compiled
