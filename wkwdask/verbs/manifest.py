"""Manifests: the SHA-256 of every file below a folder, in the format of ``sha256sum``, which can
check them too."""

from __future__ import annotations

import contextlib
import hashlib
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from wkwdask.errors import CorruptError, MissingError
from wkwdask.formats.record_paths import is_job_folder
from wkwdask.model.summary import format_nbytes
from wkwdask.runs.drive import Phase, Work
from wkwdask.runs.job import FlatJob, Result, Task
from wkwdask.store.documents import replace_document
from wkwdask.store.locks import GUARD_NAME, is_lock
from wkwdask.store.paths import TEMPORARY_SUFFIX, basename, dirname, is_remote, join
from wkwdask.store.store import store_at

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Iterator

MANIFEST_NAME = "wkwdask-manifest.txt"
_LINE = re.compile(r"(\\?)([0-9a-f]{64}) [ *](.+)", re.DOTALL)
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}


def format_manifest(hashes: Iterable[tuple[str, str]], nbytes: int) -> str:
    """Format a manifest.

    Examples
    --------
    >>> print(format_manifest([("color/1/header.wkw", "0" * 64)], 16), end="")
    # wkwdask manifest: 1 files, 16 bytes; check it with "wkwdask verify --manifest check" or "sha256sum -c"
    0000000000000000000000000000000000000000000000000000000000000000  color/1/header.wkw
    """  # noqa: E501
    lines = [_line(path, digest) for path, digest in sorted(hashes)]
    head = (
        f'# wkwdask manifest: {len(lines)} files, {nbytes} bytes; check it with "wkwdask verify '
        '--manifest check" or "sha256sum -c"'
    )
    return "\n".join([head, *lines]) + "\n"


def _line(path: str, digest: str) -> str:
    """Format one line; names with a line break or backslash are escaped as by GNU coreutils."""
    escaped = "".join(_ESCAPES.get(letter, letter) for letter in path)
    return f"{'' if escaped == path else chr(92)}{digest}  {escaped}"


def parse_manifest(text: str, source: str) -> dict[str, str]:
    """Parse a manifest, or a list that ``sha256sum`` wrote; return the SHA-256 by path."""
    hashes = {}
    for number, line in enumerate(text.split("\n"), 1):
        if not line or line.startswith("#"):
            continue
        fields = _LINE.fullmatch(line)
        if fields is None:
            raise CorruptError(
                f"{source}: line {number}: expected a SHA-256, two spaces and a path, found "
                f"{line[:80]!r}"
            )
        is_escaped, digest, path = fields.groups()
        if is_escaped:
            path = re.sub(
                r"\\(.)", lambda match: {"n": "\n", "r": "\r"}.get(match[1], match[1]), path
            )
        hashes[path.removeprefix("./")] = digest
    return hashes


_READ_NBYTES = 4 << 20


def hashed_files(
    root: str, inside: str = "", around: frozenset[str] = frozenset()
) -> Iterator[tuple[str, bool]]:
    """Yield the relative path of each file for a manifest, and whether it is regular. Locks, job
    folders, temporaries and links to a folder around them are left out."""
    store = store_at(join(root, inside) if inside else root)
    if (
        not inside
        and not is_remote(root)
        and store_at(dirname(root) or "/").is_file(basename(root))
    ):
        raise MissingError(f"{root}: is a file, expected a folder")
    if not store.exists():
        raise MissingError(f"{root}: not found")
    real = store.real()
    if real in around:
        return
    for entry in sorted(store.entries(), key=lambda entry: entry.name):
        path, name = join(inside, entry.name), entry.name
        if (
            path == MANIFEST_NAME
            or is_job_folder(name)
            or is_lock(name)
            or name == GUARD_NAME
            or name.endswith(TEMPORARY_SUFFIX)
        ):
            continue
        if entry.is_dir():
            yield from hashed_files(root, path, around | {real})
        else:
            yield path, entry.is_file()


def hash_file(root: str, name: str) -> tuple[str, int] | None:
    """Return the SHA-256 (hexadecimal) and size [bytes] of a file, None if it is absent."""
    store, state, nbytes = store_at(root), hashlib.sha256(), 0
    # piece by piece: a data file on a server may be larger than any document
    (file,) = store.open_heads([name], _READ_NBYTES)
    if file is None:
        return None
    with file:
        starts = range(0, file.nbytes, _READ_NBYTES)
        pieces: Iterable[bytes] = (file.read_some(_READ_NBYTES, start) for start in starts)
        if getattr(file, "encoding", ""):  # unpacked: a server keeps it packed
            with store.open_stream(name) as stream:
                pieces = [stream.read()]
        for piece in pieces:
            state.update(piece)
            nbytes += len(piece)
    return state.hexdigest(), nbytes


def read_manifest(root: str) -> dict[str, str]:
    path = f"{root}/{MANIFEST_NAME}"
    try:
        with store_at(root).open_stream(MANIFEST_NAME) as file:
            return parse_manifest(file.read().decode(errors="surrogateescape"), path)
    except FileNotFoundError:
        raise MissingError(f"{path}: not found: write a manifest first") from None


_FILES_PER_TASK = 64
_MAX_LISTED = 20


@dataclass(frozen=True, slots=True)
class HashSpec:
    """Task that hashes a group of files."""

    root: str
    paths: tuple[str, ...]
    """Paths relative to the root."""

    def task(self) -> Task:
        return Task(
            f"hashes of {len(self.paths)} files of {self.root} from {self.paths[0]} on",
            f"hash {self.paths[0]}",
            HashSpec.run,
            self,
        )

    def run(self) -> Result:
        """Read the files; the value is (path, hash, bytes) of each existing one."""
        hashes = []
        for path in self.paths:
            with contextlib.suppress(FileNotFoundError):  # a dangling link
                hashed = hash_file(self.root, path)
                if hashed is not None:  # else it was removed since it was listed
                    hashes.append((path, *hashed))
        return Result((), value=hashes)


@dataclass(frozen=True, slots=True)
class ManifestReport:
    """Report of a manifest that was written or checked."""

    path: str
    """Path of the manifest."""
    files: int
    """Number of hashed files."""
    nbytes: int
    """Size of the hashed files."""
    missing: tuple[str, ...] = ()
    """Listed files that do not exist."""
    changed: tuple[str, ...] = ()
    """Listed files with another hash."""
    additional: tuple[str, ...] = ()
    """Files that the manifest does not list."""
    not_hashed: tuple[str, ...] = ()
    """Pipes, devices and dangling links, which are neither files nor folders."""

    @property
    def is_equal(self) -> bool:
        """Whether exactly the listed files exist, with their hashes."""
        return not (self.missing or self.changed or self.additional)

    def __str__(self) -> str:
        lines = []
        for name in ("missing", "changed", "additional", "not_hashed"):
            paths, label = getattr(self, name), name.replace("_", " ")
            lines += [f"{label}: {path}" for path in paths[:_MAX_LISTED]]
            if len(paths) > _MAX_LISTED:
                lines.append(f"{label}: and {len(paths) - _MAX_LISTED} more")
        counts = (
            f"{len(self.missing)} missing, {len(self.changed)} changed, {len(self.additional)} "
            "additional"
        )
        return "\n".join(
            [*lines, f"{self.path}: {self.files:,} files, {format_nbytes(self.nbytes)}; {counts}"]
        )

    def to_json(self) -> dict[str, Any]:
        """Return plain values for ``json.dumps``."""
        return {"equal": self.is_equal, **{name: getattr(self, name) for name in self.__slots__}}


@dataclass
class Hashes(Work[None]):
    """Hashes of all files below a folder."""

    root: str
    found: dict[str, str] = field(default_factory=dict)
    """SHA-256 (hexadecimal) by relative path."""
    nbytes: int = 0
    others: list[str] = field(default_factory=list)
    """Paths that are neither files nor folders."""

    def job(self) -> FlatJob:
        """Return the job that hashes the files."""
        listed = list(hashed_files(self.root))
        paths = [path for path, is_regular in listed if is_regular]
        self.others = [path for path, is_regular in listed if not is_regular]

        def tasks() -> Iterator[Task]:
            return (
                HashSpec(self.root, tuple(paths[first : first + _FILES_PER_TASK])).task()
                for first in range(0, len(paths), _FILES_PER_TASK)
            )

        return FlatJob(tasks, -(-len(paths) // _FILES_PER_TASK), self._add)

    def _add(self, spec: HashSpec, result: Result) -> None:
        for path, digest, nbytes in result.value:
            self.found[path] = digest
            self.nbytes += nbytes

    def phases(self) -> Generator[Phase, str, None]:
        yield Phase(self.job(), f"hashing {self.root}")

    def write(self) -> ManifestReport:
        """Write the manifest atomically."""
        store = store_at(self.root)
        text = format_manifest(self.found.items(), self.nbytes)
        replace_document(store, MANIFEST_NAME, text.encode("utf-8", "surrogateescape"))
        path = store.path_of(MANIFEST_NAME)
        return ManifestReport(path, len(self.found), self.nbytes, not_hashed=tuple(self.others))

    def check(self) -> ManifestReport:
        """Compare with the existing manifest."""
        listed = read_manifest(self.root)
        return ManifestReport(
            f"{self.root}/{MANIFEST_NAME}",
            len(self.found),
            self.nbytes,
            tuple(sorted(listed.keys() - self.found.keys())),
            tuple(
                sorted(
                    path
                    for path in listed.keys() & self.found.keys()
                    if listed[path] != self.found[path]
                )
            ),
            tuple(sorted(self.found.keys() - listed.keys())),
            tuple(self.others),
        )
