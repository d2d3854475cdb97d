"""A repeated call of build_pyramid after an interruption, after its end, and after a change of its
source or settings."""

from __future__ import annotations

import json
import os
import shutil

import dask
import numpy as np
import pytest
from faults.drivers import (
    CASES,
    RESUME_NOTE,
    Driver,
    Undisturbed,
    job_folders,
    journaled,
    logged,
    regions_of,
    runs,
    stopping,
    without_flushing,
)
from faults.trees import JSON_NAME, contents, differences, leftovers, states
from support.inside import limited, workers_of
from support.locks import dead_process, put_lock

import wkwdask
from wkwdask.errors import (
    CorruptError,
    DiscardWarning,
    ExistsError,
    LockedError,
    MissingError,
    ResumeError,
)

CASE = CASES["parts"]
DONE = 60  # tasks before the interruption


@pytest.fixture(autouse=True, scope="module")
def _serial():
    with without_flushing(), dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return Undisturbed("parts", tmp_path_factory.mktemp("undisturbed") / "parts")


@pytest.fixture
def folder(tmp_path, undisturbed):
    """A dataset with the finest mag alone."""
    return undisturbed.start(tmp_path / "ds")


class StopError(Exception):
    """An error that stops a job."""


def interrupt(folder, num_tasks=DONE, error=StopError, **options):
    """Stop a pyramid after some tasks, and return the finished ones."""
    with stopping(folder.parent / "interrupted.log", num_tasks, error), pytest.raises(error):
        CASE.build(folder, **options)
    return journaled(folder)


def resume(folder, **options):
    """Build, and return the report and the tasks that ran."""
    log = folder.parent / f"{len(os.listdir(folder.parent))}.log"
    with logged(log):
        report = CASE.build(folder, **options)
    return report, set(runs(log))


def touch(path):
    status = os.stat(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))


def source_file(folder, corner):
    """Path of a file of the finest mag."""
    return sorted((folder / "seg" / "1").glob("z*/y*/x*.wkw"), key=lambda path: str(path))[corner]


# ----------------------------------------------------------------------------- after an
# interruption


@pytest.mark.parametrize("existing", ["error", "resume"])
def test_the_same_call_resumes(folder, undisturbed, existing):
    done = interrupt(folder)
    assert len(done) == DONE
    assert len(job_folders(folder)) == 1
    undisturbed.check_unseen(folder)
    report, ran = resume(folder, existing=existing)
    assert ran == undisturbed.tasks - done
    assert [mag.path for mag in report.mags] == [str(folder / "seg" / mag) for mag in CASE.mags]
    undisturbed.check(folder)
    undisturbed.check_records(folder)


def test_the_report_of_a_resumed_job_covers_all_tasks(folder, undisturbed, tmp_path):
    whole, _ = resume(undisturbed.start(tmp_path / "other"))
    interrupt(folder, 30)
    interrupt(folder, 50)
    report, _ = resume(folder)
    for ours, others in zip(report.mags, whole.mags, strict=True):
        assert (ours.voxels, ours.nbytes, ours.minimum, ours.maximum, ours.nonzero) == (
            others.voxels,
            others.nbytes,
            others.minimum,
            others.maximum,
            others.nonzero,
        )


@pytest.mark.long
@pytest.mark.parametrize(
    "error", [KeyboardInterrupt, OSError(28, "no space left on device"), MemoryError]
)
def test_an_interruption_names_the_kept_work(folder, error):
    kind = error if isinstance(error, type) else type(error)
    with stopping(folder.parent / "log", DONE, error), pytest.raises(kind) as raised:
        CASE.build(folder)
    assert any(RESUME_NOTE in note for note in raised.value.__notes__)
    assert len(journaled(folder)) == DONE
    (root,) = job_folders(folder)
    assert leftovers(folder) == sorted(
        [f"seg/{root.name}"] + [str(path.relative_to(folder)) for path in root.rglob(".*")]
    )
    resume(folder)


@pytest.mark.parametrize("error", [KeyboardInterrupt, StopError])
def test_an_interruption_before_the_first_task_leaves_nothing(folder, undisturbed, error):
    with stopping(folder.parent / "log", 0, error), pytest.raises(error) as raised:
        CASE.build(folder)
    assert not any(RESUME_NOTE in note for note in getattr(raised.value, "__notes__", []))
    assert leftovers(folder) == []
    assert contents(folder) == undisturbed.before


@pytest.mark.parametrize("existing", ["error", "overwrite"])
def test_restart_discards_an_interrupted_job_and_says_how_much(folder, undisturbed, existing):
    done = interrupt(folder, existing=existing)
    with pytest.warns(
        DiscardWarning,
        match=(
            rf"discards the finished work of an interrupted job: {len(done)} tasks, .*B of "
            rf"build_pyramid of {folder}/seg"
        ),
    ):
        _, ran = resume(folder, existing="restart")
    assert ran == undisturbed.tasks
    undisturbed.check(folder)


def test_overwrite_continues_an_interrupted_job_only_once(folder, undisturbed):
    """A finished job is done again."""
    done = interrupt(folder, existing="overwrite")
    report, ran = resume(folder, existing="overwrite")
    assert ran == undisturbed.tasks - done
    assert f"{len(done)} tasks had been finished before" in report.note
    _, ran = resume(folder, existing="overwrite")
    assert ran == undisturbed.tasks
    undisturbed.check(folder)


def test_a_job_resumes_after_its_source_is_repaired(folder, undisturbed):
    path = source_file(folder, -1)
    good = path.read_bytes()
    path.write_bytes(good[:5] + b"\xff" + good[6:])
    with logged(folder.parent / "log"), pytest.raises(CorruptError, match=str(path)) as raised:
        CASE.build(folder)
    assert any(RESUME_NOTE in note for note in raised.value.__notes__)
    done = journaled(folder)
    path.write_bytes(good)
    _, ran = resume(folder)
    assert ran == undisturbed.tasks - done
    undisturbed.check(folder)


SMALL_TASKS = {"region_vx": 16, "smallest_region_vx": 16, "small_task_nbytes": 0}


@pytest.mark.parametrize(("first", "then"), [(1, 9), (9, 1)])
def test_a_resumed_job_keeps_its_regions(folder, undisturbed, first, then):
    """The number of workers differs."""
    log = folder.parent / "first.log"
    with (
        limited(**SMALL_TASKS),
        workers_of(first),
        stopping(log, 12, StopError),
        pytest.raises(StopError),
    ):
        wkwdask.build_pyramid(folder, "seg", mags=CASE.mags)
    (root,) = job_folders(folder)
    regions = json.loads((root / "plan.json").read_text())["plan"]["regions"]
    assert regions[0] == ([32] * 3 if first == 1 else [16] * 3)
    done = journaled(folder)
    with limited(**SMALL_TASKS), workers_of(then), logged(log):
        wkwdask.build_pyramid(folder, "seg", mags=CASE.mags)
    assert len(done) == 12
    assert set(runs(log).values()) == {1}
    if first > 1:
        assert set(runs(log)) == undisturbed.tasks
    undisturbed.check(folder)


# ----------------------------------------------------------------------------- other settings

OTHERS = [
    ({"method": "max"}, "method was mode, is max"),
    ({"ignore_zero": True}, "ignore_zero was False, is True"),
    ({"compression": "raw"}, "compression was lz4, is raw"),
    ({"compression": "lz4hc", "level": 9}, "compression was lz4, is lz4hc; level was 0, is 9"),
    ({"block_len": 16}, "block_len was 8, is 16"),
    ({"file_len": 8}, "file_len was 4,4,4,2, is 8"),
    *(
        ({"mags": mags}, f"mags was {','.join(CASE.mags)}, is {','.join(mags)}")
        for mags in (
            ("2-2-1", "4-4-2"),
            ("2-2-1", "4-4-2", "8-8-4", "16-16-8", "32-32-16"),
            ("8-8-4",),
        )
    ),
]


def test_an_interrupted_job_refuses_other_settings(folder, undisturbed):
    """The differences are listed, and the work is kept."""
    done = interrupt(folder)
    before = contents(folder), sorted(job_folders(folder)[0].rglob("*"))
    for options, message in OTHERS:
        for verb in (wkwdask.build_pyramid, wkwdask.plan_pyramid):
            for existing in ("error", "resume", "overwrite"):
                listed = (
                    f"made with other settings: .*{message}.*; the same settings continue it, "
                    'existing="restart" starts over'
                )
                with regions_of(CASE.region_vx), pytest.raises(ResumeError, match=listed):
                    verb(folder, "seg", existing=existing, **{"mags": CASE.mags, **options})
    assert (contents(folder), sorted(job_folders(folder)[0].rglob("*"))) == before
    assert resume(folder)[1] == undisturbed.tasks - done
    undisturbed.check(folder)


def test_a_finished_job_refuses_other_settings(folder, undisturbed):
    resume(folder)
    before = states(folder)
    for options, message in OTHERS:
        with regions_of(CASE.region_vx), pytest.raises(ResumeError, match=message):
            wkwdask.build_pyramid(
                folder, "seg", existing="resume", **{"mags": CASE.mags, **options}
            )
    assert states(folder) == before
    assert leftovers(folder) == []
    undisturbed.check(folder)


def test_the_level_of_what_is_not_lz4hc_does_not_matter(folder, undisturbed):
    done = interrupt(folder)
    assert resume(folder, level=9)[1] == undisturbed.tasks - done
    undisturbed.check(folder)


def test_another_box_of_the_layer_is_not_resumed(folder):
    interrupt(folder)
    path = folder / JSON_NAME
    document = json.loads(path.read_text())
    document["dataLayers"][0]["boundingBox"]["width"] -= 10
    path.write_text(json.dumps(document))
    with pytest.raises(ResumeError, match="box was 13,0,9,150,120,60, is 13,0,9,140,120,60"):
        CASE.build(folder)
    with pytest.warns(DiscardWarning):
        resume(folder, existing="restart")
    assert leftovers(folder) == []


# ----------------------------------------------------------------------------- another source


@pytest.mark.parametrize("existing", ["error", "overwrite"])
def test_a_change_of_a_read_source_file_is_noticed(folder, undisturbed, existing):
    """The message says one thing: what starts over."""
    interrupt(folder, existing=existing)
    path = source_file(folder, 0)
    before = contents(folder)
    touch(path)
    change = rf"\(.*{path.name} was changed last, it has \d+ bytes\)"
    with pytest.raises(
        ResumeError,
        match=(
            rf"the source has changed since the job was interrupted {change}; existing=.restart. "
            r"starts over$"
        ),
    ) as caught:
        CASE.build(folder, existing=existing)
    assert not getattr(caught.value, "__notes__", [])
    assert contents(folder) == before
    assert len(job_folders(folder)) == 1  # the change may be undone
    with pytest.warns(DiscardWarning):
        resume(folder, existing="restart")
    undisturbed.check(folder)


def test_a_removed_source_file_is_noticed(folder):
    interrupt(folder)
    source_file(folder, 0).unlink()
    with pytest.raises(ResumeError, match=r"the source has changed|files were added or removed"):
        CASE.build(folder)


@pytest.mark.long
def test_a_change_of_an_unread_source_file_is_included(folder, undisturbed, tmp_path):
    interrupt(folder)
    path = source_file(folder, -1)
    path.write_bytes(source_file(folder, -2).read_bytes())
    other = tmp_path / "other"
    shutil.copytree(folder / "seg" / "1", other / "seg" / "1")
    shutil.copy(folder / JSON_NAME, other)
    resume(other)
    resume(folder)
    assert differences(contents(folder), contents(other)) == []
    assert differences(contents(folder), undisturbed.after) != []


@pytest.mark.parametrize("is_finished", [False, True])
def test_a_rewritten_source_is_noticed(folder, is_finished):
    """The voxels are the same."""
    if is_finished:
        resume(folder)
    else:
        interrupt(folder)
    voxels = wkwdask.read(folder, layer="seg", mag="1")
    wkwdask.to_wkw(
        voxels,
        folder / "seg" / "1",
        offset=(13, 0, 9),
        block_len=8,
        file_len=4,
        compression="lz4",
        existing="overwrite",
    )
    for existing in ("resume",) if is_finished else ("resume", "overwrite"):
        with pytest.raises(
            ResumeError,
            match=(
                r"the source was replaced; existing=.(restart. starts over|overwrite. replaces "
                r"it)$|have changed since"
            ),
        ):
            CASE.build(folder, existing=existing)


# ----------------------------------------------------------------------------- after the end


def test_a_finished_job_is_not_repeated(folder, undisturbed):
    first, _ = resume(folder)
    before = states(folder), {path: path.read_bytes() for path in folder.rglob(".wkwdask*")}
    json_status = os.stat(folder / JSON_NAME)
    report, ran = resume(folder, existing="resume")
    assert not ran
    assert report.note == (
        "nothing to do: the mags were finished before with the same settings, and the source "
        "has not changed"
    )
    assert (report.mags, report.nbytes_in, report.seconds) == (
        first.mags,
        first.nbytes_in,
        first.seconds,
    )
    assert (
        states(folder),
        {path: path.read_bytes() for path in folder.rglob(".wkwdask*")},
    ) == before
    status = os.stat(folder / JSON_NAME)  # reading the file may set its access time
    assert (status.st_ino, status.st_mtime_ns) == (json_status.st_ino, json_status.st_mtime_ns)
    undisturbed.check(folder)


def test_a_finished_job_is_not_replaced(folder, undisturbed):
    resume(folder)
    before = states(folder)
    assert "nothing to do" in CASE.build(folder).note
    with pytest.raises(ExistsError, match=r"already exists \(and 3 more\)"):
        CASE.build(folder, method="max")
    assert states(folder) == before
    undisturbed.check(folder)


def test_a_touched_source_of_a_finished_job_is_noticed(folder):
    resume(folder)
    before = states(folder)
    touch(source_file(folder, 3))
    before["seg/1/" + str(source_file(folder, 3).relative_to(folder / "seg" / "1"))] = states(
        folder
    )[str(source_file(folder, 3).relative_to(folder))]
    with pytest.raises(
        ResumeError,
        match=(
            r"2-2-1: 1 file was changed, or is made from files of mag 1 that have changed since; "
            r"update=True"
        ),
    ):
        CASE.build(folder, existing="resume")
    assert states(folder) == before


@pytest.mark.long
def test_mags_without_provenance_are_not_resumed(folder, undisturbed):
    resume(folder)
    for path in folder.rglob(".wkwdask.json"):
        if path.parent.name != "1":
            path.unlink()
    before = states(folder)
    with pytest.raises(
        ResumeError, match="exists, without a journal of a job that could be resumed"
    ):
        CASE.build(folder, existing="resume")
    with pytest.raises(ExistsError):
        CASE.build(folder)
    assert states(folder) == before
    assert leftovers(folder) == []
    resume(folder, existing="overwrite")
    undisturbed.check(folder)


def test_an_incomplete_set_of_mags_is_not_resumed(folder, undisturbed):
    resume(folder)
    shutil.rmtree(folder / "seg" / CASE.mags[1])
    with pytest.raises(ResumeError, match="is missing, but other mags of the job exist"):
        CASE.build(folder, existing="resume")
    with pytest.raises(ExistsError):
        CASE.build(folder)
    assert leftovers(folder) == []
    resume(folder, existing="overwrite")
    undisturbed.check(folder)


# ----------------------------------------------------------------------------- overwriting


def test_an_interrupted_overwriting_job_is_resumed(folder, undisturbed):
    """The old mags stay visible until the end."""
    resume(folder, method="max")
    old = contents(folder)
    assert differences(old, undisturbed.after)
    done = interrupt(folder, existing="overwrite")
    assert contents(folder) == old
    _, ran = resume(folder)
    assert ran == undisturbed.tasks - done
    undisturbed.check(folder)
    undisturbed.check_records(folder)


def test_overwrite_continues_its_interrupted_job(folder, undisturbed):
    """Several times, and the old mags stay visible until the end."""
    resume(folder, method="max")
    old = contents(folder)
    done = interrupt(folder, existing="overwrite")
    more = interrupt(folder, existing="overwrite")
    assert len(more) > len(done)
    assert contents(folder) == old
    assert resume(folder, existing="overwrite")[1] == undisturbed.tasks - more
    undisturbed.check(folder)
    undisturbed.check_records(folder)


def test_a_mag_that_appeared_since_the_interruption_is_not_replaced(folder, undisturbed):
    done = interrupt(folder)
    shutil.copytree(folder / "seg" / "1", folder / "seg" / CASE.mags[0])
    with pytest.raises(ExistsError):
        CASE.build(folder)
    shutil.rmtree(folder / "seg" / CASE.mags[0])
    assert resume(folder)[1] == undisturbed.tasks - done
    undisturbed.check(folder)


# ----------------------------------------------------------------------------- several jobs in a
# layer


def test_jobs_on_other_mags_leave_an_interrupted_job_alone(folder, undisturbed):
    done = interrupt(folder)
    wkwdask.build_pyramid(folder, "seg", mags=["32-32-16"])
    wkwdask.to_wkw(np.ones((1, 1, 1), np.uint32), folder / "seg" / "64-64-32", offset=(0, 0, 0))
    assert journaled(folder) == done
    assert resume(folder)[1] == undisturbed.tasks - done
    assert leftovers(folder) == []
    for mag in CASE.mags:
        prefix = f"seg/{mag}/"
        assert (
            differences(
                {name: data for name, data in contents(folder).items() if name.startswith(prefix)},
                {name: data for name, data in undisturbed.after.items() if name.startswith(prefix)},
            )
            == []
        )


def test_two_interrupted_jobs_are_resumed_independently(folder, undisturbed):
    other = ("32-32-16", "64-64-32")
    done = interrupt(folder)
    with (
        regions_of(2),
        stopping(folder.parent / "other.log", 1, StopError),
        pytest.raises(StopError),
    ):
        wkwdask.build_pyramid(folder, "seg", mags=other, block_len=2, file_len=1)
    assert len(job_folders(folder)) == 2
    assert resume(folder)[1] == undisturbed.tasks - done
    assert len(job_folders(folder)) == 1
    report = wkwdask.build_pyramid(folder, "seg", mags=other, block_len=2, file_len=1)
    assert len(report.mags) == 2
    assert leftovers(folder) == []


@pytest.mark.long
def test_several_layers_are_resumed_in_one_call(folder, undisturbed):
    """The first layer is finished, the second interrupted, the third not begun."""
    document = json.loads((folder / JSON_NAME).read_text())
    for name in ("b", "c"):
        shutil.copytree(folder / "seg", folder / name)
        layer = document["dataLayers"][0]
        document["dataLayers"].append(
            {**layer, "name": name, "mags": [{**layer["mags"][0], "path": f"./{name}/1"}]}
        )
    (folder / JSON_NAME).write_text(json.dumps(document))

    def build(**options):
        with regions_of(CASE.region_vx):
            return wkwdask.build_pyramid(folder, ["seg", "b", "c"], mags=CASE.mags, **options)

    with (
        stopping(folder.parent / "first.log", len(undisturbed.tasks) + DONE, StopError),
        pytest.raises(StopError),
    ):
        build()
    log = folder.parent / "again.log"
    with logged(log):
        report = build(existing="resume")
    assert len(report.mags) == 3 * len(CASE.mags)
    assert set(runs(log)) == undisturbed.tasks
    assert sum(runs(log).values()) == 2 * len(undisturbed.tasks) - DONE
    found = contents(folder)
    for name in ("seg", "b", "c"):
        mine = {
            path.replace(f"{name}/", "seg/", 1): data
            for path, data in found.items()
            if path.startswith(f"{name}/")
        }
        assert (
            differences(
                mine,
                {path: data for path, data in undisturbed.after.items() if path.startswith("seg/")},
            )
            == []
        )
    assert leftovers(folder) == []


def test_an_array_replaces_an_interrupted_job_only_with_overwrite(folder, undisturbed):
    done = interrupt(folder)
    array = np.ones((9, 9, 9), np.uint32)
    with pytest.raises(ResumeError, match="an interrupted job writes the same mags"):
        wkwdask.to_wkw(array, folder / "seg" / CASE.mags[0], offset=(10, 10, 10))
    assert journaled(folder) == done
    with pytest.warns(DiscardWarning, match=f"{DONE} tasks"):
        wkwdask.to_wkw(
            array, folder / "seg" / CASE.mags[0], offset=(10, 10, 10), existing="overwrite"
        )
    assert leftovers(folder) == []
    resume(folder, existing="overwrite")
    undisturbed.check(folder)


def test_an_update_refuses_mags_of_an_interrupted_job(folder, undisturbed):
    resume(folder)
    done = interrupt(folder, existing="overwrite", method="max")
    with pytest.raises(ResumeError, match="an interrupted job writes the same mags"):
        CASE.build(folder, update=True)
    assert journaled(folder) == done
    undisturbed.check_unseen(folder)


def test_an_update_refuses_missing_mags(folder):
    interrupt(folder)
    with pytest.raises(MissingError):
        CASE.build(folder, update=True)
    assert len(journaled(folder)) == DONE


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("mag", [CASE.mags[0], "2-2-2"])
def test_leftovers_without_a_journal_are_removed_by_the_next_job(folder, undisturbed, mag):
    assert Driver(str(folder), "parts", str(folder.parent / "log"), kill_at=0).fork() < 0
    assert len(job_folders(folder)) == 1
    assert len(list((folder / "seg").glob(".*.wkwdask-lock"))) == len(CASE.mags)
    if mag in CASE.mags:
        assert resume(folder)[1] == undisturbed.tasks
        undisturbed.check(folder)
    else:
        wkwdask.to_wkw(np.ones((9, 9, 9), np.uint32), folder / "seg" / mag, offset=(10, 10, 10))
        assert job_folders(folder) == []


def test_a_plan_leaves_an_interrupted_job_unchanged(folder, undisturbed):
    done = interrupt(folder)
    before = leftovers(folder)
    text = str(wkwdask.plan_pyramid(folder, "seg", mags=CASE.mags))
    assert "region" in text
    assert leftovers(folder) == before
    assert resume(folder)[1] == undisturbed.tasks - done


def test_a_delayed_write_excludes_another_job(folder, undisturbed):
    array = dask.array.ones((9, 9, 9), dtype=np.uint32, chunks=9)
    later = wkwdask.to_wkw(array, folder / "seg" / CASE.mags[0], compute=False)
    interrupt(folder)
    with pytest.raises((LockedError, ResumeError)):
        later.compute()
    resume(folder)
    undisturbed.check(folder)


def test_locks_left_by_a_finished_job_are_removed(folder, undisturbed):
    CASE.build(folder)
    for mag in CASE.mags[1:3]:
        put_lock(folder / "seg" / mag, dead_process("a job that died"))
    report, ran = resume(folder)
    assert "nothing to do" in report.note
    assert ran == set()
    undisturbed.check(folder)


def test_a_layer_named_twice_is_built_once(tmp_path):
    wkwdask.write(
        tmp_path / "ds" / "color" / "1",
        (0, 0, 0),
        np.ones((1, 32, 32, 32), np.uint8),
        voxel_size=(8, 8, 8),
    )
    report = wkwdask.build_pyramid(tmp_path / "ds", ["color", "color"], coarsest=2)
    assert "finished before" in report.note
    assert wkwdask.verify(tmp_path / "ds", pyramid=True).is_sound
