"""What the same call of build_pyramid does after an interruption, after the end, and where something has changed meanwhile."""

from __future__ import annotations

import json
import os
import shutil

import dask
import numpy as np
import pytest
from faults.drivers import CASES, RESUME_NOTE, Driver, Undisturbed, job_folders, journaled, logged, regions_of, runs, stopping, without_flushing
from faults.trees import JSON_NAME, contents, differences, leftovers, states
from support.inside import limited, workers_of
from support.locks import dead_process, put_lock

import wkwdask
from wkwdask.errors import CorruptError, ExistsError, LockedError, MissingError, ResumeError

CASE = CASES["parts"]
DONE = 60  # tasks before the interruption


@pytest.fixture(autouse=True, scope="module")
def _serial():
    with without_flushing(), dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture(scope="module")
def known(tmp_path_factory):
    return Undisturbed("parts", tmp_path_factory.mktemp("undisturbed") / "parts")


@pytest.fixture
def folder(tmp_path, known):
    """A dataset with the finest mag alone."""
    return known.start(tmp_path / "ds")


class StopError(Exception):
    """What stops a job."""


def interrupt(folder, num_tasks=DONE, error=StopError, **options):
    """Stop a pyramid after some tasks; gives those that are done."""
    with stopping(folder.parent / "interrupted.log", num_tasks, error), pytest.raises(error):
        CASE.build(folder, **options)
    return journaled(folder)


def go_on(folder, **options):
    """Build; gives the report and the tasks that ran."""
    log = folder.parent / f"{len(os.listdir(folder.parent))}.log"
    with logged(log):
        report = CASE.build(folder, **options)
    return report, set(runs(log))


def touch(path):
    status = os.stat(path)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1_000_000))


def source_file(folder, corner):
    """The file of the finest mag at the low or the high end."""
    return sorted((folder / "seg" / "1").glob("z*/y*/x*.wkw"), key=lambda path: str(path))[corner]


# ----------------------------------------------------------------------------- after an interruption


@pytest.mark.parametrize("existing", ["error", "resume"])
def test_the_same_call_goes_on(folder, known, existing):
    done = interrupt(folder)
    assert len(done) == DONE
    assert len(job_folders(folder)) == 1
    known.check_unseen(folder)
    report, ran = go_on(folder, existing=existing)
    assert ran == known.tasks - done
    assert [mag.path for mag in report.mags] == [str(folder / "seg" / mag) for mag in CASE.mags]
    known.check(folder)
    known.check_records(folder)


def test_the_report_is_that_of_the_whole(folder, known, tmp_path):
    whole, _ = go_on(known.start(tmp_path / "other"))
    interrupt(folder, 30)
    interrupt(folder, 50)
    report, _ = go_on(folder)
    for ours, others in zip(report.mags, whole.mags, strict=True):
        assert (ours.voxels, ours.nbytes, ours.minimum, ours.maximum, ours.nonzero) == (
            others.voxels,
            others.nbytes,
            others.minimum,
            others.maximum,
            others.nonzero,
        )


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(28, "no space left on device"), MemoryError])
def test_an_interruption_says_what_stays(folder, error):
    kind = error if isinstance(error, type) else type(error)
    with stopping(folder.parent / "log", DONE, error), pytest.raises(kind) as raised:
        CASE.build(folder)
    assert any(RESUME_NOTE in note for note in raised.value.__notes__)
    assert len(journaled(folder)) == DONE
    (root,) = job_folders(folder)
    assert leftovers(folder) == sorted([f"seg/{root.name}"] + [str(path.relative_to(folder)) for path in root.rglob(".*")])
    go_on(folder)


@pytest.mark.parametrize("error", [KeyboardInterrupt, StopError])
def test_before_any_task_nothing_stays(folder, known, error):
    with stopping(folder.parent / "log", 0, error), pytest.raises(error) as raised:
        CASE.build(folder)
    assert not any(RESUME_NOTE in note for note in getattr(raised.value, "__notes__", []))
    assert leftovers(folder) == []
    assert contents(folder) == known.before


def test_overwrite_starts_anew(folder, known):
    interrupt(folder)
    _, ran = go_on(folder, existing="overwrite")
    assert ran == known.tasks
    known.check(folder)


def test_a_broken_source_is_repaired(folder, known):
    """What could not be read is read when the call is made again."""
    path = source_file(folder, -1)
    good = path.read_bytes()
    path.write_bytes(good[:5] + b"\xff" + good[6:])
    with logged(folder.parent / "log"), pytest.raises(CorruptError, match=str(path)) as raised:
        CASE.build(folder)
    assert any(RESUME_NOTE in note for note in raised.value.__notes__)
    done = journaled(folder)
    path.write_bytes(good)
    _, ran = go_on(folder)
    assert ran == known.tasks - done
    known.check(folder)


@pytest.mark.parametrize("first", [1, 9])
@pytest.mark.parametrize("then", [1, 9])
def test_other_workers_the_same_regions(folder, known, first, then):
    """The regions are those of the first start, however many work at the next one."""
    log, small = folder.parent / "first.log", {"region_vx": 16, "smallest_region_vx": 16, "small_task_nbytes": 0}
    with limited(**small), workers_of(first), stopping(log, 12, StopError), pytest.raises(StopError):
        wkwdask.build_pyramid(folder, "seg", mags=CASE.mags)
    (root,) = job_folders(folder)
    regions = json.loads((root / "plan.json").read_text())["plan"]["regions"]
    assert regions[0] == ([32] * 3 if first == 1 else [16] * 3)
    done = journaled(folder)
    with limited(**small), workers_of(then), logged(log):
        wkwdask.build_pyramid(folder, "seg", mags=CASE.mags)
    assert len(done) == 12
    assert set(runs(log).values()) == {1}
    if first > 1:
        assert set(runs(log)) == known.tasks
    known.check(folder)


# ----------------------------------------------------------------------------- other settings

OTHERS = {
    "method": ({"method": "max"}, "method was mode, is max"),
    "ignore_zero": ({"ignore_zero": True}, "ignore_zero was False, is True"),
    "compression": ({"compression": "raw"}, "compression was lz4, is raw"),
    "level": ({"compression": "lz4hc", "level": 9}, "compression was lz4, is lz4hc; level was 0, is 9"),
    "block_len": ({"block_len": 16}, "block_len was 8, is 16"),
    "file_len": ({"file_len": 8}, "file_len was 4,4,4,2, is 8"),
}


@pytest.mark.parametrize(("options", "message"), list(OTHERS.values()), ids=list(OTHERS))
@pytest.mark.parametrize("existing", ["error", "resume"])
def test_an_interrupted_job_of_other_settings(folder, known, options, message, existing):
    done = interrupt(folder)
    before = contents(folder), sorted(job_folders(folder)[0].rglob("*"))
    with pytest.raises(ResumeError, match=message) as raised:
        CASE.build(folder, existing=existing, **options)
    assert 'existing="overwrite"' in str(raised.value)
    assert (contents(folder), sorted(job_folders(folder)[0].rglob("*"))) == before
    assert go_on(folder)[1] == known.tasks - done
    known.check(folder)


@pytest.mark.parametrize(("options", "message"), list(OTHERS.values()), ids=list(OTHERS))
def test_a_finished_job_of_other_settings(folder, known, options, message):
    go_on(folder)
    before = states(folder)
    with pytest.raises(ResumeError, match=message):
        CASE.build(folder, existing="resume", **options)
    assert states(folder) == before
    assert leftovers(folder) == []
    known.check(folder)


def test_the_level_of_what_is_not_lz4hc_does_not_matter(folder, known):
    done = interrupt(folder)
    assert go_on(folder, level=9)[1] == known.tasks - done
    known.check(folder)


@pytest.mark.parametrize("mags", [("2-2-1", "4-4-2"), ("2-2-1", "4-4-2", "8-8-4", "16-16-8", "32-32-16"), ("8-8-4",)])
@pytest.mark.parametrize("is_finished", [False, True])
def test_other_mags(folder, known, mags, is_finished):
    done = go_on(folder)[1] if is_finished else interrupt(folder)
    before = states(folder)
    with pytest.raises((ResumeError, ExistsError), match=f"mags was {','.join(CASE.mags)}, is {','.join(mags)}") as raised:
        wkwdask.build_pyramid(folder, "seg", mags=mags, existing="resume")
    assert raised.type is ResumeError
    assert states(folder) == before
    if not is_finished:
        assert go_on(folder)[1] == known.tasks - done
    known.check(folder)


def test_another_box(folder):
    """The layer's box in the JSON is part of what a pyramid is."""
    interrupt(folder)
    path = folder / JSON_NAME
    document = json.loads(path.read_text())
    document["dataLayers"][0]["boundingBox"]["width"] -= 10
    path.write_text(json.dumps(document))
    with pytest.raises(ResumeError, match="box was 13,0,9,150,120,60, is 13,0,9,140,120,60"):
        CASE.build(folder)
    go_on(folder, existing="overwrite")
    assert leftovers(folder) == []


# ----------------------------------------------------------------------------- another source


@pytest.mark.parametrize("existing", ["error", "resume"])
def test_a_source_file_that_was_read_has_changed(folder, known, existing):
    interrupt(folder)
    path = source_file(folder, 0)
    before = contents(folder)
    touch(path)
    with pytest.raises(ResumeError, match=r"the source has changed since the job was interrupted.*overwrite"):
        CASE.build(folder, existing=existing)
    assert contents(folder) == before
    assert len(job_folders(folder)) == 1  # the change may be undone
    go_on(folder, existing="overwrite")
    known.check(folder)


def test_a_source_file_that_was_read_is_gone(folder):
    interrupt(folder)
    source_file(folder, 0).unlink()
    with pytest.raises(ResumeError, match=r"the source has changed|files were added or removed"):
        CASE.build(folder)


def test_a_source_file_that_was_not_read_has_changed(folder, known, tmp_path):
    """Then the result is that of the source as it is now."""
    interrupt(folder)
    path = source_file(folder, -1)
    path.write_bytes(source_file(folder, -2).read_bytes())
    other = tmp_path / "other"
    shutil.copytree(folder / "seg" / "1", other / "seg" / "1")
    shutil.copy(folder / JSON_NAME, other)
    go_on(other)
    go_on(folder)
    assert differences(contents(folder), contents(other)) == []
    assert differences(contents(folder), known.after) != []


@pytest.mark.parametrize("is_finished", [False, True])
def test_the_source_was_written_anew(folder, is_finished):
    """Even with the same voxels: files that are not those that were read."""
    if is_finished:
        go_on(folder)
    else:
        interrupt(folder)
    voxels = wkwdask.read(folder, layer="seg", mag="1")
    wkwdask.to_wkw(voxels, folder / "seg" / "1", offset=(13, 0, 9), block_len=8, file_len=4, compression="lz4", existing="overwrite")
    with pytest.raises(ResumeError, match=r"the source was replaced|have changed since"):
        CASE.build(folder, existing="resume")


# ----------------------------------------------------------------------------- after the end


def test_a_finished_job_is_not_done_again(folder, known):
    first, _ = go_on(folder)
    before = states(folder), {path: path.read_bytes() for path in folder.rglob(".wkwdask*")}
    json_state = os.stat(folder / JSON_NAME)
    report, ran = go_on(folder, existing="resume")
    assert not ran
    assert "nothing to do" in report.note
    assert report.mags == first.mags
    assert (states(folder), {path: path.read_bytes() for path in folder.rglob(".wkwdask*")}) == before
    assert os.stat(folder / JSON_NAME) == json_state
    known.check(folder)


def test_a_finished_job_is_there(folder, known):
    go_on(folder)
    before = states(folder)
    assert "nothing to do" in CASE.build(folder).note
    with pytest.raises(ExistsError, match=r"already exists \(and 3 more\)"):
        CASE.build(folder, method="max")
    assert states(folder) == before
    known.check(folder)


def test_a_finished_job_whose_source_was_touched(folder):
    go_on(folder)
    before = states(folder)
    touch(source_file(folder, 3))
    before["seg/1/" + str(source_file(folder, 3).relative_to(folder / "seg" / "1"))] = states(folder)[str(source_file(folder, 3).relative_to(folder))]
    with pytest.raises(ResumeError, match=r"have changed since; update=True"):
        CASE.build(folder, existing="resume")
    assert states(folder) == before


def test_mags_that_someone_else_made(folder, known):
    go_on(folder)
    for path in folder.rglob(".wkwdask.json"):
        if path.parent.name != "1":
            path.unlink()
    before = states(folder)
    with pytest.raises(ResumeError, match="exists, without a journal of a job that could be resumed"):
        CASE.build(folder, existing="resume")
    with pytest.raises(ExistsError):
        CASE.build(folder)
    assert states(folder) == before
    assert leftovers(folder) == []
    go_on(folder, existing="overwrite")
    known.check(folder)


def test_some_mags_are_there(folder, known):
    go_on(folder)
    shutil.rmtree(folder / "seg" / CASE.mags[1])
    with pytest.raises(ResumeError, match="is missing, but other mags of the job exist"):
        CASE.build(folder, existing="resume")
    with pytest.raises(ExistsError):
        CASE.build(folder)
    assert leftovers(folder) == []
    go_on(folder, existing="overwrite")
    known.check(folder)


# ----------------------------------------------------------------------------- overwriting


@pytest.mark.parametrize("existing", ["error", "resume"])
def test_an_overwriting_job_goes_on(folder, known, existing):
    """It is known what the first start was allowed to do; until the end the old mags are there."""
    go_on(folder, method="max")
    old = contents(folder)
    assert differences(old, known.after)
    done = interrupt(folder, existing="overwrite")
    assert contents(folder) == old
    _, ran = go_on(folder, existing=existing)
    assert ran == known.tasks - done
    known.check(folder)
    known.check_records(folder)


def test_an_overwriting_job_starts_anew(folder, known):
    go_on(folder, method="max")
    interrupt(folder, existing="overwrite")
    assert go_on(folder, existing="overwrite")[1] == known.tasks
    known.check(folder)


def test_a_mag_that_appeared_while_a_job_was_interrupted(folder, known):
    """It is nobody's to overwrite."""
    done = interrupt(folder)
    shutil.copytree(folder / "seg" / "1", folder / "seg" / CASE.mags[0])
    with pytest.raises(ExistsError):
        CASE.build(folder)
    shutil.rmtree(folder / "seg" / CASE.mags[0])
    assert go_on(folder)[1] == known.tasks - done
    known.check(folder)


# ----------------------------------------------------------------------------- several jobs in a layer


def test_an_interrupted_job_on_other_mags_is_left_alone(folder, known):
    done = interrupt(folder)
    wkwdask.build_pyramid(folder, "seg", mags=["32-32-16"])
    wkwdask.to_wkw(np.ones((1, 1, 1), np.uint32), folder / "seg" / "64-64-32", offset=(0, 0, 0))
    assert journaled(folder) == done
    assert go_on(folder)[1] == known.tasks - done
    assert leftovers(folder) == []
    for mag in CASE.mags:
        prefix = f"seg/{mag}/"
        assert differences({name: data for name, data in contents(folder).items() if name.startswith(prefix)},
                           {name: data for name, data in known.after.items() if name.startswith(prefix)}) == []  # fmt: skip


def test_two_interrupted_jobs(folder, known):
    """Each goes on by itself."""
    other = ("32-32-16", "64-64-32")
    done = interrupt(folder)
    with stopping(folder.parent / "other.log", 1, StopError), pytest.raises(StopError):
        wkwdask.build_pyramid(folder, "seg", mags=other, file_len=4)
    assert len(job_folders(folder)) == 2
    assert go_on(folder)[1] == known.tasks - done
    assert len(job_folders(folder)) == 1
    report = wkwdask.build_pyramid(folder, "seg", mags=other, file_len=4)
    assert len(report.mags) == 2
    assert leftovers(folder) == []


def test_several_layers(folder, known):
    """What is finished is not done again, what was interrupted goes on, and the rest follows."""
    document = json.loads((folder / JSON_NAME).read_text())
    for name in ("b", "c"):
        shutil.copytree(folder / "seg", folder / name)
        layer = document["dataLayers"][0]
        document["dataLayers"].append({**layer, "name": name, "mags": [{**layer["mags"][0], "path": f"./{name}/1"}]})
    (folder / JSON_NAME).write_text(json.dumps(document))

    def build(**options):
        with regions_of(CASE.region_vx):
            return wkwdask.build_pyramid(folder, ["seg", "b", "c"], mags=CASE.mags, **options)

    with stopping(folder.parent / "first.log", len(known.tasks) + DONE, StopError), pytest.raises(StopError):
        build()
    log = folder.parent / "again.log"
    with logged(log):
        report = build(existing="resume")
    assert len(report.mags) == 3 * len(CASE.mags)
    assert set(runs(log)) == known.tasks
    assert sum(runs(log).values()) == 2 * len(known.tasks) - DONE
    found = contents(folder)
    for name in ("seg", "b", "c"):
        mine = {path.replace(f"{name}/", "seg/", 1): data for path, data in found.items() if path.startswith(f"{name}/")}
        assert differences(mine, {path: data for path, data in known.after.items() if path.startswith("seg/")}) == []
    assert leftovers(folder) == []


def test_another_kind_of_job_on_the_same_mags(folder, known):
    """An array is not written over what can go on, unless the user says so."""
    done = interrupt(folder)
    array = np.ones((9, 9, 9), np.uint32)
    with pytest.raises(ResumeError, match="an interrupted job writes the same mags"):
        wkwdask.to_wkw(array, folder / "seg" / CASE.mags[0], offset=(10, 10, 10))
    assert journaled(folder) == done
    wkwdask.to_wkw(array, folder / "seg" / CASE.mags[0], offset=(10, 10, 10), existing="overwrite")
    assert leftovers(folder) == []
    go_on(folder, existing="overwrite")
    known.check(folder)


def test_an_update_of_mags_that_an_interrupted_job_overwrites(folder, known):
    go_on(folder)
    done = interrupt(folder, existing="overwrite", method="max")
    with pytest.raises(ResumeError, match="an interrupted job writes the same mags"):
        CASE.build(folder, update=True)
    assert journaled(folder) == done
    known.check_unseen(folder)


def test_an_update_of_mags_that_are_not_there_yet(folder):
    interrupt(folder)
    with pytest.raises(MissingError):
        CASE.build(folder, update=True)
    assert len(journaled(folder)) == DONE


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("mag", [CASE.mags[0], "2-2-2"])
def test_leftovers_without_a_journal_are_removed(folder, known, mag):
    """By the next job in the layer, whatever it writes."""
    assert Driver(str(folder), "parts", str(folder.parent / "log"), kill_at=0).fork() < 0
    assert len(job_folders(folder)) == 1
    assert len(list((folder / "seg").glob(".*.wkwdask-lock"))) == len(CASE.mags)
    if mag in CASE.mags:
        assert go_on(folder)[1] == known.tasks
        known.check(folder)
    else:
        wkwdask.to_wkw(np.ones((9, 9, 9), np.uint32), folder / "seg" / mag, offset=(10, 10, 10))
        assert job_folders(folder) == []


def test_a_plan_of_an_interrupted_job(folder, known):
    """Telling what would be done takes and changes nothing."""
    done = interrupt(folder)
    before = leftovers(folder)
    text = str(wkwdask.plan_pyramid(folder, "seg", mags=CASE.mags))
    assert "region" in text
    assert leftovers(folder) == before
    assert go_on(folder)[1] == known.tasks - done


def test_a_locked_mag(folder, known):
    """One that has started but not ended in this very process is alive."""
    array = dask.array.ones((9, 9, 9), dtype=np.uint32, chunks=9)
    later = wkwdask.to_wkw(array, folder / "seg" / CASE.mags[0], compute=False)
    interrupt(folder)
    with pytest.raises((LockedError, ResumeError)):
        later.compute()
    go_on(folder)
    known.check(folder)


@pytest.mark.parametrize("existing", ["resume", "error"])
def test_locks_that_a_finished_job_left(folder, known, existing):
    """It was killed between its last steps: the next call says that all is done, and the locks are gone."""
    CASE.build(folder)
    for mag in CASE.mags[1:3]:
        put_lock(folder / "seg" / mag, dead_process("a job that died"))
    report, ran = go_on(folder, existing=existing)
    assert "nothing to do" in report.note
    assert ran == set()
    known.check(folder)


def test_a_layer_that_is_named_twice_is_built_once(tmp_path):
    wkwdask.write(tmp_path / "ds" / "color" / "1", (0, 0, 0), np.ones((1, 32, 32, 32), np.uint8), voxel_size=(8, 8, 8))
    report = wkwdask.build_pyramid(tmp_path / "ds", ["color", "color"], coarsest=2)
    assert "finished before" in report.note
    assert wkwdask.verify(tmp_path / "ds", pyramid=True).is_sound
