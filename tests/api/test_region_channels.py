"""Writes into existing arrays whose channels lie in several chunks or files, as other software
makes them."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import HEAVY

pytest.importorskip("zarr", reason="zarr is not installed")
pytest.importorskip("tensorstore", reason="tensorstore is not installed")
import tensorstore as ts
import zarr

import wkwdask
from wkwdask.errors import TaskFailedError
from wkwdask.model.writing.target_array import TargetArray

SHAPE = (3, 12, 20, 18)  # c, z, y, x
KVSTORE = {"driver": "file"}


@dataclass(frozen=True)
class Layout:
    """One array of another program; lengths are c, z, y, x."""

    kind: str
    """``zarr2``, ``zarr3`` or ``n5``."""
    shape: tuple[int, ...]
    chunk: tuple[int, ...]
    shard: tuple[int, ...] | None = None
    index_at_end: bool = True

    def create(self, folder, voxels):
        """Write an array with a program other than wkwdask."""
        if self.kind == "n5":
            metadata = {
                "dimensions": self.shape[::-1],
                "blockSize": self.chunk[::-1],
                "dataType": voxels.dtype.name,
                "compression": {"type": "gzip"},
            }
            metadata["axes"] = ["x", "y", "z", "c"]
            store = ts.open(
                {"driver": "n5", "kvstore": {**KVSTORE, "path": str(folder)}, "metadata": metadata},
                create=True,
            ).result()
            store[...] = voxels.T
            return
        version = int(self.kind[-1])
        options = (
            {"dimension_names": list("czyx")}
            if version == 3
            else {"chunk_key_encoding": {"name": "v2", "separator": "/"}}
        )
        codec = (
            zarr.codecs.ShardingCodec(
                chunk_shape=self.chunk,
                codecs=[zarr.codecs.BytesCodec(), zarr.codecs.ZstdCodec(level=1)],
                index_location="end" if self.index_at_end else "start",
            )
            if self.shard
            else "auto"
        )
        if self.shard:
            options |= {"serializer": codec, "compressors": None, "filters": None}
        array = zarr.create_array(
            folder,
            shape=self.shape,
            chunks=self.shard or self.chunk,
            dtype=voxels.dtype,
            zarr_format=version,
            fill_value=0,
            config={"write_empty_chunks": False},
            **options,
        )
        array[...] = voxels
        if version == 2:
            (folder / ".zattrs").write_text(json.dumps({"_ARRAY_DIMENSIONS": list("czyx")}))

    def url(self, folder):
        return f"{'n5' if self.kind == 'n5' else 'zarr'}://{folder}"

    def check(self, folder, expected):
        """Read the array with every program."""
        np.testing.assert_array_equal(
            wkwdask.read(self.url(folder)).transpose(0, 3, 2, 1), expected
        )
        driver = {"zarr2": "zarr", "zarr3": "zarr3", "n5": "n5"}[self.kind]
        found = (
            ts.open({"driver": driver, "kvstore": {**KVSTORE, "path": str(folder)}})
            .result()
            .read()
            .result()
        )
        np.testing.assert_array_equal(found.T if self.kind == "n5" else found, expected)
        if self.kind != "n5":
            np.testing.assert_array_equal(zarr.open_array(folder, mode="r")[...], expected)
        report = wkwdask.verify(self.url(folder))
        assert report.is_sound, str(report)

    def file_of(self, path):
        """Return the voxels that a data file covers, None for other files."""
        parts = [part for part in path.split("/") if part != "c"]
        if not all(part.isdigit() for part in parts):
            return None
        index = list(map(int, parts))[:: -1 if self.kind == "n5" else 1]
        return tuple(
            slice(n * edge, (n + 1) * edge)
            for n, edge in zip(index, self.shard or self.chunk, strict=True)
        )


def some_voxels(seed, shape, dtype="uint16"):
    """Return voxels with boxes of zeros that differ between the channels."""
    random = np.random.default_rng(seed)
    array = random.integers(1, 200, shape).astype(dtype)
    for channel in array:
        for _ in range(random.integers(0, 3)):
            low = [random.integers(0, n) for n in channel.shape]
            channel[tuple(slice(n, n + 10) for n in low)] = 0
        channel *= random.integers(0, 4) > 0
    return array


def hashes(folder):
    files = {
        str(path.relative_to(folder)): path
        for path in Path(folder).rglob("*")
        if path.is_file() and not path.name.startswith(".")
    }
    return {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()}


LAYOUTS = {
    "bioformats2raw": Layout("zarr2", SHAPE, (1, 1, 8, 8)),
    "zarr2": Layout("zarr2", SHAPE, (1, 8, 8, 8)),
    "zarr3": Layout("zarr3", SHAPE, (2, 8, 8, 8)),
    "shards of two channels": Layout("zarr3", SHAPE, (1, 4, 8, 8), (2, 8, 16, 16)),
    "shards of one channel": Layout("zarr3", SHAPE, (1, 4, 8, 8), (1, 8, 16, 16)),
    "index at the start": Layout("zarr3", SHAPE, (2, 4, 8, 8), (4, 8, 16, 16), index_at_end=False),
    "n5": Layout("n5", SHAPE, (2, 8, 8, 8)),
}


def write_region(layout, folder, patch, low, high, *, is_dask=False, **options):
    """Write voxels (c, z, y, x) into the region between two corners (z, y, x)."""
    array = patch.transpose(0, 3, 2, 1)
    if is_dask:
        array = da.from_array(array, chunks=(1, 7, 6, 5))
    with dask.config.set(scheduler="synchronous"):
        return wkwdask.save(array, layout.url(folder), region=(low[::-1], high[::-1]), **options)


@st.composite
def layouts(draw):
    kind = draw(st.sampled_from(["zarr2", "zarr3", "zarr3", "sharded", "sharded", "n5"]))
    channels = draw(st.integers(2, 5))
    shape = (channels, *(draw(st.integers(1, 17)) for _ in range(3)))
    chunk = (
        draw(st.integers(1, channels)),
        *(draw(st.sampled_from([1, 3, 4, 8])) for _ in range(3)),
    )
    if kind != "sharded":
        return Layout(kind, shape, chunk)
    shard = tuple(n * draw(st.integers(1, 3)) for n in chunk)
    return Layout("zarr3", shape, chunk, shard, draw(st.booleans()))


@HEAVY
@given(layouts(), st.data())
def test_any_region_of_any_channel_layout_equals_numpy(tmp_path_factory, layout, data):
    folder = tmp_path_factory.mktemp("any") / "array"
    expected = some_voxels(data.draw(st.integers(0, 99)), layout.shape)
    layout.create(folder, expected)
    low = tuple(data.draw(st.integers(0, n - 1)) for n in layout.shape[1:])
    high = tuple(
        data.draw(st.integers(a + 1, n)) for a, n in zip(low, layout.shape[1:], strict=True)
    )
    inside = tuple(map(slice, low, high))
    patch = some_voxels(
        data.draw(st.integers(100, 199)),
        (layout.shape[0], *(b - a for a, b in zip(low, high, strict=True))),
    )
    before = hashes(folder)
    write_region(layout, folder, patch, low, high, is_dask=data.draw(st.booleans()))
    expected[(slice(None), *inside)] = patch
    layout.check(folder, expected)
    for name, digest in before.items():
        box = layout.file_of(name)
        touches = box is not None and all(
            a.start < b.stop and b.start < a.stop for a, b in zip(box[1:], inside, strict=True)
        )
        assert touches or hashes(folder).get(name) == digest


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("kind", ["zeros", "zeros in one channel", "values"])
def test_region_keeps_the_voxels_around_it_in_every_channel(tmp_path, layout, kind):
    expected = some_voxels(1, SHAPE) + np.uint16(1)
    layout.create(tmp_path / "array", expected)
    patch = np.full((3, 5, 10, 11), 7, np.uint16)
    patch[: {"zeros": 3, "zeros in one channel": 1, "values": 0}[kind]] = 0
    write_region(layout, tmp_path / "array", patch, (2, 5, 3), (7, 15, 14))
    expected[:, 2:7, 5:15, 3:14] = patch
    layout.check(tmp_path / "array", expected)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("is_dask", [False, True], ids=["numpy", "dask"])
def test_interrupted_region_in_parts_is_resumed(tmp_path, layout, is_dask, monkeypatch):
    expected = some_voxels(2, SHAPE) + np.uint16(1)
    layout.create(tmp_path / "array", expected)
    patch = some_voxels(5, (3, 11, 18, 17))
    join, joined = TargetArray.join_shard, []

    def join_some(*args):
        joined.append(args)
        if len(joined) > 2:
            raise OSError("the disk is gone")
        return join(*args)

    with monkeypatch.context() as patches:
        patches.setattr("wkwdask.verbs.write.PART_NBYTES", 2 << 10)
        patches.setattr(TargetArray, "join_shard", join_some)
        try:
            write_region(
                layout,
                tmp_path / "array",
                patch,
                (1, 2, 1),
                (12, 20, 18),
                is_dask=is_dask,
                token="patch" if is_dask else None,
            )
        except (OSError, TaskFailedError):
            assert len(joined) > 2
    write_region(
        layout,
        tmp_path / "array",
        patch,
        (1, 2, 1),
        (12, 20, 18),
        is_dask=is_dask,
        token="patch" if is_dask else None,
        existing="resume",
    )
    expected[:, 1:12, 2:20, 1:18] = patch
    layout.check(tmp_path / "array", expected)


IMAGES = {name: layout for name, layout in LAYOUTS.items() if layout.kind != "n5"}
FINE = (3, 12, 40, 36)


def mean_of(array):
    """Downsample by 2, as the mean rounds half to even."""
    c, z, y, x = array.shape
    return np.rint(array.reshape(c, z // 2, 2, y // 2, 2, x // 2, 2).mean(axis=(2, 4, 6))).astype(
        array.dtype
    )


def write_image(layout, folder):
    """Write an OME-Zarr image of two levels with a program other than wkwdask; return the voxels of
    both."""
    fine = some_voxels(3, FINE) + np.uint16(1)
    levels = {"0": fine, "1": mean_of(fine)}
    zarr.open_group(folder, mode="w", zarr_format=int(layout.kind[-1]))
    for name, voxels in levels.items():
        replace(layout, shape=voxels.shape).create(folder / name, voxels)
    datasets = [
        {
            "path": name,
            "coordinateTransformations": [
                {"type": "scale", "scale": [1.0] + [4.0 * 2 ** int(name)] * 3}
            ],
        }
        for name in levels
    ]
    for entry in datasets[1:]:
        entry["coordinateTransformations"].append(
            {"type": "translation", "translation": [0.0, 2.0, 2.0, 2.0]}
        )
    axes = [{"name": "c", "type": "channel"}] + [
        {"name": axis, "type": "space", "unit": "nanometer"} for axis in "zyx"
    ]
    multiscale = {"axes": axes, "datasets": datasets, "name": "image"}
    group = zarr.open_group(folder, mode="r+")
    if layout.kind == "zarr2":
        group.attrs["multiscales"] = [{"version": "0.4", **multiscale}]
    else:
        group.attrs["ome"] = {"version": "0.5", "multiscales": [multiscale]}
    return levels


@pytest.fixture(params=IMAGES.values(), ids=IMAGES)
def image(request, tmp_path):
    levels = write_image(request.param, tmp_path / "image")
    return request.param, tmp_path / "image", levels["0"], levels["1"]


def check_image(layout, folder, fine, coarse):
    layout.check(folder / "0", fine)
    layout.check(folder / "1", coarse)
    report = wkwdask.verify(f"zarr://{folder}", pyramid=True, method="mean")
    assert set(report.kinds()) <= {"quarantine"}, str(report)


def test_update_rebuilds_coarser_levels_in_every_channel(image):
    layout, folder, fine, _ = image
    fine[1, :6, 5:30, 3:20] = 0
    fine[2, 4:8, :10] = 99
    write_region(layout, folder / "0", fine[:, :, :30], (0, 0, 0), (12, 30, 36))
    wkwdask.build_pyramid(f"zarr://{folder}", mags=["2"], method="mean", update="content")
    check_image(layout, folder, fine, mean_of(fine))
    assert (
        "0 of them changed"
        in wkwdask.build_pyramid(
            f"zarr://{folder}", mags=["2"], method="mean", update="content"
        ).note
    )
    paths = [
        path
        for path in sorted((folder / "1").rglob("*"))
        if path.is_file() and layout.file_of(str(path.relative_to(folder / "1")))
    ]
    paths[-1].unlink()
    assert wkwdask.verify(f"zarr://{folder}").kinds() == {"file.lost": 1}
    wkwdask.repair(f"zarr://{folder}", method="mean")
    check_image(layout, folder, fine, mean_of(fine))


def test_repair_rebuilds_a_differing_level_in_every_channel(image):
    layout, folder, fine, coarse = image
    write_region(layout, folder / "1", np.zeros((3, 3, 4, 5), np.uint16), (1, 6, 6), (4, 10, 11))
    assert wkwdask.verify(f"zarr://{folder}", pyramid=True, method="mean").kinds() == {
        "pyramid.differs": 1
    }
    wkwdask.repair(f"zarr://{folder}", rebuild_differing=True, method="mean")
    check_image(layout, folder, fine, coarse)


def test_repair_replaces_a_damaged_file_of_one_channel(image):
    layout, folder, fine, coarse = image
    paths = [
        path
        for path in sorted((folder / "1").rglob("*"))
        if path.is_file() and layout.file_of(str(path.relative_to(folder / "1")))
    ]
    paths[-1].write_bytes(paths[-1].read_bytes()[:-9])
    assert not wkwdask.verify(f"zarr://{folder}").is_sound
    wkwdask.repair(f"zarr://{folder}", method="mean")
    check_image(layout, folder, fine, coarse)


def test_new_levels_and_copies_equal_numpy(image, tmp_path):
    _, folder, fine, _ = image
    url = f"zarr://{folder}"
    wkwdask.build_pyramid(url, mags=["4-4-2"], method="max")
    expected = fine.reshape(3, 6, 2, 10, 4, 9, 4).max(axis=(2, 4, 6))
    np.testing.assert_array_equal(wkwdask.read(url, mag="4-4-2").transpose(0, 3, 2, 1), expected)
    for verb, options in (
        (wkwdask.copy, {}),
        (wkwdask.rechunk, {}),
        (wkwdask.compress, {"compression": "gzip"}),
    ):
        target = f"zarr://{tmp_path}/{verb.__name__}"
        verb(url, target, **options)
        np.testing.assert_array_equal(wkwdask.read(target).transpose(0, 3, 2, 1), fine)
        assert wkwdask.verify(target).is_sound
