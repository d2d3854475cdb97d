"""Jobs on Zarr are killed before changes of the file system: a zip exists whole or not at all, and
the same call completes every job."""

from __future__ import annotations

import shutil
from contextlib import suppress
from pathlib import Path

import dask
import numpy as np
import pytest
from faults.drivers import KILLS, killed_at, killed_at_each, rechunks_of, without_flushing
from faults.trees import contents, leftovers

import wkwdask
from wkwdask.errors import ExistsError
from wkwdask.plans import pyramid, regions

zarr = pytest.importorskip(
    "zarr", minversion="3.1.4", reason="zarr, of the extra zarr, is not installed"
)

pytestmark = [
    pytest.mark.faults,
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:Consolidated metadata"),
]
VOXELS = np.random.default_rng(0).integers(1, 255, (20, 18, 12)).astype(np.uint8)


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("source") / "stack.npy"
    np.save(folder, VOXELS)
    return folder


def test_a_zip_is_whole_or_absent_and_the_same_call_completes_it(tmp_path, source):
    def convert(folder):
        with without_flushing():
            wkwdask.convert(
                source, folder / "em.ozx", voxel_size=(4, 4, 8), axes="xyz", chunk_shape=(8, 8, 8)
            )

    for folder in ("first", "whole"):
        (tmp_path / folder).mkdir()
    with dask.config.set(scheduler="synchronous"):
        convert(tmp_path / "first")  # what a process does once is done
    changes, _ = killed_at(0, convert, tmp_path / "whole")
    expected = contents(tmp_path / "whole")
    assert list(expected) == ["em.ozx"]
    folder = tmp_path / "killed"
    for step in killed_at_each(
        range(1, changes + 1) if KILLS else [changes // 3, *range(changes - 16, changes + 1, 2)],
        convert,
        Path.mkdir,
        folder,
    ):
        assert contents(folder) in ({}, expected), step
        with (
            dask.config.set(scheduler="synchronous"),
            # one that was killed while it published is completed, and says so
            suppress(*([ExistsError] if contents(folder) else [])),
        ):
            convert(folder)
        assert contents(folder) == expected, step
        assert leftovers(folder) == [], step
    np.testing.assert_array_equal(wkwdask.open(tmp_path / "whole" / "em.ozx")[0], VOXELS)


def test_copied_blocks_are_a_whole_level_or_none_and_the_same_call_completes_it(tmp_path):
    dataset = tmp_path / "ds"
    wkwdask.create_dataset(dataset, voxel_size=(4, 4, 8))
    with dask.config.set(scheduler="synchronous"):
        wkwdask.to_wkw(
            VOXELS,
            dataset / "color" / "1",
            offset=(3, 5, 0),
            block_len=4,
            file_len=2,
            compression="lz4",
        )
        wkwdask.build_pyramid(dataset, "color", mags=["2"])

    def convert(folder):
        with without_flushing(), rechunks_of(8):
            wkwdask.convert(dataset, folder / "em.ome.zarr", layer="color", existing="resume")

    def levels(found):
        return [
            {name: data for name, data in found.items() if name.startswith(f"em.ome.zarr/{mag}/")}
            for mag in "12"
        ]

    for folder in ("first", "whole"):
        (tmp_path / folder).mkdir()
    with dask.config.set(scheduler="synchronous"):
        convert(tmp_path / "first")  # what a process does once is done
    changes, _ = killed_at(0, convert, tmp_path / "whole")
    expected = contents(tmp_path / "whole")
    assert "blosc" in expected["em.ome.zarr/1/zarr.json"].decode()
    seen, folder = [], tmp_path / "killed"
    for step in killed_at_each(
        range(1, changes + 1, 1 if KILLS else max(1, changes // 6)), convert, Path.mkdir, folder
    ):
        seen += levels(contents(folder))
        assert all(
            level in ({}, whole) for level, whole in zip(seen[-2:], levels(expected), strict=True)
        ), step
        with dask.config.set(scheduler="synchronous"):
            convert(folder)
        assert contents(folder) == expected, step
        assert leftovers(folder) == [], step
    assert {} in seen
    np.testing.assert_array_equal(
        wkwdask.open(tmp_path / "whole" / "em.ome.zarr", mag=1)[0], VOXELS
    )


def test_a_single_array_is_read_correctly_whenever_its_rechunking_is_killed(tmp_path):
    """Also through the consolidated metadata of its group, which describe the old chunks."""
    group = zarr.create_group(tmp_path / "before" / "group.zarr")
    group.create_array("a", data=VOXELS, chunks=(8, 8, 8), compressors=None)
    zarr.consolidate_metadata(tmp_path / "before" / "group.zarr")

    def rechunk(folder):
        with without_flushing():
            wkwdask.rechunk(
                folder / "group.zarr" / "a", chunk_shape=(16, 16, 8), compression="zstd"
            )

    with dask.config.set(scheduler="synchronous"):
        rechunk(shutil.copytree(tmp_path / "before", tmp_path / "first"))
    changes, publishing = killed_at(
        0, rechunk, shutil.copytree(tmp_path / "before", tmp_path / "whole")
    )
    expected = contents(tmp_path / "whole")
    for step in (
        range(1, changes + 1) if KILLS else (publishing // 2, *range(publishing, changes + 1, 3))
    ):
        # not a copy of a killed job: a source in another place is another source
        folder = shutil.copytree(tmp_path / "before", tmp_path / str(step))
        assert killed_at(step, rechunk, folder) is None
        np.testing.assert_array_equal(
            zarr.open_group(folder / "group.zarr", mode="r")["a"][...], VOXELS
        )
        with dask.config.set(scheduler="synchronous"):
            rechunk(folder)
        assert contents(folder) == expected, step
        assert leftovers(folder) == [], step


COPIES = {
    "copy": lambda source, target, **options: wkwdask.copy(source, target, **options),
    "rechunk": lambda source, target, **options: wkwdask.rechunk(
        source, target, chunk_shape=(6, 6, 6), **options
    ),
    "compress": lambda source, target, **options: wkwdask.compress(
        source, target, compression="zstd", **options
    ),
}


@pytest.mark.parametrize("version", ["0.4", "0.5", "0.6"])
@pytest.mark.parametrize("verb", COPIES)
def test_the_same_call_completes_a_killed_copy_of_several_levels(tmp_path, version, verb):
    image = f"zarr://{tmp_path}/image"
    with dask.config.set(scheduler="synchronous"):
        wkwdask.to_zarr(
            VOXELS[np.newaxis], image, voxel_size=(4, 4, 8), chunk_shape=(8, 8, 8), ngff=version
        )
        wkwdask.build_pyramid(image, mags=["2", "4"], method="mean")

    def copy(folder, **options):
        with without_flushing():
            return COPIES[verb](image, f"zarr://{folder}/new", **options)

    (tmp_path / "whole").mkdir()
    changes, _ = killed_at(0, copy, tmp_path / "whole")
    expected = contents(tmp_path / "whole")
    steps = range(1, changes + 1) if KILLS else [changes * n // 5 for n in range(1, 5)]
    for step in killed_at_each(steps, copy, Path.mkdir, tmp_path / "killed"):
        with dask.config.set(scheduler="synchronous"):
            copy(tmp_path / "killed")
        assert contents(tmp_path / "killed") == expected, step
        # documents of version 2
        assert [
            name for name in leftovers(tmp_path / "killed") if not Path(name).name.startswith(".z")
        ] == [], step
        with dask.config.set(scheduler="synchronous"):
            assert "nothing to do" in copy(tmp_path / "killed", existing="resume").note


@pytest.mark.parametrize("verb", ["rechunk", "pyramid"])
@pytest.mark.parametrize("unit_nbytes", [32 << 20, 0], ids=["whole shards", "parts of shards"])
def test_shards_of_three_chunks_are_completed_by_the_same_call(
    tmp_path, monkeypatch, unit_nbytes, verb
):
    """Regions are whole shards, or cut shards, which are then joined from parts."""
    monkeypatch.setattr(regions, "_LARGEST_UNIT_NBYTES", unit_nbytes)
    monkeypatch.setattr(pyramid, "_REGION_VX", 8)
    shards = {"chunk_shape": (2, 3, 4), "shard_shape": (6, 9, 4)}

    def save(folder):
        folder.mkdir()
        with dask.config.set(scheduler="synchronous"):
            storage = shards if verb == "pyramid" else {"chunk_shape": 4}
            place = {"voxel_size": (4, 4, 8), "offset": (3, 5, 0)}
            wkwdask.to_zarr(VOXELS, folder / "em.zarr", **place, **storage)

    def run(folder):
        with without_flushing():
            if verb == "pyramid":
                wkwdask.build_pyramid(folder / "em.zarr", mags=["2", "4"], existing="resume")
            else:
                wkwdask.rechunk(
                    folder / "em.zarr", folder / "other.zarr", **shards, existing="resume"
                )

    for name in ("first", "whole"):
        save(tmp_path / name)
    with dask.config.set(scheduler="synchronous"):
        run(tmp_path / "first")  # what a process does once is done
    changes, _ = killed_at(0, run, tmp_path / "whole")
    expected = contents(tmp_path / "whole")
    for step in range(1, changes + 1, 1 if KILLS else max(1, changes // 4)):
        # the source lies in the folder, and a copy of it is another source: each job is killed
        for _ in killed_at_each([step], run, save, folder := tmp_path / f"killed-{step}"):
            with dask.config.set(scheduler="synchronous"):
                run(folder)
            assert contents(folder) == expected, step
            assert leftovers(folder) == [], step
    name = "em.zarr/2" if verb == "pyramid" else "other.zarr/1"
    array = zarr.open(tmp_path / "whole" / name)
    assert array.shards == (4, 9, 6)
    if verb == "rechunk":
        np.testing.assert_array_equal(array[...].T, VOXELS)
