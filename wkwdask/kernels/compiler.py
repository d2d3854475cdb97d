"""Compile kernels with numba and keep their machine code in a cache folder.

The name of the cache folder contains a hash of all kernel sources and of the versions that the
machine code depends on. If no folder is writable (a read-only installation and home), kernels are
compiled in memory: only the first call of each process is then slower.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import sys
import tempfile
import uuid
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import llvmlite
import lz4
import numba
import numpy as np
from numba.core.compiler import CompileResult
from numba.core.runtime.nrt import rtsys
from numba.core.serialize import dumps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

CACHE_VARIABLE = "WKWDASK_CACHE_DIR"
# Machine code of kernels needs numba's runtime only. Before it loads any, numba's own cache also
# imports all that numba can compile, and SciPy with it: 0.3 s. A version that is not known yet gets
# all of it, since machine code that misses a symbol ends the process.
_NEEDS_RUNTIME_ONLY = (0, 60) <= numba.version_info.short <= (0, 68)


def _candidates() -> Iterator[Path]:
    """Yield the folders to try, best first: the user's choice, the user's cache, node-local
    scratch."""
    if configured := os.environ.get(CACHE_VARIABLE):
        yield Path(configured)
    if base := os.environ.get("XDG_CACHE_HOME"):
        yield Path(base) / "wkwdask"
    with contextlib.suppress(RuntimeError):  # a user without an entry in the password database
        yield Path.home() / ".cache" / "wkwdask"
    with contextlib.suppress(FileNotFoundError):  # no usable temporary folder
        yield Path(tempfile.gettempdir()) / f"wkwdask-{os.getuid()}"


def _is_own_and_writable(folder: Path) -> bool:
    """Create the folder if missing. Return whether this user owns it and can write into it, and not
    everybody else can too."""
    try:
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
        status = folder.stat()
    except OSError:
        return False
    # The cache is executed: another user's files must not end up in it.
    return (
        status.st_uid == os.getuid()
        and not status.st_mode & 0o002
        and os.access(folder, os.W_OK | os.X_OK)
    )


def _folder_name() -> str:
    digest = hashlib.sha256()
    for source in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(source.read_bytes())
    versions = (
        sys.version_info[:2],
        numba.__version__,
        llvmlite.__version__,
        lz4.__version__,
        np.__version__,
    )
    digest.update(repr(versions).encode())
    return f"kernels-{digest.hexdigest()[:16]}"


@cache
def cache_folder() -> Path | None:
    """Return the folder in which machine code is saved, None if no candidate is usable."""
    name = _folder_name()
    return next(
        (
            folder / name
            for folder in _candidates()
            if _is_own_and_writable(folder) and _is_own_and_writable(folder / name)
        ),
        None,
    )


@cache
def _readable_folders() -> tuple[Path, ...]:
    """Return the folders from which machine code is loaded: the one that the user chose, even if
    somebody else filled it, and the one to save in."""
    folders = [folder for folder in (cache_folder(),) if folder is not None]
    if configured := os.environ.get(CACHE_VARIABLE):
        shared = Path(configured) / _folder_name()
        with contextlib.suppress(OSError):
            if (
                shared not in folders
                and not (shared.stat().st_mode | shared.parent.stat().st_mode) & 0o002
            ):
                folders.insert(0, shared)
    return tuple(folders)


@cache
def _say_that_it_compiles() -> None:
    """Say once why the first calls take long, unless the folder for machine code has some: then
    only few kernels are missing."""
    folder = cache_folder()
    if os.environ.get("WKWDASK_PROGRESS") == "off":
        return
    if folder is None:
        where = (
            "for this process only, because no folder for machine code is writable; "
            f"{CACHE_VARIABLE} names one"
        )
    elif any(folder.iterdir()):
        return
    else:
        where = f"once, into {folder}; wkwdask warmup does it beforehand"
    print(f"wkwdask: compiling kernels, which takes some seconds ({where})", file=sys.stderr)


class _MachineCode:
    """Machine code of one kernel, a file for each signature. Takes the place of numba's cache,
    which cannot read a folder that it cannot write."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self._name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"

    def _file_name(self, signature: Any, codegen: Any) -> str:
        key = repr((signature, codegen.magic_tuple()))  # the second is the processor
        return f"{self._name}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Load the machine code for a signature; None if there is none."""
        name = self._file_name(signature, context.codegen())
        for folder in _readable_folders():
            with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
                raw = (folder / name).read_bytes()
                rtsys.initialize(context) if _NEEDS_RUNTIME_ONLY else context.refresh()
                return CompileResult._rebuild(context, *pickle.loads(raw))
        _say_that_it_compiles()
        return None

    def save_overload(self, signature: Any, result: Any) -> None:
        """Save machine code. Where that fails (a full disk or quota), the next process compiles
        again."""
        folder = cache_folder()
        if folder is None or result.library.has_dynamic_globals:
            return
        name = self._file_name(signature, result.codegen)
        temporary = folder / f"{name}.{uuid.uuid4().hex}.tmp"
        try:
            temporary.write_bytes(dumps(result._reduce()))
            temporary.replace(folder / name)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink()


def kernel(function: Callable[..., Any]) -> Callable[..., Any]:
    """Compile a function on its first call, to run without the GIL, and cache its machine code if
    possible."""
    dispatcher = _njit(function)
    dispatcher._cache = _MachineCode(function)

    def call(*arguments: Any) -> Any:
        try:
            return dispatcher(*arguments)
        except SystemError as error:
            if _was_interrupted(error):
                raise KeyboardInterrupt from None
            raise

    return call


def _was_interrupted(error: BaseException | None) -> bool:
    """Return whether an error in machine code was Ctrl-C: numba wraps it in one SystemError for
    each call on the stack."""
    while isinstance(error, SystemError):
        error = error.__cause__
    return isinstance(error, KeyboardInterrupt)


def _njit(function: Callable[..., Any], *, inline: bool = False) -> Any:
    return numba.njit(function, nogil=True, error_model="numpy", forceinline=inline)


def helper(function: Callable[..., Any], *, inline: bool = False) -> Callable[..., Any]:
    """Mark a function that kernels call. It is compiled into each of them.

    LLVM decides which calls it replaces by the code of the function; ``inline`` decides it here.
    """
    compiled: Callable[..., Any] = _njit(function, inline=inline)
    return compiled
