"""Locks and their owners, takeover, publishing and its completion by the next job."""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest

import wkwdask
from wkwdask import BoundingBox, Mag, Sharding
from wkwdask.errors import DiscardWarning, ExistsError, LockedError, ResumeError
from wkwdask.formats import leftovers
from wkwdask.formats.edits import Edits
from wkwdask.formats.precomputed.info import Scale
from wkwdask.formats.precomputed.info import new_document as new_info
from wkwdask.formats.precomputed.info_file import InfoEdit
from wkwdask.formats.publication import (
    edit_kinds,
    format_publication,
    read_publication,
    write_record,
)
from wkwdask.formats.record_paths import RecordPaths
from wkwdask.formats.replaceable import is_occupied
from wkwdask.formats.webknossos.datasource import format_datasource, new_document
from wkwdask.formats.webknossos.document import read_datasource
from wkwdask.formats.webknossos.layer_edit import LayerEdit, MagRemoval
from wkwdask.formats.wkw.array import wkw_target
from wkwdask.formats.wkw.header import make_header
from wkwdask.model.states import FILE_RECORD_NAME
from wkwdask.runs import job_folder, job_records, journal
from wkwdask.runs.job_folder import JobFolder, NewMag
from wkwdask.runs.job_records import InterruptedJob, find_interrupted
from wkwdask.runs.journal import has_journal, read_journal
from wkwdask.store import by_path, files, locks
from wkwdask.store.locks import Owner, lock_holder
from wkwdask.store.paths import TEMPORARY_SUFFIX
from wkwdask.store.records import PROGRESS_NAME, PROVENANCE_NAME
from wkwdask.store.slurm import SlurmJob

OPTIONS = {"block_len": 8, "file_len": 1, "compression": "lz4"}
SETTINGS = {"command": "test"}


def dead_owner(command="a job that died"):
    """The owner of a job whose process has ended."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        start = locks._process_start(process.pid)
        process.communicate(b"\n")
    assert start
    return replace(Owner.this_process(command), pid=process.pid, process_start=start)


def put_mag(folder, content="new"):
    """Something that looks like a complete mag."""
    os.makedirs(f"{folder}/z0/y0")
    for name in ("header.wkw", "z0/y0/x0.wkw"):
        with open(f"{folder}/{name}", "w") as file:
            file.write(content)


def text(folder):
    return (folder / "z0" / "y0" / "x0.wkw").read_text()


def hidden(folder):
    return sorted(
        path.name
        for path in folder.rglob(".*")
        if path.name not in (PROVENANCE_NAME, FILE_RECORD_NAME, PROGRESS_NAME)
    )


@pytest.fixture
def layer(tmp_path):
    folder = tmp_path / "ds" / "color"
    folder.mkdir(parents=True)
    (tmp_path / "ds" / "datasource-properties.json").write_text(
        format_datasource(new_document("ds", (8, 8, 8)))
    )
    return folder


def start(layer, owner=None, names=("1",), existing="error"):
    job = folder_of(layer, owner or Owner.this_process("a test"), names)
    assert job.start(existing, SETTINGS) is None
    return job


def folder_of(layer, owner, names=("1",)):
    return JobFolder(str(layer), owner, [str(layer / name) for name in names])


EDIT_BOX = BoundingBox((1, 2, 3), (8, 8, 8))


def edit(layer):
    return LayerEdit(
        str(layer.parent),
        "color",
        ((Mag(1, 1, 1), "./color/1", 8),),
        ("color", EDIT_BOX, "uint8", 1),
    )


def test_a_mag_appears_and_the_job_leaves_nothing(layer):
    job = start(layer)
    put_mag(f"{job.root}/1-1-1")
    assert not (layer / "1").exists()
    job.publish([NewMag("1-1-1", str(layer / "1"))], edit(layer), {"settings": SETTINGS})
    assert text(layer / "1") == "new"
    assert hidden(layer.parent) == []
    record = read_datasource(str(layer.parent)).layer("color")
    assert (record.bounding_box, record.element_class, [mag.mag for mag in record.mags]) == (
        EDIT_BOX,
        "uint8",
        [Mag(1, 1, 1)],
    )
    assert json.loads((layer / "1" / PROVENANCE_NAME).read_text())["settings"] == SETTINGS


@pytest.mark.parametrize("exchange", [True, False])
def test_nothing_stale_stays(layer, monkeypatch, exchange):
    put_mag(layer / "1", "old")
    (layer / "1" / "z7" / "y0").mkdir(parents=True)
    (layer / "1" / "z7" / "y0" / "x5.wkw").write_text("old")
    if not exchange:
        monkeypatch.setattr(files, "exchange", lambda first, second: False)
    job = start(layer, existing="overwrite")
    put_mag(f"{job.root}/1-1-1")
    assert text(layer / "1") == "old"
    job.publish([NewMag("1-1-1", str(layer / "1"))], None, {})
    assert text(layer / "1") == "new"
    assert not (layer / "1" / "z7").exists()
    assert hidden(layer) == []


def test_edits_of_all_kinds_survive_a_record(layer):
    scale = Scale(
        "4_4_40",
        (9, 8, 7),
        (-3, 0, 1),
        (64, 64, 64),
        (4, 4, 40),
        "jpeg",
        Sharding(1, 2, 3),
        chunk_sizes=((64, 64, 64),),
        options={"jpeg_quality": 90},
    )
    info = InfoEdit(str(layer), (scale,), new_info("image", "uint8", 1), {"description": "mine"})
    for made in (edit(layer), MagRemoval(str(layer.parent), "color", (Mag(2, 2, 1),)), info):
        kept = json.loads(json.dumps(made.to_json()))
        assert edit_kinds()[kept["kind"]].from_json(kept) == made
    both, paths = Edits((info, edit(layer))), RecordPaths(f"{layer}/.wkwdask-1")
    os.makedirs(paths.root)
    record = format_publication(paths, "1", "id", [("1-1-1", f"{layer}/1", None)], both)
    assert str(layer) not in json.dumps(record)
    write_record(paths.root, record)
    assert read_publication(paths).edit == both


def test_discard_leaves_the_old(layer):
    put_mag(layer / "1", "old")
    job = start(layer, existing="overwrite")
    put_mag(f"{job.root}/1-1-1")
    job.discard()
    assert text(layer / "1") == "old"
    assert hidden(layer) == []


def test_existing_is_an_error(layer):
    put_mag(layer / "1", "old")
    with pytest.raises(ExistsError, match=r'color/1: already exists; existing="overwrite"'):
        start(layer)
    put_mag(layer / "2", "old")
    with pytest.raises(ExistsError, match=r"already exists \(and 1 more\)"):
        start(layer, names=("1", "2", "4"))
    assert hidden(layer) == []
    assert text(layer / "1") == "old"


def test_an_empty_folder_is_free_and_a_link_is_not(layer):
    (layer / "1").mkdir()
    assert not is_occupied(str(layer / "1"))
    start(layer).discard()
    (layer / "2").symlink_to(layer / "1")
    with pytest.raises(ExistsError, match="already exists"):
        start(layer, names=("2",))
    with pytest.raises(ExistsError, match="symbolic link"):
        start(layer, names=("2",), existing="overwrite")
    assert hidden(layer) == []


def test_a_living_job_is_named(layer):
    job = start(layer)
    with pytest.raises(
        LockedError,
        match=(
            rf"color/1: another job writes it: a test by .*, process {os.getpid()} on "
            rf"{socket.gethostname()}"
        ),
    ):
        start(layer, Owner.this_process("another"))
    assert lock_holder(str(layer / "1")) == job.owner
    start(layer, names=("2",)).discard()  # another mag of the layer is free
    job.discard()
    assert lock_holder(str(layer / "1")) is None
    start(layer).discard()


def test_the_second_of_several_locks_is_held(layer):
    job = start(layer, names=("2",))
    with pytest.raises(LockedError):
        start(layer, names=("1", "2"))
    start(layer, names=("1",)).discard()
    job.discard()
    assert hidden(layer) == []


@pytest.mark.parametrize(
    "where",
    [
        {"host": "elsewhere", "boot": "another"},
        {"namespace": "another container"},
        {"host": "elsewhere", "namespace": "another"},
    ],
)
def test_a_job_on_another_machine_cannot_be_known_to_be_dead(layer, where):
    """Nor can one in another container of this machine, whose process numbers are others."""
    job = start(layer, replace(dead_owner(), **{"host": socket.gethostname(), **where}))
    with pytest.raises(LockedError, match=f"on {where.get('host', socket.gethostname())}"):
        start(layer)
    assert os.path.isdir(job.root)


def test_a_lock_that_cannot_be_read(layer):
    (layer / ".1.wkwdask-lock").write_text("{")
    with pytest.raises(LockedError, match=r"\.1\.wkwdask-lock: this lock cannot be read"):
        start(layer)


def test_a_dead_job_is_taken_over(layer):
    dead = start(layer, dead_owner(), names=("1", "2"))
    put_mag(f"{dead.root}/1-1-1", "half")
    assert lock_holder(str(layer / "1")) is None
    job = start(layer, names=("1", "2"))
    assert not os.path.exists(dead.root)
    assert not (layer / "1").exists()
    job.discard()
    assert hidden(layer) == []


def test_the_folder_of_a_dead_job_whose_lock_is_gone(layer):
    dead = start(layer, dead_owner())
    (layer / ".1.wkwdask-lock").unlink()
    put_mag(f"{dead.root}/1-1-1", "half")
    start(layer, names=("2",)).discard()
    assert hidden(layer) == []


def test_a_reused_process_number_is_another_process(layer):
    owner = replace(Owner.this_process("before"), process_start="1")
    assert owner.is_gone()
    dead = start(layer, owner)
    start(layer).discard()
    assert not os.path.exists(dead.root)


def test_a_process_that_only_its_owner_can_see_may_live(monkeypatch):
    """As on machines whose /proc is mounted with hidepid."""
    before = dead_owner()

    def hidden(path, mode="r"):
        if path.startswith("/proc/") and path.endswith("/stat"):
            raise FileNotFoundError(2, "No such file or directory", path)
        return open(path, mode)

    def refused(pid, signal):
        raise PermissionError(1, "Operation not permitted")

    living = Owner.this_process("now")
    monkeypatch.setattr(locks, "open", hidden, raising=False)
    assert before.is_gone()
    assert not living.is_gone()
    monkeypatch.setattr(os, "kill", refused)
    assert not living.is_gone()


def test_a_machine_that_was_renamed_is_known_by_its_boot():
    assert replace(dead_owner(), host="elsewhere").is_gone()
    assert not replace(Owner.this_process("now"), host="elsewhere").is_gone()


def test_another_boot_is_another_process():
    assert replace(Owner.this_process("before"), boot="another").is_gone()
    assert not Owner.this_process("now").is_gone()


@pytest.mark.parametrize(
    ("machine", "own", "is_gone"),
    [("a", "b", False), ("a", "a", True), ("", "b", True), ("a", "", True), ("", "", True)],
)
def test_a_machine_of_the_same_name_is_another_one(monkeypatch, machine, own, is_gone):
    monkeypatch.setattr(locks, "_machine", lambda: own)
    elsewhere = replace(Owner.this_process("a job"), boot="another", machine=machine)
    assert elsewhere.is_gone() == is_gone
    assert not replace(Owner.this_process("a job"), machine=machine).is_gone()
    assert replace(dead_owner(), machine=machine).is_gone()


def killed_while_publishing(layer, monkeypatch, renames, owner=None, names=("1",)):
    """Publish mags as a process that dies after so many renames."""
    job = folder_of(layer, owner or dead_owner(), names)
    assert job.start("overwrite", SETTINGS) is None
    for name in names:
        put_mag(f"{job.root}/{name}")

    class Killed(BaseException):
        pass

    real, done = by_path.publish_folder, 0

    def counted(staged, target):
        nonlocal done
        if done == renames:
            raise Killed
        done += 1
        real(staged, target)

    with monkeypatch.context() as patch:
        patch.setattr(by_path, "publish_folder", counted)
        with pytest.raises(Killed):
            job.publish(
                [NewMag(name, str(layer / name)) for name in names],
                edit(layer),
                {"settings": SETTINGS, "report": {"answer": 42}},
            )
    return job


@pytest.mark.parametrize("renames", [0, 1, 2])
@pytest.mark.parametrize("old", [False, True])
def test_the_next_job_finishes_what_was_published_in_part(layer, monkeypatch, renames, old):
    names = ("1", "2", "4")
    if old:
        for name in names:
            put_mag(layer / name, "old")
    dead = killed_while_publishing(layer, monkeypatch, renames, names=names)
    assert [text(layer / name) == "new" for name in names if (layer / name).exists()].count(
        True
    ) == renames
    done = folder_of(layer, Owner.this_process("next"), names).start("error", SETTINGS)
    assert done["report"] == {"answer": 42}
    assert done["job"] == dead.owner.job
    assert [text(layer / name) for name in names] == ["new"] * 3
    assert read_datasource(str(layer.parent)).layer("color").bounding_box == EDIT_BOX
    assert hidden(layer.parent) == []


def test_a_job_with_other_settings_goes_on_after_finishing(layer, monkeypatch):
    killed_while_publishing(layer, monkeypatch, 0)
    job = folder_of(layer, Owner.this_process("next"))
    with pytest.raises(ExistsError):
        job.start("error", {"command": "another"})
    assert text(layer / "1") == "new"
    assert hidden(layer) == []
    assert job.start("overwrite", {"command": "another"}) is None
    job.discard()


def test_a_job_on_another_mag_finishes_it_too(layer, monkeypatch):
    killed_while_publishing(layer, monkeypatch, 0)
    job = start(layer, names=("2",))
    assert text(layer / "1") == "new"
    job.discard()


def test_two_renames_interrupted_between(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "exchange", lambda first, second: False)
    rename = os.replace
    for stop_after in range(3):
        staged, target = tmp_path / f"staged{stop_after}", tmp_path / f"target{stop_after}"
        put_mag(staged, "new")
        put_mag(target, "old")
        count = 0

        def counted(first, second, stop_after=stop_after):
            nonlocal count
            if count == stop_after:
                raise KeyboardInterrupt
            count += 1
            rename(first, second)

        with monkeypatch.context() as patch:
            patch.setattr(os, "replace", counted)
            with pytest.raises(KeyboardInterrupt):
                by_path.publish_folder(str(staged), str(target))
        if stop_after == 2:
            # the new content is in place: this is what a job knows by its provenance, and does not
            # ask again
            assert text(target) == "new"
            continue
        by_path.publish_folder(str(staged), str(target))
        assert text(target) == "new"
        assert text(staged) == "old"
        assert not os.path.lexists(f"{staged}.old")


def test_a_replaced_mag_keeps_mode_and_group(layer):
    put_mag(layer / "1", "old")
    (layer / "1").chmod(0o2750)
    if os.getuid() == 0:
        os.chown(layer / "1", -1, 12345)
    before = (layer / "1").stat()
    job = start(layer, existing="overwrite")
    put_mag(f"{job.root}/1-1-1")
    job.publish([NewMag("1-1-1", str(layer / "1"))], None, {})
    after = (layer / "1").stat()
    assert (after.st_mode, after.st_gid) == (before.st_mode, before.st_gid)


def test_a_replaced_mag_keeps_its_mode_where_the_group_may_not_be_set(layer, monkeypatch):
    put_mag(layer / "1", "old")
    (layer / "1").chmod(0o750)
    job = start(layer, existing="overwrite")
    put_mag(f"{job.root}/1-1-1")

    def refuse(*args, **options):
        raise PermissionError(1, "not your group")

    monkeypatch.setattr(os, "chown", refuse)
    job.publish([NewMag("1-1-1", str(layer / "1"))], None, {})
    assert text(layer / "1") == "new"
    assert stat.S_IMODE((layer / "1").stat().st_mode) == 0o750


def test_temporary_files_of_killed_workers_are_not_published(layer):
    """Their tasks are run again by others, and the job succeeds; what they had begun goes with the
    job's folder."""
    job = start(layer)
    header = make_header(np.uint8, block_len=8, file_len=2)
    target = wkw_target(
        f"{job.root}/1-1-1",
        header,
        5,
        BoundingBox((0, 0, 0), (16, 16, 16)),
        f"{job.root}/1-1-1.parts",
    )
    target.prepare()
    voxels = np.ones((1, 16, 16, 16), np.uint8)
    for part in (None, (0, 0, 0)):
        begun = target.open_part((0, 0, 0), part)
        begun.append(voxels, (0, 0, 0))
        output = begun._output if part else begun._shard_file.buffer
        output.close()
        assert any(
            name.endswith(TEMPORARY_SUFFIX) for _, _, names in os.walk(job.root) for name in names
        )
        output.file._output.close()
    again = target.open_part((0, 0, 0), None)
    again.append(voxels, (0, 0, 0))
    again.close()
    job.publish([NewMag("1-1-1", str(layer / "1"))], None, {})
    assert wkwdask.read(layer / "1").min() == 1
    assert hidden(layer) == []


def test_layer_edit_survives_json(layer):
    change = edit(layer)
    assert LayerEdit.from_json(json.loads(json.dumps(change.to_json()))) == change
    without = replace(change, new_layer=None)
    assert LayerEdit.from_json(json.loads(json.dumps(without.to_json()))) == without


def test_owner_survives_json():
    owner = Owner.this_process("x")
    assert Owner(**json.loads(json.dumps(asdict(owner)))) == owner


# --------------------------------------------------------------------------- jobs that can continue

PLAN = {"regions": [[8, 8, 8]]}


def interrupted(layer, owner=None, names=("1",), existing="error", line='{"task": "a"}\n'):
    """A job that died after it took note of a task."""
    job = folder_of(layer, owner or dead_owner(), names)
    assert job.start(existing, SETTINGS, PLAN) is None
    put_mag(f"{job.root}/1-1-1", "half")
    (layer.parent / "line").write_text(line)
    os.rename(layer.parent / "line", f"{job.root}/journal-0.jsonl")
    return job


def test_an_interrupted_job_is_found(layer):
    job = interrupted(layer, names=("1", "2"))
    for targets in (("1",), ("2",), ("4", "2")):
        found = find_interrupted(str(layer), [str(layer / name) for name in targets])
        assert found == InterruptedJob(job.owner.job, job.root, job.targets, SETTINGS, PLAN)
    assert find_interrupted(str(layer), [str(layer / "4")]) is None
    assert find_interrupted(str(layer / "nowhere"), [str(layer / "1")]) is None


@pytest.mark.parametrize("line", ["", '{"task": "a"}', '{"task": "a"'])
def test_without_a_whole_line_nothing_can_go_on(layer, line):
    job = interrupted(layer, line=line)
    assert find_interrupted(str(layer), [str(layer / "1")]) is None
    start(layer).discard()
    assert not os.path.exists(job.root)
    assert hidden(layer) == []


@pytest.mark.parametrize("existing", ["error", "resume"])
def test_the_same_job_takes_over_its_folder(layer, existing):
    before = interrupted(layer)
    again = folder_of(layer, Owner.this_process("a test", before.owner.job))
    assert again.start(existing, SETTINGS, {"regions": "other"}) is None
    assert again.root == before.root
    assert lock_holder(str(layer / "1")) == again.owner
    assert text(Path(f"{again.root}/1-1-1")) == "half"
    assert list(read_journal(again.root)) == [b'{"task": "a"}\n']
    # what was decided first holds
    assert find_interrupted(str(layer), [str(layer / "1")]).plan == PLAN
    again.publish([NewMag("1-1-1", str(layer / "1"))], None, {"settings": SETTINGS})
    assert text(layer / "1") == "half"
    assert hidden(layer) == []


def test_a_job_that_overwrites_goes_on_as_such(layer):
    put_mag(layer / "1", "old")
    before = interrupted(layer, existing="overwrite")
    again = folder_of(layer, Owner.this_process("a test", before.owner.job))
    assert again.start("error", SETTINGS, PLAN) is None
    again.publish([NewMag("1-1-1", str(layer / "1"))], None, {})
    assert text(layer / "1") == "half"


@pytest.mark.parametrize("names", [("1",), ("1", "2"), ("2", "4")])
@pytest.mark.parametrize("existing", ["error", "resume", "overwrite"])
def test_another_job_does_not_throw_away_what_can_go_on(layer, names, existing):
    before = interrupted(layer, names=("1", "2"))
    other = folder_of(layer, Owner.this_process("another"), names)
    with pytest.raises(
        ResumeError,
        match=r'an interrupted job writes the same mags; .* existing="restart" discards it',
    ):
        other.start(existing, {"command": "another"})
    assert find_interrupted(str(layer), before.targets).job == before.owner.job
    assert not os.path.exists(other.root)
    assert [lock_holder(str(layer / name)) for name in ("1", "2", "4")] == [None] * 3
    with pytest.warns(DiscardWarning, match="1 task, 0 B"):
        assert other.start("restart", {"command": "another"}) is None
    assert not os.path.exists(before.root)
    other.discard()
    assert [name for name in hidden(layer) if name.startswith(".wkwdask-job")] == []


@pytest.mark.parametrize("has_lock", [True, False])
@pytest.mark.parametrize("existing", ["error", "overwrite"])
def test_other_mags_of_the_layer_can_be_written_meanwhile(layer, has_lock, existing):
    before = interrupted(layer)
    if not has_lock:
        (layer / ".1.wkwdask-lock").unlink()
    job = start(layer, names=("2",), existing=existing)
    put_mag(f"{job.root}/2-2-2")
    job.publish([NewMag("2-2-2", str(layer / "2"))], None, {})
    assert find_interrupted(str(layer), [str(layer / "1")]).job == before.owner.job


def test_a_job_that_runs_is_no_interrupted_one(layer):
    """Two processes that found the same interrupted job: the second is told who has it, and takes
    nothing away."""
    before = interrupted(layer)
    first = folder_of(layer, Owner.this_process("a test", before.owner.job))
    first.start("error", SETTINGS)
    second = folder_of(
        layer, replace(Owner.this_process("a test", before.owner.job), since="later")
    )
    with pytest.raises(LockedError, match="another job writes it"):
        second.start("error", SETTINGS)
    assert list(read_journal(first.root))
    assert lock_holder(str(layer / "1")) == first.owner
    first.discard()
    assert hidden(layer) == []


def test_leaving(layer):
    for line, stays in (('{"task": "a"}\n', True), ("", False)):
        job = interrupted(layer, Owner.this_process("a test"), line=line)
        assert job.suspend() is stays
        assert os.path.exists(job.root) is stays
        assert lock_holder(str(layer / "1")) is None
        assert [name for name in hidden(layer) if not name.startswith(".wkwdask-job")] == []
        job.discard()
        assert not os.path.exists(job.root)


def test_leaving_after_publishing_has_begun(layer, monkeypatch):
    job = start(layer)
    put_mag(f"{job.root}/1-1-1")
    with monkeypatch.context() as patch:
        patch.setattr(job_folder.Publisher, "publish", lambda self: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            job.publish(
                [NewMag("1-1-1", str(layer / "1"))], None, {"settings": SETTINGS, "report": 3}
            )
    assert job.suspend() is True
    assert find_interrupted(str(layer), job.targets) is None  # it is not done again, but published
    assert folder_of(layer, Owner.this_process("next")).start("resume", SETTINGS)["report"] == 3
    assert hidden(layer) == []


def test_the_age_of_a_job_is_that_of_this_attempt(layer):
    before = interrupted(layer)
    os.utime(f"{before.root}/owner.json", (1000, 1000))
    assert before.seconds() > 1_000_000_000
    again = folder_of(layer, Owner.this_process("a test", before.owner.job))
    again.start("error", SETTINGS)
    assert 0 <= again.seconds() < 1_000_000
    again.discard()


def test_no_duration_is_negative_after_the_clock_was_set_back(layer):
    before = interrupted(layer)
    for path in (f"{before.root}/owner.json", before.root):
        os.utime(path, (1 << 33, 1 << 33))
    assert before.seconds() == 0
    assert job_records.age_seconds(before.root) == 0
    assert leftovers.age_seconds(f"{before.root}/owner.json") == 0


def test_an_update_leaves_its_targets(layer):
    """It locks them and writes into them."""
    put_mag(layer / "1", "old")
    job = start(layer, existing="update")
    assert text(layer / "1") == "old"
    with pytest.raises(LockedError):
        start(layer, Owner.this_process("another"), existing="overwrite")
    job.discard()
    assert text(layer / "1") == "old"
    assert hidden(layer) == []


# ----------------------------------------------------------------------------- through the public
# verbs


def fake_death(monkeypatch, write):
    """Run a job whose process seems to have died before its first rename."""

    class Killed(BaseException):
        pass

    def die(*_):
        raise Killed

    dead = dead_owner()
    with monkeypatch.context() as patch:
        patch.setattr(by_path, "publish_folder", die)
        patch.setattr(job_folder.Publisher, "publish", lambda self: die())
        patch.setattr(JobFolder, "discard", lambda self: None)
        patch.setattr(JobFolder, "suspend", lambda self: False)
        patch.setattr(
            Owner,
            "this_process",
            classmethod(lambda cls, command, job=None: replace(dead, command=command)),
        )
        with pytest.raises(Killed):
            write()


@pytest.mark.parametrize("existing", ["error", "overwrite"])
def test_the_same_call_finishes_a_killed_one(layer, monkeypatch, existing):
    array = np.arange(512, dtype=np.uint8).reshape(8, 8, 8)

    def write():
        return wkwdask.write(layer / "1", (0, 0, 0), array, existing=existing, **OPTIONS)

    fake_death(monkeypatch, write)
    assert not (layer / "1").exists()
    report = write()
    assert (report.files, report.voxels) == (1, 512)
    np.testing.assert_array_equal(wkwdask.read(layer / "1")[0], array)
    assert hidden(layer.parent) == []


def test_other_data_is_written_after_a_killed_job(layer, monkeypatch):
    """A job of the same geometry and options may bring other voxels."""
    first, second = np.full((8, 8, 8), 1, np.uint8), np.full((8, 8, 8), 2, np.uint8)
    fake_death(
        monkeypatch,
        lambda: wkwdask.write(layer / "1", (0, 0, 0), first, existing="overwrite", **OPTIONS),
    )
    wkwdask.write(layer / "1", (0, 0, 0), second, existing="overwrite", **OPTIONS)
    np.testing.assert_array_equal(wkwdask.read(layer / "1")[0], second)


def test_a_pyramid_of_new_voxels_is_built_after_a_killed_job(layer, monkeypatch):
    first, second = np.full((8, 8, 8), 1, np.uint8), np.full((8, 8, 8), 2, np.uint8)
    wkwdask.write(layer / "1", (0, 0, 0), first, **OPTIONS)
    fake_death(
        monkeypatch, lambda: wkwdask.build_pyramid(layer.parent, coarsest=2, existing="overwrite")
    )
    wkwdask.write(layer / "1", (0, 0, 0), second, existing="overwrite", **OPTIONS)
    wkwdask.build_pyramid(layer.parent, coarsest=2, existing="overwrite")
    assert (wkwdask.read(layer / "2") == 2).all()


def test_a_mag_that_is_being_written_is_locked_for_both_verbs(layer):
    wkwdask.write(layer / "1", (0, 0, 0), np.ones((8, 8, 8), np.uint8), **OPTIONS)
    job = start(layer, names=("2",))
    with pytest.raises(LockedError, match="color/2: another job writes it: a test"):
        wkwdask.build_pyramid(layer.parent, coarsest=4)
    with pytest.raises(LockedError, match="color/2: another job writes it: a test"):
        wkwdask.write(layer / "2", (0, 0, 0), np.ones((8, 8, 8), np.uint8), **OPTIONS)
    job.discard()
    wkwdask.build_pyramid(layer.parent, coarsest=4)
    assert hidden(layer.parent) == []


def test_the_mag_of_a_pyramid_may_be_in_another_folder_of_the_dataset(layer):
    """The JSON may list a path inside the dataset whose folder is not there yet."""
    wkwdask.write(layer / "1", (0, 0, 0), np.ones((8, 8, 8), np.uint8), **OPTIONS)
    path = layer.parent / "datasource-properties.json"
    document = json.loads(path.read_text())
    document["dataLayers"][0]["mags"].append({"mag": [2, 2, 2], "path": "./elsewhere/2"})
    path.write_text(json.dumps(document))
    wkwdask.build_pyramid(layer.parent, coarsest=2)
    assert (wkwdask.read(layer.parent / "elsewhere" / "2") == 1).all()
    assert hidden(layer.parent) == []


@pytest.mark.parametrize("existing", ["error", "overwrite"])
def test_an_interruption_while_publishing_is_finished(layer, monkeypatch, existing):
    if existing == "overwrite":
        put_mag(layer / "1", "old")
        put_mag(layer / "2", "old")
    job = start(layer, names=("1", "2"), existing=existing)
    for name in ("1-1-1", "2-2-2"):
        put_mag(f"{job.root}/{name}")
    real, calls = by_path.publish_folder, []

    def interrupted(staged, target):
        calls.append(target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(staged, target)

    monkeypatch.setattr(by_path, "publish_folder", interrupted)
    with pytest.raises(KeyboardInterrupt):
        job.publish(
            [NewMag("1-1-1", str(layer / "1")), NewMag("2-2-2", str(layer / "2"))], None, {}
        )
    assert [text(layer / name) for name in ("1", "2")] == ["new", "new"]
    assert hidden(layer) == []


@pytest.mark.parametrize("is_gone", [False, True])
def test_an_interruption_while_the_folder_is_removed(layer, monkeypatch, is_gone):
    """Ctrl-C when all is done, and what said so is on its way out, or all of the folder is."""
    job = start(layer)
    put_mag(f"{job.root}/1-1-1")
    real, calls = files.remove_tree, []

    def interrupted(folder):
        calls.append(folder)
        if len(calls) == 1:
            Path(f"{job.root}/{job_folder.RECORD_NAME}").unlink(missing_ok=True)
            if is_gone:
                real(folder)
            raise KeyboardInterrupt
        real(folder)

    monkeypatch.setattr(files, "remove_tree", interrupted)
    with pytest.raises(KeyboardInterrupt):
        job.publish([NewMag("1-1-1", str(layer / "1"))], None, {})
    assert text(layer / "1") == "new"
    assert hidden(layer) == []


def test_publishing_that_fails_is_finished_by_the_next_job(layer, monkeypatch):
    """A full disk, say, after the record was written: discarding keeps the record, the next job
    into the layer renames the rest."""
    job = start(layer)
    put_mag(f"{job.root}/1-1-1")

    def fails(staged, target):
        raise OSError(28, "No space left on device", target)

    with monkeypatch.context() as patch:
        patch.setattr(by_path, "publish_folder", fails)
        with pytest.raises(OSError, match="No space left"):
            job.publish(
                [NewMag("1-1-1", str(layer / "1"))],
                None,
                {"settings": SETTINGS, "report": "the report"},
            )
    job.discard()
    assert not (layer / "1").exists()
    assert (
        folder_of(layer, Owner.this_process("x")).start("error", SETTINGS)["report"] == "the report"
    )
    assert text(layer / "1") == "new"
    assert hidden(layer) == []


@pytest.mark.parametrize("end", [JobFolder.suspend, JobFolder.discard])
def test_nothing_is_deleted_while_the_server_does_not_answer(layer, monkeypatch, end):
    """An outage after the record was written: what it names is not taken for absent."""
    job = start(layer)
    put_mag(f"{job.root}/1-1-1")

    def fails(path, *others, **options):
        raise OSError(errno.EIO, "Input/output error", path)

    with monkeypatch.context() as patch:
        patch.setattr(by_path, "publish_folder", fails)
        with pytest.raises(OSError, match="Input/output"):
            job.publish([NewMag("1-1-1", str(layer / "1"))], None, {})
    with monkeypatch.context() as patch:
        patch.setattr(os, "access", lambda path, mode: False)
        patch.setattr(os, "stat", fails)
        with pytest.raises(OSError, match="Input/output"):
            end(job)
    start(layer, names=("2",)).discard()
    assert text(layer / "1") == "new"
    assert hidden(layer) == []


def test_a_job_that_is_killed_while_its_folder_is_deleted_leaves_nothing(layer, monkeypatch):
    """The owner, which tells that the job is dead, is deleted last; then the folder is empty."""
    job = start(layer, dead_owner())
    put_mag(f"{job.root}/1-1-1")
    unlink, names = os.unlink, []
    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", lambda path, **kw: (names.append(path), unlink(path, **kw)))
        job.discard()
    job_files = [os.path.basename(path) for path in names]
    assert job_files.index("owner.json") > max(map(job_files.index, ("plan.json", "x0.wkw")))
    os.mkdir(job.root)
    start(layer, names=("2",)).discard()
    assert not os.path.exists(job.root)
    os.mkdir(job.root)
    assert wkwdask.clean(layer, dry_run=True) == [job.root]
    assert wkwdask.clean(layer) == [job.root]
    assert hidden(layer) == []


def test_files_of_a_replaced_mag_keep_mode(layer):
    wkwdask.write(layer / "1", (0, 0, 0), np.ones((8, 8, 8), np.uint8), **OPTIONS)
    for path in [layer / "1", *(layer / "1").rglob("*")]:
        path.chmod(0o2770 if path.is_dir() else 0o660)
    wkwdask.write(
        layer / "1", (0, 0, 0), np.full((8, 8, 8), 2, np.uint8), existing="overwrite", **OPTIONS
    )
    modes = {
        path.relative_to(layer).as_posix(): stat.S_IMODE(path.stat().st_mode)
        for path in (layer / "1").rglob("*")
    }
    assert {mode for name, mode in modes.items() if name.endswith(".wkw")} == {0o660}
    assert {modes["1/z0"], modes["1/z0/y0"]} == {0o2770}


def test_a_renamed_layer_keeps_its_folder(layer):
    """WEBKNOSSOS renames a layer and leaves its paths."""
    wkwdask.write(layer / "1", (0, 0, 0), np.ones((8, 8, 8), np.uint8), **OPTIONS)
    path = layer.parent / "datasource-properties.json"
    document = json.loads(path.read_text())
    document["dataLayers"][0]["name"] = "renamed"
    path.write_text(json.dumps(document))
    with pytest.raises(ValueError, match="the layer stores uint8"):
        wkwdask.write(layer / "2", (0, 0, 0), np.ones((4, 4, 4), np.float32), **OPTIONS)
    wkwdask.build_pyramid(layer, method="max", coarsest=2)
    source = read_datasource(str(layer.parent))
    assert [(record.name, [mag.mag.name for mag in record.mags]) for record in source.layers] == [
        ("renamed", ["1", "2"])
    ]


def test_a_mag_is_not_written_beside_itself(layer):
    wkwdask.write(layer / "1", (0, 0, 0), np.ones((8, 8, 8), np.uint8), **OPTIONS)
    with pytest.raises(
        ExistsError,
        match=r"mag 1 of layer color is at .*color/1 \(.*names it .*\); write to that folder",
    ):
        wkwdask.write(layer / "1-1-1", (0, 0, 0), np.ones((8, 8, 8), np.uint8), **OPTIONS)


def test_a_linked_json_stays_a_link(layer):
    path = layer.parent / "datasource-properties.json"
    path.rename(layer.parent / "real.json")
    path.symlink_to("real.json")
    wkwdask.write(layer / "1", (0, 0, 0), np.ones((8, 8, 8), np.uint8), **OPTIONS)
    assert path.is_symlink()
    assert json.loads((layer.parent / "real.json").read_text())["dataLayers"][0]["name"] == "color"


def test_only_mags_are_replaced(layer):
    """A forgotten ``/1`` must not cost a layer, a dataset or anybody's thesis."""
    voxels = np.ones((8, 8, 8), np.uint8)
    wkwdask.write(layer / "1", (0, 0, 0), voxels, **OPTIONS)
    dataset = layer.parent
    for folder, example in ((dataset, "LAYER/1"), (layer, "color/1"), (dataset / "new", "new/1")):
        with pytest.raises(
            ValueError, match=rf"is not the folder of a mag; name one, such as .*{example}"
        ):
            wkwdask.write(folder, (0, 0, 0), voxels, existing="overwrite", **OPTIONS)
    home = dataset.parent / "home"
    (home / "1").mkdir(parents=True)
    (home / "1" / "thesis.docx").write_text("years")
    for folder in (home, home / "1"):
        with pytest.raises(ExistsError, match="contains other files than one mag"):
            wkwdask.write(folder, (0, 0, 0), voxels, existing="overwrite", **OPTIONS)
    with pytest.raises(ExistsError, match="contains other files than one mag"):
        wkwdask.to_wkw(voxels, home, existing="overwrite", compute=False, **OPTIONS)
    assert (home / "1" / "thesis.docx").read_text() == "years"
    assert wkwdask.read(layer / "1").all()


@pytest.mark.parametrize("path", ["./color/1", "./color", "./color/1/z0"])
def test_a_pyramid_does_not_replace_its_source(layer, path):
    wkwdask.write(layer / "1", (0, 0, 0), np.ones((8, 8, 8), np.uint8), **OPTIONS)
    properties = layer.parent / "datasource-properties.json"
    document = json.loads(properties.read_text())
    document["dataLayers"][0]["mags"].append({"mag": [2, 2, 2], "path": path})
    properties.write_text(json.dumps(document))
    with pytest.raises(ValueError, match="would overwrite"):
        wkwdask.build_pyramid(layer.parent, coarsest=2, existing="overwrite")
    assert wkwdask.read(layer / "1", ((0, 0, 0), (8, 8, 8))).all()


def test_an_unwritable_dataset_is_told_before_the_work(layer, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: str(path) != str(layer.parent))
    with pytest.raises(PermissionError, match=r"datasource-properties\.json could not be updated"):
        wkwdask.write(layer / "1", (0, 0, 0), np.ones((8, 8, 8), np.uint8), **OPTIONS)
    assert list(layer.iterdir()) == []


def test_a_job_that_is_just_ending_is_left_to_itself(layer, monkeypatch):
    """Its plan is gone before its folder: another job that starts in that moment must not take it
    for dead."""
    job = start(layer)
    put_mag(f"{job.root}/1-1-1")
    real, others = files.fsync, []

    def with_another_job(folder):
        if folder == job.root and not others and not Path(folder, "plan.json").exists():
            others.append(start(layer, names=("2",)))
            assert Path(folder).exists()
        real(folder)

    monkeypatch.setattr(files, "fsync", with_another_job)
    job.publish(
        [NewMag("1-1-1", str(layer / "1"))], None, {"settings": SETTINGS, "report": "the report"}
    )
    assert text(layer / "1") == "new"
    others[0].discard()
    assert hidden(layer) == []


def test_a_job_folder_that_goes_while_others_look_at_it(layer, monkeypatch):
    """Its owner is alive and has just ended."""
    (layer / ".wkwdask-job-20260101T000000-00000000").mkdir()
    real = job_folder.read_owner

    def gone_by_then(path):
        found = real(path)
        if "20260101T000000" in path:
            os.rmdir(os.path.dirname(path))
        return found

    monkeypatch.setattr(job_folder, "read_owner", gone_by_then)
    start(layer).discard()
    assert hidden(layer) == []


# ----------------------------------------------------------------------------- owners of locks, as
# SLURM knows them


_ELSEWHERE = {"host": "another-machine", "boot": "another start", "namespace": ""}


@pytest.fixture
def slurm_says(tmp_path, monkeypatch):
    """Let ``scontrol`` answer with a text and a code."""
    for name in ("SLURM_JOB_ID", "SLURM_CLUSTER_NAME", "SLURM_RESTART_COUNT", "SLURMD_NODENAME"):
        monkeypatch.delenv(name, raising=False)

    def say(text, code=0, error=""):
        script = tmp_path / "scontrol"
        script.write_text(
            "#!/bin/sh\n"
            'if [ "$2" = config ]; then echo "ClusterName             = hpc"; exit 0; fi\n'
            f"cat <<'E'\n{text}\nE\ncat >&2 <<'E'\n{error}\nE\nexit {code}\n"
        )
        script.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}/usr/bin{os.pathsep}/bin")

    return say


def _owner(batch):
    return replace(Owner.this_process("a job"), **_ELSEWHERE, batch=batch)


@pytest.mark.parametrize(
    ("batch", "text", "code", "error", "is_gone"),
    [
        ("", "", 0, "", False),  # another machine, no SLURM: nobody knows
        ("slurm:hpc:7:0", "JobId=7 JobState=RUNNING Restarts=0 x=1", 0, "", False),
        ("slurm:hpc:7:0", "JobId=7 JobState=PENDING Restarts=0", 0, "", False),
        # put back into the queue, and started again
        ("slurm:hpc:7:0", "JobId=7 JobState=RUNNING Restarts=1", 0, "", True),
        ("slurm:hpc:7:", "JobId=7 JobState=RUNNING Restarts=1", 0, "", False),  # the job as such
        ("slurm:hpc:7:0", "JobId=7 JobState=TIMEOUT Restarts=0", 0, "", True),
        ("slurm:hpc:7:", "JobId=7 JobState=CANCELLED Restarts=0", 0, "", True),
        # long over
        ("slurm:hpc:7:0", "", 1, "slurm_load_jobs error: Invalid job id specified", True),
        # of a cluster that cannot be asked
        ("slurm:other:7:0", "", 1, "slurm_load_jobs error: Invalid job id specified", False),
        (
            "slurm:hpc:7:0",
            "",
            1,
            "slurm_load_jobs error: Unable to contact slurm controller (connect failure)",
            False,
        ),
    ],
)
def test_owner_in_a_slurm_job(slurm_says, batch, text, code, error, is_gone):
    slurm_says(text, code, error)
    assert _owner(batch).is_gone() is is_gone
    assert _owner(batch).handed_to(SlurmJob.parse(batch)).is_gone() is is_gone if batch else True


def test_without_slurm_nobody_knows(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not _owner("slurm:hpc:7:0").is_gone()


def test_a_living_process_is_not_gone_whatever_slurm_says(slurm_says):
    slurm_says("JobId=7 JobState=COMPLETED Restarts=0")
    assert not replace(Owner.this_process("a job"), batch="slurm:hpc:7:0").is_gone()


def test_a_job_takes_over_from_itself(slurm_says, monkeypatch):
    """The dependent job owns the locks before it runs, and its processes take them; put back into
    the queue, it takes them from its first start."""
    slurm_says("JobId=7 JobState=RUNNING Restarts=0")
    for name, value in {
        "SLURM_JOB_ID": "7",
        "SLURM_CLUSTER_NAME": "hpc",
        "SLURMD_NODENAME": "n1",
    }.items():
        monkeypatch.setenv(name, value)
    assert Owner.this_process("x").batch == "slurm:hpc:7:0"
    assert Owner.this_process("x").handed_to(SlurmJob("hpc", "7")).is_gone()
    assert not _owner("slurm:hpc:7:0").is_gone()  # another process of this start, on another node
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    assert _owner("slurm:hpc:7:0").is_gone()


def test_the_shell_of_an_allocation_is_no_job(monkeypatch):
    """``salloc`` starts a shell on the login node, which lives on when the allocation ends."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.delenv("SLURMD_NODENAME", raising=False)
    assert Owner.this_process("x").batch == ""


def test_what_is_said_of_it():
    owner = replace(Owner.this_process("pyramid of ds"), user="anna", since="noon")
    assert (
        str(replace(owner, pid=5, host="n1", batch="slurm:hpc:7:0"))
        == "pyramid of ds by anna, process 5 on n1, SLURM job 7, since noon"
    )
    assert (
        str(owner.handed_to(SlurmJob("hpc", "7")))
        == "pyramid of ds by anna, SLURM job 7, since noon"
    )
    assert Owner(**json.loads(json.dumps(asdict(owner)))) == owner


def test_a_folder_that_is_removed_while_others_look_at_it_has_no_journal(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "numbered", lambda *_: [(0, "journal-0.jsonl")])
    assert not has_journal(str(tmp_path))
