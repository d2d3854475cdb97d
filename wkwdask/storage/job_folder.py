"""The folder of a job: where new mags are built before they appear, the locks on what they replace, and how they are published.

A job takes a lock for every folder that it will replace, builds beside them in a folder whose name begins with a dot, writes a publish record when
all is complete, renames, edits the JSON, and cleans up. Killed before the record, it leaves nothing visible and the next job removes
what it left; killed after it, the next job finishes the renames.
"""

from __future__ import annotations

import contextlib
import fcntl
import getpass
import json
import os
import secrets
import socket
import time
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from wkwdask.errors import ExistsError, LockedError
from wkwdask.formats.datasource import with_layer, with_mags
from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag
from wkwdask.storage.dataset import update_datasource
from wkwdask.storage.local import fsync_folder, inherit_permissions, publish_bytes, publish_folder, remove_temporaries, remove_tree
from wkwdask.storage.wkw import HEADER_NAME, is_mag

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

_FOLDER_PREFIX = ".wkwdask-job-"
_LOCK_SUFFIX = ".wkwdask-lock"
_OWNER_NAME = "owner.json"
_OWNERLESS_SECONDS = 3600.0
_RECORD_NAME = "publish.json"
PROVENANCE_NAME = ".wkwdask.json"


@dataclass(frozen=True, slots=True)
class Owner:
    """Who holds a lock."""

    job: str
    """Name of the job, unique."""
    command: str
    """What it does."""
    host: str
    """Name of the machine."""
    boot: str
    """What tells one start of the machine from the next."""
    pid: int
    """The process."""
    process_start: str
    """What tells the process from a later one with the same number."""
    user: str
    """Who started it."""
    since: str
    """When it started."""

    @classmethod
    def this_process(cls, command: str) -> Owner:
        """Describe this process as the owner of a new job."""
        pid, since = os.getpid(), time.strftime("%Y-%m-%d %H:%M:%S")
        try:
            user = getpass.getuser()
        except (KeyError, OSError):  # no entry in the password database, as in many containers
            user = f"uid {os.getuid()}"
        name = f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(4)}"
        return cls(name, command, socket.gethostname(), _boot(), pid, _process_start(pid), user, since)

    def is_gone(self) -> bool:
        """Tell whether the process is known to have ended; on another machine that cannot be known."""
        if self.host != socket.gethostname():
            return False
        return self.boot != _boot() or _process_start(self.pid) != self.process_start

    def __str__(self) -> str:
        return f"{self.command} by {self.user}, process {self.pid} on {self.host}, since {self.since}"


@dataclass(frozen=True, slots=True)
class NewMag:
    """One mag that a job builds."""

    staged: str
    """Name of its folder inside the job's folder."""
    folder: str
    """Where it is to appear."""


@dataclass(frozen=True, slots=True)
class LayerEdit:
    """What the JSON is to say once the mags are there."""

    dataset_folder: str
    """Where ``datasource-properties.json`` is."""
    layer: str
    """Name of the layer."""
    mags: tuple[tuple[Mag, str, int], ...]
    """Mag, path relative to the dataset, edge of a file [voxels]."""
    new_layer: tuple[str, BoundingBox, str, int] | None = None
    """Category, box, element class and channels, where the layer is new or changes its box."""

    def apply(self) -> None:
        """Change the JSON."""

        def change(document: dict[str, Any]) -> dict[str, Any]:
            if self.new_layer is not None:
                document = with_layer(document, self.layer, *self.new_layer)
            return with_mags(document, self.layer, self.mags)

        update_datasource(self.dataset_folder, change)

    def to_json(self) -> dict[str, Any]:
        """Give the form that a publish record holds."""
        new_layer = None
        if self.new_layer is not None:
            category, box, element_class, num_channels = self.new_layer
            new_layer = [category, [*box.topleft, *box.size], element_class, num_channels]
        return {
            "dataset_folder": self.dataset_folder,
            "layer": self.layer,
            "mags": [[list(mag.factors), path, edge] for mag, path, edge in self.mags],
            "new_layer": new_layer,
        }

    @classmethod
    def from_json(cls, value: dict[str, Any]) -> LayerEdit:
        """Read the form that a publish record holds."""
        new_layer = None
        if value["new_layer"] is not None:
            category, numbers, element_class, num_channels = value["new_layer"]
            new_layer = (category, BoundingBox.parse(numbers), element_class, num_channels)
        mags = tuple((Mag.parse(mag), path, edge) for mag, path, edge in value["mags"])
        return cls(value["dataset_folder"], value["layer"], mags, new_layer)


class JobFolder:
    """A running job's hold on the mags that it will publish.

    Parameters
    ----------
    parent : str
        Folder in which the mags will appear (the layer); made if need be.
    owner : Owner
        Who builds.
    """

    def __init__(self, parent: str, owner: Owner) -> None:
        self.parent = parent
        self.owner = owner
        self.root = f"{parent}/{_FOLDER_PREFIX}{owner.job}"
        self._locks: list[str] = []

    def start(self, targets: Sequence[str], existing: str, settings: dict[str, Any]) -> dict[str, Any] | None:
        """Lock the targets, finish or remove what dead jobs left, and make the folder.

        Parameters
        ----------
        targets : sequence of str
            Folders that will appear.
        existing : str
            ``"error"`` or ``"overwrite"``.
        settings : dict
            What the job is to do, as it will stand in the provenance of its mags.

        Returns
        -------
        dict or None
            Where a job with the same settings was killed while it published, its publishing was finished just now; then, with
            ``existing="error"``, the provenance of its mags, and this job is over. Else None.

        Raises
        ------
        LockedError
            Another job writes one of them; the message names it.
        ExistsError
            One of them is there and ``existing="error"``.
        """
        os.makedirs(self.parent, exist_ok=True)
        try:
            with _guarded(self.parent):
                done = self._take_over(targets, settings)
                if done is not None and existing == "error":
                    self.discard()
                    return done
                check_targets(targets, existing)
                os.makedirs(self.root, exist_ok=True)
                if not os.path.exists(f"{self.root}/{_OWNER_NAME}"):
                    publish_bytes(f"{self.root}/{_OWNER_NAME}", json.dumps(asdict(self.owner)).encode())
        except BaseException:
            self.discard()
            raise
        return None

    def publish(self, mags: Sequence[NewMag], edit: LayerEdit | None, provenance: dict[str, Any]) -> None:
        """Let complete mags appear, then the JSON say so, and end the job.

        Parameters
        ----------
        mags : sequence of NewMag
            All that were built.
        edit : LayerEdit, optional
            What to change in the JSON.
        provenance : dict
            Stays in each mag as ``.wkwdask.json``.
        """
        publication = secrets.token_hex(8)
        marks = {"job": self.owner.job, "publication": publication}
        for mag in mags:
            staged = f"{self.root}/{mag.staged}"
            publish_bytes(f"{staged}/{PROVENANCE_NAME}", json.dumps({**marks, **provenance}, indent=1).encode())
            _inherit_tree_permissions(staged, mag.folder)
            for entry in os.scandir(staged):
                if entry.is_dir():
                    fsync_folder(entry.path)
            fsync_folder(staged)
        record = {**marks, "mags": [asdict(mag) for mag in mags], "edit": edit.to_json() if edit is not None else None}
        publish_bytes(f"{self.root}/{_RECORD_NAME}", json.dumps(record).encode())
        try:
            _finish(self.root)
        except KeyboardInterrupt:
            _finish(self.root)
            raise
        finally:
            self._release()

    def discard(self) -> None:
        """End the job without publishing anything; where publishing has begun, the next job into the layer finishes it."""
        try:
            if not os.path.exists(f"{self.root}/{_RECORD_NAME}"):
                remove_tree(self.root)
        finally:
            self._release()

    def started_at(self) -> float:
        """Give the time at which the job's folder was made [seconds since the epoch]."""
        return os.stat(f"{self.root}/{_OWNER_NAME}").st_mtime

    def resume_ownership(self, targets: Sequence[str]) -> None:
        """Hold locks that another process of the same job took."""
        self._locks = [_lock_path(target) for target in targets]

    def _take_over(self, targets: Sequence[str], settings: dict[str, Any]) -> dict[str, Any] | None:
        """Lock the targets and end dead jobs; gives the provenance of the mags where that finished an equal job."""
        finished: set[str] = set()
        for target in sorted(targets):
            os.makedirs(os.path.dirname(target), exist_ok=True)
            remove_temporaries(os.path.dirname(target), os.path.basename(_lock_path(target)))
            finished |= self._lock(target)
        finished |= _clean_up(self.parent)
        done = [_provenance(target) for target in targets]
        if finished and all(item.get("job") in finished and item.get("settings") == settings for item in done):
            return done[0]
        return None

    def _lock(self, target: str) -> set[str]:
        """Take one lock; gives the dead jobs whose publishing was finished for it."""
        path = _lock_path(target)
        holder = _read_owner(path)
        finished: set[str] = set()
        if holder is not None and holder.job != self.owner.job:
            if not holder.is_gone():
                here = " (this very process: a write with compute=False that failed or has not ended)" if holder.pid == os.getpid() else ""
                left = f"{self.parent}/{_FOLDER_PREFIX}{holder.job}"
                raise LockedError(f"{target}: another job writes it: {holder}{here}; if that job is dead, remove {path} and {left}")
            finished = _end_dead_job(os.path.dirname(target), holder.job)
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
        publish_bytes(path, json.dumps(asdict(self.owner)).encode())
        self._locks.append(path)
        return finished

    def _release(self) -> None:
        for path in self._locks:
            holder = _read_owner(path)
            if holder is not None and holder.job == self.owner.job:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(path)
        self._locks = []


def check_targets(targets: Sequence[str], existing: str) -> None:
    """Make sure that folders are free, or are mags that may be replaced.

    Raises
    ------
    ExistsError
        One is taken and ``existing="error"``, or holds something else than one mag.
    """
    there = [target for target in targets if is_taken(target)]
    if there and existing == "error":
        more = f" (and {len(there) - 1} more)" if len(there) > 1 else ""
        raise ExistsError(f'{there[0]}: is there already{more}; existing="overwrite" (on the command line --overwrite) replaces it whole')
    links = [target for target in targets if os.path.islink(target)]
    if links:
        raise ExistsError(f"{links[0]}: is a symbolic link; write to the folder that it points to")
    for target in there:
        if not os.path.isdir(target) or not is_mag(target):
            raise ExistsError(f"{target}: holds something else than one mag, and is not replaced; name a mag's folder, such as DATASET/LAYER/1")


def lock_holder(target: str) -> Owner | None:
    """Give the living job that writes a folder, None where there is none."""
    holder = _read_owner(_lock_path(target))
    return holder if holder is not None and not holder.is_gone() else None


def is_taken(target: str) -> bool:
    """Tell whether something stands where a mag is to appear; an empty folder does not count."""
    if not os.path.lexists(target):
        return False
    return not os.path.isdir(target) or os.path.islink(target) or bool(os.listdir(target))


def _finish(root: str) -> None:
    """Do what a publish record says; doing it again changes nothing."""
    with open(f"{root}/{_RECORD_NAME}", "rb") as file:
        record = json.load(file)
    for mag in record["mags"]:
        if _provenance(mag["folder"]).get("publication") != record["publication"]:
            publish_folder(f"{root}/{mag['staged']}", mag["folder"])
    if record["edit"] is not None:
        LayerEdit.from_json(record["edit"]).apply()
    remove_tree(root)


def _provenance(folder: str) -> dict[str, Any]:
    """Read what a job left in a mag, an empty record where there is none."""
    try:
        with open(f"{folder}/{PROVENANCE_NAME}", "rb") as file:
            value = json.load(file)
    except (OSError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def _end_dead_job(parent: str, job: str) -> set[str]:
    """Finish the publishing of a dead job, or remove what it left; gives the job if it was finished."""
    root = f"{parent}/{_FOLDER_PREFIX}{job}"
    if os.path.exists(f"{root}/{_RECORD_NAME}"):
        _finish(root)
        return {job}
    remove_tree(root)
    return set()


def _clean_up(parent: str) -> set[str]:
    """End the jobs of dead processes whose locks are gone already; gives those that were finished."""
    with os.scandir(parent) as entries:
        left = [entry.path for entry in entries if entry.name.startswith(_FOLDER_PREFIX) and entry.is_dir(follow_symlinks=False)]
    finished: set[str] = set()
    for root in left:
        owner = _read_owner(f"{root}/{_OWNER_NAME}")
        if owner is not None and (owner.is_gone() or _stopped_publishing(root, owner.job)):
            with contextlib.suppress(OSError):  # what cannot be finished now must not keep other mags of the layer from being written
                finished |= _end_dead_job(parent, owner.job)
        elif owner is None and time.time() - os.stat(root).st_mtime > _OWNERLESS_SECONDS:
            remove_tree(root)  # a task that outlived its discarded job made the folder anew
    return finished


def _inherit_tree_permissions(staged: str, old: str) -> None:
    """Give a mag that replaces another the modes and groups of that one's folder and of its header, which stands for its files."""
    try:
        folder, file = os.stat(old), os.stat(f"{old}/{HEADER_NAME}")
        fresh_folder, fresh_file = os.stat(staged), os.stat(f"{staged}/{HEADER_NAME}")
    except (FileNotFoundError, NotADirectoryError):
        return
    if all((a.st_mode, a.st_gid) == (b.st_mode, b.st_gid) for a, b in ((folder, fresh_folder), (file, fresh_file))):
        return
    for path, _, names in os.walk(staged):
        inherit_permissions(path, folder)
        for name in names:
            inherit_permissions(f"{path}/{name}", file)


def _stopped_publishing(root: str, job: str) -> bool:
    """Tell whether a job has a publish record but holds none of its locks: then something went wrong while it published."""
    try:
        with open(f"{root}/{_RECORD_NAME}", "rb") as file:
            record = json.load(file)
    except FileNotFoundError:
        return False
    holders = [_read_owner(_lock_path(mag["folder"])) for mag in record["mags"]]
    return all(holder is None or holder.job != job for holder in holders)


@contextlib.contextmanager
def _guarded(folder: str) -> Iterator[None]:
    """Let one process at a time look at locks and take them, where the file system can do that."""
    fd = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _lock_path(target: str) -> str:
    folder, name = os.path.split(target)
    return f"{folder}/.{name}{_LOCK_SUFFIX}"


def _read_owner(path: str) -> Owner | None:
    try:
        with open(path, "rb") as file:
            return Owner(**json.load(file))
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        raise LockedError(f"{path}: a lock that cannot be read; remove it if no job writes here") from None


def _boot() -> str:
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            return file.read().strip()
    except OSError:
        return ""


def _process_start(pid: int) -> str:
    """Give a string that is the same as long as a process lives, an empty one where there is no such process."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            fields = file.read().rpartition(b")")[2].split()
        return "" if fields[0] in (b"Z", b"X") else fields[19].decode()
    except OSError:
        pass
    if os.path.isdir("/proc/self"):
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "alive"
