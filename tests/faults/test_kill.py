"""Processes are killed in the middle of jobs: visible data is complete, and the next run completes
the job.

A job is killed before each change of the file system (counted by an audit hook in a forked child),
at random moments of a process with threads, and as a worker of a cluster. The next job writes
arrays again and resumes pyramids. Tests kill only processes that they started.
"""

from __future__ import annotations

import contextlib
import json
import multiprocessing
import os
import signal
import threading
import time

import dask
import dask.array as da
import numpy as np
import pytest
from faults.drivers import (
    KILLS,
    imports_of,
    job_folders,
    journaled,
    killed_at,
    killed_at_each,
    logged,
    rechunks_of,
    regions_of,
    runs,
)
from faults.trees import JSON_NAME, contents, differences, lay_out, leftovers, make_dataset
from PIL import Image
from support.annotations import write_data_zip
from support.inside import limited

import wkwdask
from wkwdask import Sharding
from wkwdask.errors import ExistsError, MissingError, ReplacedError

# of arrays that overwrite
pytestmark = [
    pytest.mark.faults,
    pytest.mark.filterwarnings("default::wkwdask.errors.DiscardWarning"),
]

VOXEL_SIZE = (11.24, 11.24, 28)
SHAPE = (40, 24, 26)  # four files, and two of the next mag
OFFSET = (13, 0, 9)
OPTIONS = {"block_len": 8, "file_len": 4, "compression": "lz4"}
PYRAMID_MAGS = ("2-2-1", "4-4-2", "8-8-4")
SHARDING = Sharding(preshift_bits=1, minishard_bits=1, shard_bits=4)
SCALE = "11.24_11.24_28"


def voxels(seed=1, shape=SHAPE):
    """Labels in blobs, an all-zero corner, no compressible constant elsewhere."""
    random = np.random.default_rng(seed)
    coarse = random.integers(1, 200, [-(-n // 2) for n in shape]).astype(np.uint32)
    array = np.kron(coarse, np.ones((2, 2, 2), np.uint32))[: shape[0], : shape[1], : shape[2]]
    array[:24, :20] = 0
    return array


def write_new(folder):
    wkwdask.to_wkw(voxels(), folder / "seg" / "1", offset=OFFSET, **OPTIONS)


def overwrite(folder):
    wkwdask.to_wkw(voxels(2), folder / "seg" / "1", offset=OFFSET, existing="overwrite", **OPTIONS)


def new_pyramid(folder):
    with regions_of(16):
        wkwdask.build_pyramid(folder, "seg", coarsest="8-8-4")


def overwrite_pyramid(folder):
    with regions_of(16):
        wkwdask.build_pyramid(folder, "seg", coarsest="8-8-4", method="max", existing="overwrite")


def resume_pyramid(folder):
    """Resume an overwriting job that has begun."""
    can_resume = any((root / "publish.json").exists() for root in job_folders(folder)) or journaled(
        folder
    )
    with regions_of(16):
        wkwdask.build_pyramid(
            folder,
            "seg",
            coarsest="8-8-4",
            method="max",
            existing="resume" if can_resume else "overwrite",
        )


def cut_files(folder):
    """In place, without decoding."""
    with rechunks_of(16):
        wkwdask.rechunk(folder / "seg" / "1", file_len=2)


def join_files_of_larger_blocks(folder):
    """In place, by decoding."""
    with rechunks_of(16):
        wkwdask.rechunk(folder, mags="1", block_len=4, file_len=16)


def compress_elsewhere(folder):
    with rechunks_of(16):
        wkwdask.compress(folder / "seg" / "1", folder / "copy" / "1")


def invert(folder):
    """A function of our own, block by block."""
    with regions_of(16):
        wkwdask.apply(np.invert, folder / "seg" / "1", folder / "inverse" / "1", chunks=8)


def copy_moved(folder):
    """Copies blocks without decoding them."""
    with rechunks_of(16):
        wkwdask.copy(folder / "seg" / "1", folder / "copy" / "1", translate=(8, 32, 0))


def copy_files(folder):
    with rechunks_of(16):
        wkwdask.copy(folder / "seg", folder / "copy")


def merge(folder):
    """Some files are copied, blocks of others are replaced."""
    path = folder.parent / f"{folder.name}.annotation"
    if not path.exists():
        blocks = {(0, 1, 2): np.full((8, 8, 8), 300), (4, 2, 3): np.zeros((8, 8, 8))}
        write_data_zip(path, {"1": blocks}, block_len=8)
        os.utime(path, (1, 1))
    with rechunks_of(16):
        wkwdask.merge(folder / "seg" / "1", path, folder / "merged" / "1")


def remove(folder):
    wkwdask.rm(folder / "seg" / "2-2-1")


def lay_sections(folder):
    """Images beside the layers."""
    (folder / "sections").mkdir()
    for z, section in enumerate(voxels().astype(np.uint8).T):
        Image.fromarray(np.ascontiguousarray(section)).save(folder / "sections" / f"{z}.png")


def import_sections(folder):
    with imports_of(8):
        wkwdask.convert(
            folder / "sections",
            folder / "seg" / "1",
            offset=OFFSET,
            category="segmentation",
            **OPTIONS,
        )


def import_to_scale(folder):
    with imports_of(16):
        wkwdask.convert(
            folder / "sections",
            f"precomputed://{folder}/seg",
            offset=(-13, 0, 9),
            voxel_size=VOXEL_SIZE,
            chunk_shape=(16, 16, 16),
            shard_shape=SHARDING,
        )


def write_shards(folder):
    """A precomputed volume."""
    wkwdask.to_precomputed(
        da.from_array(voxels(), chunks=32),
        folder / "seg",
        shard_shape=SHARDING,
        chunk_shape=(16, 16, 16),
        voxel_size=VOXEL_SIZE,
        offset=(-13, 0, 9),
    )


def chunks_in_place_of_shards(folder):
    """Another geometry under the same key: the folder and then ``info`` are replaced."""
    wkwdask.to_precomputed(voxels(2), folder / "seg", chunk_shape=(16, 16, 8), existing="overwrite")


def add_scale(folder):
    wkwdask.to_precomputed(
        voxels(3)[::2, ::2],
        folder / "seg",
        chunk_shape=(32, 32, 32),
        mag="2-2-1",
        offset=(-7, 0, 9),
    )


def pyramid_of_scales(folder):
    with regions_of(16):
        wkwdask.build_pyramid(folder / "seg", mags=["2-2-1", "4-4-2"])


def scales_in_place(folder):
    """Encodes chunks differently into unsharded files, under the same key."""
    with rechunks_of(16):
        wkwdask.rechunk(folder / "seg", chunk_shape=(16, 16, 16), encoding="raw", shard_shape=False)


def compress_shards(folder):
    """Under the same key: the sharding in ``info`` changes with the shards."""
    with rechunks_of(16):
        wkwdask.compress(folder / "seg", compression="raw")


def finer_scale(folder):
    """In front of the finest one, which was mag 1 before."""
    with rechunks_of(16):
        wkwdask.upsample(folder / "seg", voxel_size=(5.62, 5.62, 14))


def write_images(folder):
    """Chunks that are images."""
    pytest.importorskip("imagecodecs", reason="png needs the extra precomputed")
    images = {
        "encoding": "png",
        "chunk_shape": (16, 16, 16),
        "voxel_size": VOXEL_SIZE,
        "offset": (-13, 0, 9),
    }
    wkwdask.to_precomputed(voxels().astype(np.uint8), folder / "seg", **images)


def images_into_shards(folder):
    """Copies encoded chunks."""
    wkwdask.rechunk(folder / "seg", shard_shape=SHARDING)


def scales_to_wkw(folder):
    with rechunks_of(16):
        wkwdask.convert(
            folder / "seg",
            folder / "wkw" / "1",
            offset=(16, 0, 0),
            category="segmentation",
            **OPTIONS,
        )


def wkw_to_scales(folder):
    with rechunks_of(16):
        wkwdask.convert(
            folder / "seg" / "1",
            f"precomputed://{folder}/scales",
            shard_shape=SHARDING,
            chunk_shape=(16, 16, 16),
        )


def other_copy(folder):
    wkwdask.to_wkw(voxels(4), folder / "copy" / "1", offset=OFFSET, **OPTIONS)


def copy_over(folder):
    with rechunks_of(16):
        wkwdask.copy(folder / "seg", folder / "copy", existing="overwrite")


def rechunk_over(folder):
    with rechunks_of(16):
        wkwdask.rechunk(
            folder / "seg" / "1", folder / "copy" / "1", file_len=2, existing="overwrite"
        )


def compress_over(folder):
    with rechunks_of(16):
        wkwdask.compress(folder / "seg" / "1", folder / "copy" / "1", existing="overwrite")


def compress_in_place(folder):
    with rechunks_of(16):
        wkwdask.compress(folder / "seg" / "1", compression="lz4hc", existing="overwrite")


def convert_over(folder):
    with rechunks_of(16):
        wkwdask.convert(
            folder / "seg" / "1",
            f"precomputed://{folder}/scales",
            shard_shape=SHARDING,
            chunk_shape=(16, 16, 16),
            existing="overwrite",
        )


def components_over(folder):
    with limited(components_nbytes=16**3 * 8):
        wkwdask.connected_components(
            folder / "seg" / "1", folder / "copy" / "1", existing="overwrite"
        )


def remap_over(folder):
    with limited(brick_nbytes=16**3 * 8), regions_of(32):
        wkwdask.remap(
            folder / "seg" / "1", folder / "copy" / "1", {1: 7, 2: 7}, existing="overwrite"
        )


# name: what is there before, the job, what is run when it was killed (by turns), and the mags that
# it makes
JOBS = {
    "write_new": ((), write_new, (write_new,), ("1",)),
    "overwrite": ((write_new,), overwrite, (overwrite,), ("1",)),
    "new_pyramid": ((write_new,), new_pyramid, (new_pyramid,), PYRAMID_MAGS),
    "overwrite_pyramid": (
        (write_new, new_pyramid),
        overwrite_pyramid,
        (overwrite_pyramid, resume_pyramid),
        PYRAMID_MAGS,
    ),
    "cut_files": ((write_new,), cut_files, (cut_files,), ("1",)),
    "join_files_of_larger_blocks": (
        (write_new,),
        join_files_of_larger_blocks,
        (join_files_of_larger_blocks,),
        ("1",),
    ),
    "compress_elsewhere": (
        (write_new,),
        compress_elsewhere,
        (compress_elsewhere,),
        ("1", "../copy/1"),
    ),
    "invert": ((write_new,), invert, (invert,), ("1", "../inverse/1")),
    "copy_moved": ((write_new,), copy_moved, (copy_moved,), ("1", "../copy/1")),
    "copy_files": ((write_new,), copy_files, (copy_files,), ("1", "../copy/1")),
    "merge": ((write_new,), merge, (merge,), ("1", "../merged/1")),
    "import_sections": ((lay_sections,), import_sections, (import_sections,), ("1",)),
    "write_shards": ((), write_shards, (write_shards,), (SCALE,)),
    "chunks_in_place_of_shards": (
        (write_shards,),
        chunks_in_place_of_shards,
        (chunks_in_place_of_shards,),
        (SCALE,),
    ),
    "pyramid_of_scales": (
        (write_shards,),
        pyramid_of_scales,
        (pyramid_of_scales,),
        (SCALE, "22.48_22.48_28", "44.96_44.96_56"),
    ),
    "scales_in_place": ((write_shards,), scales_in_place, (scales_in_place,), (SCALE,)),
    "compress_shards": ((write_shards,), compress_shards, (compress_shards,), (SCALE,)),
    "finer_scale": ((write_shards,), finer_scale, (finer_scale,), (SCALE, "5.62_5.62_14")),
    "images_into_shards": ((write_images,), images_into_shards, (images_into_shards,), (SCALE,)),
    "scales_to_wkw": ((write_shards,), scales_to_wkw, (scales_to_wkw,), (SCALE, "../wkw/1")),
    "wkw_to_scales": ((write_new,), wkw_to_scales, (wkw_to_scales,), ("1", f"../scales/{SCALE}")),
    "add_scale": ((write_shards,), add_scale, (add_scale,), (SCALE, "22.48_22.48_28")),
    "copy_over": ((write_new, other_copy), copy_over, (copy_over,), ("1", "../copy/1")),
    "rechunk_over": ((write_new, other_copy), rechunk_over, (rechunk_over,), ("1", "../copy/1")),
    "compress_over": ((write_new, other_copy), compress_over, (compress_over,), ("1", "../copy/1")),
    "compress_in_place": ((write_new,), compress_in_place, (compress_in_place,), ("1",)),
    "convert_over": (
        (write_new, wkw_to_scales, overwrite),
        convert_over,
        (convert_over,),
        ("1", f"../scales/{SCALE}"),
    ),
    "components_over": (
        (write_new, other_copy),
        components_over,
        (components_over,),
        ("1", "../copy/1"),
    ),
    "remap_over": ((write_new, other_copy), remap_over, (remap_over,), ("1", "../copy/1")),
    "import_to_scale": ((lay_sections,), import_to_scale, (import_to_scale,), (SCALE,)),
}
RESUMABLE = (
    overwrite_pyramid,
    new_pyramid,
    resume_pyramid,
    cut_files,
    join_files_of_larger_blocks,
    compress_elsewhere,
    invert,
    copy_moved,
    copy_files,
    merge,
    import_sections,
    pyramid_of_scales,
    scales_in_place,
    compress_shards,
    finer_scale,
    images_into_shards,
    scales_to_wkw,
    wkw_to_scales,
    import_to_scale,
    copy_over,
    rechunk_over,
    compress_over,
    compress_in_place,
    convert_over,
    components_over,
    remap_over,
)


def mag_contents(folder, mag):
    if mag.startswith("../"):
        return contents(folder / "seg" / mag)
    below = f"{mag}/"
    found = contents(folder / "seg") if (folder / "seg").exists() else {}
    return {
        name.removeprefix(below): data for name, data in found.items() if name.startswith(below)
    }


def seen_voxels(folder):
    """Read a precomputed volume; None if there is none."""
    return wkwdask.read(folder / "seg", mag="1") if (folder / "seg" / "info").exists() else None


class Expected:
    """Undisturbed runs of a job: the state before it and after it."""

    def __init__(self, name, folder):
        before, self.job, self.reruns, self.mags = JOBS[name]
        with dask.config.set(scheduler="synchronous"):
            make_dataset(folder, VOXEL_SIZE)
            for step in before:
                step(folder)
            self.before = contents(folder)
            self.old = {mag: mag_contents(folder, mag) for mag in self.mags}
            self.voxels = [seen_voxels(folder)]
            self.job(folder)
        self.after = contents(folder)
        self.voxels.append(seen_voxels(folder))
        self.new = {mag: mag_contents(folder, mag) for mag in self.mags}
        assert leftovers(folder) == []
        assert all(self.new.values())

    def start(self, folder):
        """Lay out the state before the job."""
        return lay_out(self.before, folder)

    def check_visible(self, folder, *, may_vanish=False):
        """Make sure that each mag is the old one or the new one, whole, and that the JSON promises
        no mag that is not there."""
        for mag in self.mags:
            seen = mag_contents(folder, mag)
            assert seen in (self.old[mag], self.new[mag]) or (may_vanish and not seen), (
                f"mag {mag} is neither old nor new"
            )
        info = folder / "seg" / "info"
        if info.exists():  # it names no scale that is not there, and is whole
            assert contents(folder)["seg/info"] in (
                self.before.get("seg/info"),
                self.after["seg/info"],
            )
            assert may_vanish or all(
                (folder / "seg" / scale["key"]).is_dir()
                for scale in json.loads(info.read_text())["scales"]
            )
            with contextlib.suppress(ReplacedError):  # between its folder and info, nothing is read
                assert any(np.array_equal(seen_voxels(folder), voxels) for voxels in self.voxels)
        document = json.loads((folder / JSON_NAME).read_text())
        assert document in (self.before[JSON_NAME], self.after[JSON_NAME])
        if not may_vanish:
            for layer in document["dataLayers"]:
                for mag in layer["mags"]:
                    assert (folder / mag["path"] / "header.wkw").exists()

    def check_rerun(self, folder, turn=0):
        """Run the job again or resume it, and compare with the undisturbed run."""
        again = self.reruns[turn % len(self.reruns)]
        done, log = journaled(folder), folder.parent / f"{folder.name}.log"
        log.unlink(missing_ok=True)
        # a job that was killed when all was done but its lock already exists, which a job that must
        # not overwrite says
        with contextlib.suppress(ExistsError), logged(log):
            again(folder)
        assert differences(contents(folder), self.after) == []
        assert leftovers(folder) == []
        if again in RESUMABLE:
            assert not done & set(runs(log))


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    cases = {}

    def of(name):
        if name not in cases:
            cases[name] = Expected(name, tmp_path_factory.mktemp("expected") / name)
        return cases[name]

    return of


# ----------------------------------------------------------------------------- at every step


ALL_STEPS = ("write_new", "overwrite_pyramid")


def chosen_steps(changes, publishing, name):
    """Some steps of the beginning, of the work between and of the clearing away; all of the
    publishing, or every fifth where other jobs do the same.

    Five successive jobs of the list have all steps together.
    """
    if KILLS:
        return range(1, changes + 1)
    first, last = max(12, publishing - 5), publishing + 14
    turn = list(JOBS).index(name) % 5
    steps = {
        *range(1 + turn, 12, 5),
        *range(12, first, max(9, first // 6)),
        *(range(first, last) if name in ALL_STEPS else range(first + turn, last, 5)),
        *range(last, changes, 20),
        *range(changes - 1, changes + 1),
    }
    return sorted(step for step in steps if step <= changes)


@pytest.mark.one_in(3)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    ("name", "exchange"),
    [
        *(
            pytest.param(name, True, marks=() if name in ALL_STEPS else pytest.mark.long)
            for name in JOBS
        ),
        ("overwrite", False),
        pytest.param("overwrite_pyramid", False, marks=pytest.mark.long),
    ],
)
def test_killed_at_any_step(tmp_path, expected, name, exchange):
    known = expected(name)
    changes, publishing = killed_at(0, known.job, known.start(tmp_path / "whole"), exchange)
    assert changes > publishing > 12
    assert contents(tmp_path / "whole") == known.after
    problems = []
    steps = [
        step
        for step in chosen_steps(changes, publishing, name)
        if exchange or KILLS or step > publishing
    ]
    folder = tmp_path / "ds"
    for turn, step in enumerate(killed_at_each(steps, known.job, known.start, folder, exchange)):
        try:
            known.check_visible(folder, may_vanish=not exchange)
            with dask.config.set(scheduler="synchronous"):
                known.check_rerun(folder, turn)
        except AssertionError as error:
            problems.append(f"killed before change {step} of {changes}: {str(error)[:300]}")
    assert not problems, "\n".join(problems)


@pytest.mark.needs("tensorstore")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(
    "name", ["scales_in_place", "chunks_in_place_of_shards", "images_into_shards"]
)
def test_other_software_sees_the_old_or_the_new_scale(tmp_path, expected, name):
    """At every step of the publication: zeros without an error are neither."""
    import tensorstore

    known = expected(name)
    changes, publishing = killed_at(0, known.job, known.start(tmp_path / "whole"))
    folder, problems = tmp_path / "ds", []
    steps = range(publishing - 1, min(publishing + 14, changes) + 1)
    for step in killed_at_each(steps, known.job, known.start, folder):
        spec = {
            "driver": "neuroglancer_precomputed",
            "kvstore": {"driver": "file", "path": f"{folder}/seg/"},
        }
        found = tensorstore.open(spec).result().read().result().transpose(3, 0, 1, 2)
        if not any(np.array_equal(found, voxels) for voxels in known.voxels):
            problems.append(
                f"killed before change {step} of {changes}: {np.count_nonzero(found)} voxels are "
                "not zero"
            )
    assert not problems, "\n".join(problems)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_layer_of_scales_is_the_old_or_the_new_one(tmp_path):
    """Two documents list the scale: ``info``, which describes its files, and that of the
    dataset."""

    def start(folder):
        make_dataset(folder, VOXEL_SIZE)
        wkwdask.open_dataset(folder).add_layer(
            "seg",
            "segmentation",
            "uint32",
            (*OFFSET, *SHAPE),
            data_format="neuroglancerPrecomputed",
        )
        stored = {"chunk_shape": (16, 16, 16), "shard_shape": SHARDING}
        wkwdask.save(voxels().astype(np.uint32), folder / "seg" / "1", offset=OFFSET, **stored)
        return folder

    def seen(folder):
        return wkwdask.read(folder, layer="seg", mag=1)

    with dask.config.set(scheduler="synchronous"):
        changes, publishing = killed_at(0, scales_in_place, start(tmp_path / "whole"))
        known, folder = seen(tmp_path / "whole"), tmp_path / "ds"
        for step in killed_at_each(
            range(publishing - 1, changes + 1), scales_in_place, start, folder
        ):
            assert np.array_equal(seen(folder), known), step
            scales_in_place(folder)
            assert np.array_equal(seen(folder), known), step
            assert wkwdask.verify(folder).is_sound, step
            assert leftovers(folder) == []


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_removal_killed_at_any_step(tmp_path):
    """The mag is complete and listed, or complete and not listed, or removed; the same call removes
    the rest."""
    source = make_dataset(tmp_path / "source", VOXEL_SIZE)
    with dask.config.set(scheduler="synchronous"):
        write_new(source)
        new_pyramid(source)
    before, mag = contents(source), mag_contents(source, "2-2-1")
    whole = lay_out(before, tmp_path / "whole")
    changes, _ = killed_at(0, remove, whole)
    after = contents(whole)
    assert {name for name in before if name not in after} == {
        name for name in before if name.startswith("seg/2-2-1/")
    }
    folder = tmp_path / "ds"
    for step in killed_at_each(
        range(1, changes + 1), remove, lambda folder: lay_out(before, folder), folder
    ):
        seen = contents(folder)
        assert mag_contents(folder, "2-2-1") in ({}, mag)
        assert seen[JSON_NAME] in (before[JSON_NAME], after[JSON_NAME])
        if seen[JSON_NAME] == before[JSON_NAME]:
            assert not differences(seen, before)
        with dask.config.set(scheduler="synchronous"), contextlib.suppress(MissingError):
            # killed when nothing was left to do
            remove(folder)
        assert not differences(contents(folder), after), step
        assert leftovers(folder) == [], step


# ----------------------------------------------------------------------------- at random moments

LARGE_SHAPE = (150, 90, 70)


def write_chunks(folder):
    """Irregular chunks that do not fit the files."""
    array = da.from_array(voxels(3, LARGE_SHAPE), chunks=((50, 1, 99), (33, 57), (40, 30)))
    wkwdask.to_wkw(array, folder / "seg" / "1", offset=OFFSET, existing="overwrite", **OPTIONS)


def write_then_nothing(folder):
    wkwdask.to_wkw(voxels(3, LARGE_SHAPE), folder / "seg" / "1", offset=OFFSET, **OPTIONS)


RANDOM_JOBS = {"write": write_chunks, "pyramid": overwrite_pyramid}


class Random(Expected):
    """The same, for the larger array."""

    def __init__(self, name, folder):
        self.job, self.mags = RANDOM_JOBS[name], ("1",) if name == "write" else PYRAMID_MAGS
        self.reruns = (self.job,)
        make_dataset(folder, VOXEL_SIZE)
        if name == "pyramid":
            write_then_nothing(folder)
        self.before = contents(folder)
        self.old = {mag: {} for mag in self.mags}
        started = time.monotonic()
        self.job(folder)
        self.seconds = time.monotonic() - started
        self.after = contents(folder)
        self.new = {mag: mag_contents(folder, mag) for mag in self.mags}
        assert leftovers(folder) == []


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    cases = {}

    def of(name):
        if name not in cases:
            cases[name] = Random(name, tmp_path_factory.mktemp("large") / name)
        return cases[name]

    return of


def killed_after(seconds, job, folder):
    """Run a job on threads in a forked child and kill it."""
    child = multiprocessing.get_context("fork").Process(target=job, args=(folder,))
    child.start()
    time.sleep(seconds)
    child.kill()
    child.join()


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("name", ["write", "pyramid"])
def test_process_killed_at_random_moments(tmp_path, large, name):
    known = large(name)
    random = np.random.default_rng(20)
    for n in range(KILLS or 5):
        folder = known.start(tmp_path / str(n))
        killed_after(random.uniform(0, 1.2) * known.seconds, known.job, folder)
        known.check_visible(folder)
        known.check_rerun(folder)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_rerun_after_a_rerun_that_was_killed_too(tmp_path, large):
    known = large("pyramid")
    folder = known.start(tmp_path / "ds")
    random = np.random.default_rng(21)
    for _ in range(KILLS or 4):
        killed_after(random.uniform(0, 1) * known.seconds, known.job, folder)
        known.check_visible(folder)
    known.check_rerun(folder)


# ----------------------------------------------------------------------------- workers of a cluster


@pytest.fixture(scope="module")
def client():
    import distributed  # after the tests above have forked
    from support.local_cluster import local_cluster

    with (
        dask.config.set({"distributed.scheduler.allowed-failures": 20}),
        local_cluster(silence_logs="CRITICAL") as cluster,
        distributed.Client(cluster) as connected,
    ):
        yield connected


class Killer(threading.Thread):
    """Kills one worker as soon as a job has published so many files in its folder."""

    def __init__(self, client, layer_folder, num_files, seed):
        super().__init__(daemon=True)
        self.pids = sorted(client.run(os.getpid).values())
        self.layer_folder, self.num_files = layer_folder, num_files
        self.victim = self.pids[np.random.default_rng(seed).integers(len(self.pids))]
        self.killed = False
        self.stop = threading.Event()

    def published(self):
        """Count the files in folders of jobs, which may vanish meanwhile."""
        walks = (
            names for folder, _, names in os.walk(self.layer_folder) if "/.wkwdask-job-" in folder
        )
        return sum(name.endswith(".wkw") for names in walks for name in names)

    def run(self):
        while not self.stop.is_set():
            if self.published() >= self.num_files:
                os.kill(self.victim, signal.SIGKILL)
                self.killed = True
                return
            time.sleep(0.001)


def write_slowly(folder):
    """So slow that a worker dies in the middle."""

    def slow(block):
        # a worker cannot import this module: a function in a function travels by value
        time.sleep(0.05)
        return block

    array = da.from_array(voxels(3, LARGE_SHAPE), chunks=(32, 32, 32)).map_blocks(
        slow, dtype=np.uint32
    )
    wkwdask.to_wkw(array, folder / "seg" / "1", offset=OFFSET, existing="overwrite", **OPTIONS)


@pytest.mark.long
@pytest.mark.parametrize(("name", "num_files"), [("write", 20), ("pyramid", 5)])
def test_worker_killed(tmp_path, client, large, name, num_files):
    """The job continues on the worker that replaces the killed one."""
    known = large(name)
    folder = known.start(tmp_path / "ds")
    client.wait_for_workers(2)
    killer = Killer(client, folder / "seg", num_files, seed=num_files)
    killer.start()
    try:
        (write_slowly if name == "write" else known.job)(folder)
    finally:
        killer.stop.set()
        killer.join()
    assert killer.killed
    assert contents(folder) == known.after
    assert leftovers(folder) == []
