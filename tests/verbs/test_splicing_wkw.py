"""WKW blocks become the chunks of a Zarr array without decoding, and back: other software reads
every array that is made, and none of its voxels are others."""

from __future__ import annotations

import contextlib
import json
import os
from importlib.util import find_spec
from pathlib import Path

import dask
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.zarr_sources import stored_block

import wkwdask
from wkwdask.errors import FormatError
from wkwdask.formats.opening import open_stored
from wkwdask.formats.wkw.file import decode_file
from wkwdask.formats.wkw.layout import WkwCodec
from wkwdask.formats.zarr.codec import ZarrCodec

zarr = pytest.importorskip("zarr", reason="an oracle of Zarr")

DTYPES = [
    "uint8",
    "uint16",
    "uint32",
    "uint64",
    "int8",
    "int16",
    "int32",
    "int64",
    "float32",
    "float64",
]
FEWER = settings(max_examples=max(1, settings.default.max_examples // 2))


@pytest.fixture(autouse=True, scope="module")
def _synchronous():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def calls(monkeypatch):
    """Count the chunks that are decoded or encoded one by one or in boxes."""
    counts = {"decode": 0, "encode": 0}

    def counted(function, name):
        def call(*args, **kwargs):
            counts[name] += 1
            return function(*args, **kwargs)

        return call

    for cls in (WkwCodec, ZarrCodec):
        for name in counts:
            monkeypatch.setattr(cls, name, counted(getattr(cls, name), name))
        monkeypatch.setattr(cls, "encode_batch", counted(cls.encode_batch, "encode"))
    return counts


def voxels_of(shape, dtype="uint8", seed=0, edge=4):
    """Draw voxels with cubes of zeros, of one value and of noise; shape (c, x, y, z)."""
    random = np.random.default_rng(seed)
    cubes = random.integers(0, 3, [-(-n // edge) for n in shape[1:]])
    kinds = np.kron(cubes, np.ones((edge,) * 3, int))[tuple(slice(n) for n in shape[1:])]
    return (np.where(kinds == 2, random.integers(0, 100, shape), kinds)).astype(dtype)


def dataset(folder, array, offset=(0, 0, 0), **options):
    """Write an array as mag 1 of a layer."""
    wkwdask.create_dataset(folder, (4, 4, 40))
    wkwdask.write(folder / "color" / "1", offset, array, category="color", **options)
    return folder


def read_zarr(folder):
    """Return the voxels (c, x, y, z) of an array as zarr-python and tensorstore read it, and where
    its box begins."""
    array = zarr.open_array(str(folder), mode="r")
    found = array[...]
    if find_spec("tensorstore") is not None:
        import tensorstore

        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{folder}/"}}
        np.testing.assert_array_equal(tensorstore.open(spec).result().read().result(), found)
    voxels = (found if found.ndim == 4 else found[np.newaxis]).transpose(0, 3, 2, 1)
    return voxels, array.attrs.get("inner_box_vx", [0, 0, 0, *voxels.shape[1:]])


def expect_zarr(folder, array):
    """Compare a level with an array: all voxels around it are zero."""
    found, box = read_zarr(folder)
    assert found.dtype == array.dtype
    margins = [
        (low, length - low - n)
        for low, n, length in zip(box[:3], box[3:], found.shape[1:], strict=True)
    ]
    np.testing.assert_array_equal(found, np.pad(array, [(0, 0), *margins]))
    np.testing.assert_array_equal(wkwdask.open(folder), array)


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in Path(folder).rglob("*.wkw")}


def set_box(source, topleft, size):
    """Change the bounding box in the JSON of a dataset."""
    document = source / "datasource-properties.json"
    record = json.loads(document.read_text())
    record["dataLayers"][0]["boundingBox"] = {
        "topLeft": list(topleft),
        **dict(zip(("width", "height", "depth"), size, strict=True)),
    }
    document.write_text(json.dumps(record))


def mags(folder):
    return files(folder / "color" / "1")


def shards(folder):
    return [path for path in (folder / "c").rglob("*") if path.is_file()]


def sum_of_files(folder):
    """Sum the voxels of all files of a mag, also those outside of its box."""
    return sum(decode_file(raw).sum() for raw in mags(folder).values() if len(raw) > 16)


def num_chunks(url):
    """Count the stored chunks of mag 1."""
    _, array = open_stored(url, mag=1)
    return sum(1 for _ in array.layout.chunks(array, tuple(map(range, array.grid.counts))))


@FEWER
@given(
    shape=st.tuples(*[st.integers(1, 30)] * 3),
    offset=st.tuples(*[st.integers(0, 40)] * 3),
    block_len=st.sampled_from([1, 2, 4, 16]),
    file_len=st.sampled_from([1, 2, 4]),
    compression=st.sampled_from(["raw", "lz4", "lz4hc"]),
    dtype=st.sampled_from(DTYPES),
    channels=st.sampled_from([1, 3]),
)
def test_any_lengths_types_and_boxes(
    tmp_path_factory, shape, offset, block_len, file_len, compression, dtype, channels
):
    folder = tmp_path_factory.mktemp("splice")
    shape = [min(n, 4 * block_len) for n in shape]  # few blocks
    array = voxels_of((channels, *shape), dtype)
    source = dataset(
        folder / "ds",
        array,
        offset,
        block_len=block_len,
        file_len=file_len,
        compression=compression,
    )
    (planned,) = wkwdask.plan_convert(source, folder / "em.ome.zarr", layer="color").mags
    assert planned.path.startswith("copies stored chunks")
    assert planned.shard_shape == (block_len * file_len,) * 3
    report = wkwdask.convert(source, folder / "em.ome.zarr", layer="color")
    expect_zarr(folder / "em.ome.zarr" / "1", array)
    written = shards(folder / "em.ome.zarr" / "1")
    assert (report.files, report.nbytes_out) == (
        len(written),
        sum(path.stat().st_size for path in written),
    )
    wkwdask.convert(
        folder / "em.ome.zarr",
        folder / "back",
        layer="color",
        **({"compression": "raw"} if compression == "raw" else {}),
    )
    assert mags(folder / "back") == mags(source)


@FEWER
@given(
    data=st.data(),
    shape=st.tuples(*[st.integers(1, 20)] * 3),
    offset=st.tuples(*[st.integers(0, 9)] * 3),
    block_len=st.sampled_from([1, 4, 8]),
    compression=st.sampled_from(["raw", "lz4"]),
    dtype=st.sampled_from(["uint8", "int32", "float64"]),
    strict=st.booleans(),
)
def test_any_voxels_around_the_box(
    tmp_path_factory, data, shape, offset, block_len, compression, dtype, strict
):
    folder = tmp_path_factory.mktemp("outside")
    array = voxels_of((1, *shape), dtype)
    source = dataset(
        folder / "ds", array, offset, block_len=block_len, file_len=2, compression=compression
    )
    low = [data.draw(st.integers(0, n - 1)) for n in shape]
    size = [data.draw(st.integers(1, n - first)) for n, first in zip(shape, low, strict=True)]
    set_box(source, np.add(offset, low).tolist(), size)
    inside = array[
        (slice(None), *(slice(first, first + n) for first, n in zip(low, size, strict=True)))
    ]
    wkwdask.convert(source, folder / "em.ome.zarr", layer="color", strict_box=strict)
    if strict:
        expect_zarr(folder / "em.ome.zarr" / "1", inside)
    np.testing.assert_array_equal(wkwdask.open(folder / "em.ome.zarr", mag=1), inside)
    report = wkwdask.convert(
        folder / "em.ome.zarr",
        folder / "back",
        layer="color",
        **({"compression": "raw"} if compression == "raw" else {}),
    )
    assert sum_of_files(folder / "back") == inside.sum()
    assert "left out" not in report.note or not strict
    assert wkwdask.diff(source, folder / "back").equal


def test_no_chunk_is_decoded_and_zeros_are_absent(tmp_path, calls):
    array = np.zeros((1, 64, 32, 32), np.uint8)
    # 4 blocks of one file
    array[0, 8:16, 8:16] = np.random.default_rng(0).integers(0, 9, (8, 8, 32))
    source = dataset(tmp_path / "ds", array, (32, 64, 0), block_len=8, file_len=4)
    calls.update(decode=0, encode=0)
    report = wkwdask.convert(source, tmp_path / "em.ome.zarr", layer="color")
    wkwdask.convert(tmp_path / "em.ome.zarr", tmp_path / "back", layer="color")
    assert calls == {"decode": 0, "encode": 0}
    assert (report.files, num_chunks(tmp_path / "em.ome.zarr")) == (1, 4)
    expect_zarr(tmp_path / "em.ome.zarr" / "1", array)
    assert mags(tmp_path / "back") == mags(source)


def test_all_mags_are_copied_and_align(tmp_path):
    array = voxels_of((1, 60, 50, 40))
    source = dataset(tmp_path / "ds", array, (20, 10, 4), block_len=8, file_len=2)
    wkwdask.build_pyramid(source, "color")
    wkwdask.convert(source, tmp_path / "em.ome.zarr", layer="color")
    for mag in wkwdask.open_dataset(source)["color"].mags:
        np.testing.assert_array_equal(
            wkwdask.open(f"zarr://{tmp_path}/em.ome.zarr", mag=mag),
            wkwdask.open(source, layer="color", mag=mag),
        )
    wkwdask.convert(tmp_path / "em.ome.zarr", tmp_path / "back", layer="color")
    assert files(tmp_path / "back" / "color") == files(source / "color")
    assert (
        wkwdask.open_dataset(tmp_path / "back")["color"].bounding_box
        == wkwdask.open_dataset(source)["color"].bounding_box
    )


def test_voxels_outside_of_the_box_are_not_copied(tmp_path, calls):
    """Only blocks that the box cuts are decoded."""
    array = voxels_of((1, 48, 48, 48)) + 1
    source = dataset(tmp_path / "ds", array, block_len=8, file_len=4, compression="lz4")
    calls.update(decode=0, encode=0)
    wkwdask.convert(
        source, tmp_path / "em.ome.zarr", layer="color", bounding_box=(5, 16, 16, 30, 32, 16)
    )
    assert calls == {"decode": 16, "encode": 16}  # of 40 blocks: one layer at each end of x
    expect_zarr(tmp_path / "em.ome.zarr" / "1", array[:, 5:35, 16:, 16:32])
    assert num_chunks(tmp_path / "em.ome.zarr") == 5 * 4 * 2
    wkwdask.convert(tmp_path / "em.ome.zarr", tmp_path / "back", layer="color")
    assert sum_of_files(tmp_path / "back") == array[:, 5:35, 16:, 16:32].sum()


@pytest.mark.parametrize("compression", ["lz4", "raw"])
def test_cut_blocks_with_zeros_around_the_box_are_copied(tmp_path, calls, compression):
    array = voxels_of((2, 30, 29, 19), "uint16")
    source = dataset(
        tmp_path / "ds", array, (5, 3, 1), block_len=8, file_len=4, compression=compression
    )
    calls.update(decode=0, encode=0)
    report = wkwdask.convert(source, tmp_path / "em.ome.zarr", layer="color", strict_box=True)
    wkwdask.convert(
        tmp_path / "em.ome.zarr",
        tmp_path / "back",
        layer="color",
        **({"compression": "raw"} if compression == "raw" else {}),
    )
    assert calls == {"decode": 0, "encode": 0}
    assert "outside of the bounding box" not in report.note
    expect_zarr(tmp_path / "em.ome.zarr" / "1", array)
    assert mags(tmp_path / "back") == mags(source)


@pytest.mark.parametrize(
    ("url", "options", "report"),
    [
        (
            "em.ome.zarr",
            {},
            (
                "of those that were checked had nonzero voxels outside of the bounding box, which "
                "were copied; strict_box=True leaves them out"
            ),
        ),
        (
            "strict.ome.zarr",
            {"strict_box": True},
            "had nonzero voxels outside of the bounding box, which were left out",
        ),
        ("em.ome.zarr", {"bounding_box": (3, 0, 0, 17, 24, 16)}, None),
        ("em.ome.zarr", {"compression": "zstd"}, None),
    ],
)
def test_voxels_that_other_software_left_around_the_box_are_reported(
    tmp_path, url, options, report
):
    array = voxels_of((1, 24, 24, 24)) + 1
    source = dataset(tmp_path / "ds", array, block_len=4, file_len=4, compression="lz4")
    set_box(source, (3, 0, 0), (18, 24, 16))
    target = tmp_path / url
    found = wkwdask.convert(source, target, layer="color", **options)
    assert (
        found.note.endswith(f"{source}/color/1: 48 chunks {report}")
        if report is not None
        else "nonzero" not in found.note
    )
    inside = array[:, 3 : 20 if "bounding_box" in options else 21, :, :16]
    np.testing.assert_array_equal(wkwdask.open(target, mag=1), inside)
    wkwdask.convert(target, tmp_path / "back", layer="color")
    assert sum_of_files(tmp_path / "back") == inside.sum()
    if report is not None and not options:  # what other readers see
        seen, box = read_zarr(target / "1")
        assert box == [3, 0, 0, 18, 24, 16]
        np.testing.assert_array_equal(seen, array[:, :21, :, :16])


def test_blocks_as_large_as_their_voxels_become_stored_frames(tmp_path):
    array = stored_block()[np.newaxis]
    source = dataset(tmp_path / "ds", array, block_len=8, file_len=1, compression="lz4")
    wkwdask.convert(source, tmp_path / "em.ome.zarr", layer="color")
    (shard,) = shards(tmp_path / "em.ome.zarr" / "1")
    assert shard.read_bytes()[16 : 16 + 512] == array.tobytes(order="F")
    expect_zarr(tmp_path / "em.ome.zarr" / "1", array)
    wkwdask.convert(tmp_path / "em.ome.zarr", tmp_path / "back", layer="color")
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "back" / "color" / "1"), array)


def test_raw_file_in_a_compressed_mag_is_encoded(tmp_path):
    array = voxels_of((1, 32, 16, 16))
    source, raw = (
        dataset(tmp_path / name, array, block_len=8, file_len=2, compression=name)
        for name in ("lz4", "raw")
    )
    os.replace(raw / "color/1/z0/y0/x1.wkw", source / "color/1/z0/y0/x1.wkw")
    wkwdask.convert(source, tmp_path / "em.ome.zarr", layer="color")
    expect_zarr(tmp_path / "em.ome.zarr" / "1", array)


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"compression": "zstd"}, "chunks of 8 x 8 x 8 voxels become chunks of 64 x 64 x 64"),
        ({"ngff": "0.4"}, "chunks of 8"),
        ({"compression": "zstd", "chunk_shape": (8, 8, 8)}, "compression"),
        ({"chunk_shape": (16, 16, 16)}, "chunks of 8"),
        ({"dtype": "uint16"}, "converted"),
        ({"level": 3}, "level"),
    ],
)
def test_other_storage_and_types_are_decoded_and_the_plan_says_why(tmp_path, options, why):
    array = voxels_of((1, 30, 20, 10))
    source = dataset(tmp_path / "ds", array, (5, 6, 7), block_len=8, file_len=2)
    (planned,) = wkwdask.plan_convert(
        source, tmp_path / "em.ome.zarr", layer="color", **options
    ).mags
    assert planned.path.startswith("decodes")
    assert why in planned.path
    wkwdask.convert(source, tmp_path / "em.ome.zarr", layer="color", **options)
    found = zarr.open_group(tmp_path / "em.ome.zarr", mode="r")["1"]
    np.testing.assert_array_equal(found[...].T, array[0])
    assert found.chunks == options.get("chunk_shape", (64, 64, 64))


def test_broken_source_leaves_no_level(tmp_path):
    source = dataset(
        tmp_path / "ds", voxels_of((1, 16, 16, 16)), block_len=4, file_len=4, compression="lz4"
    )
    path = source / "color/1/z0/y0/x0.wkw"
    whole = path.read_bytes()
    for broken in (
        whole[:16] + (1 << 40).to_bytes(8, "little") + whole[24:],
        whole[: len(whole) // 2],
    ):
        path.write_bytes(broken)
        with pytest.raises(FormatError, match=f"{path}.*byte"):
            wkwdask.convert(source, tmp_path / "em.ome.zarr", layer="color")
        assert not (tmp_path / "em.ome.zarr" / "1").exists()


# --------------------------------------------------------------------------------------------------
# back


def image(folder, array, **options):
    """Let zarr-python write an OME-NGFF image (x, y, z)."""
    group = zarr.create_group(str(folder))
    axes = [{"name": name, "type": "space", "unit": "nanometer"} for name in "zyx"]
    datasets = [
        {"path": "1", "coordinateTransformations": [{"type": "scale", "scale": [40, 4, 4]}]}
    ]
    group.attrs["ome"] = {
        "version": "0.5",
        "multiscales": [{"name": "em", "axes": axes, "datasets": datasets}],
    }
    stored = group.create_array("1", shape=array.T.shape, dtype=array.dtype, **options)
    stored[...] = array.T
    return folder


@pytest.mark.parametrize("shard", [(32, 32, 32), None])
def test_frames_of_zarr_python_become_blocks(tmp_path, calls, shard):
    array = voxels_of((1, 64, 60, 30))[0]
    blosc = zarr.codecs.BloscCodec(cname="lz4", shuffle="noshuffle")
    source = image(
        tmp_path / "em.ome.zarr", array, chunks=(8, 8, 8), shards=shard, compressors=blosc
    )
    calls.update(decode=0, encode=0)
    wkwdask.convert(source, tmp_path / "back", layer="color")
    # those that the end of the array cuts, and those that Blosc stores without compression
    assert calls["decode"] < 8 * 8 * 4
    np.testing.assert_array_equal(wkwdask.open(tmp_path / "back", layer="color", mag=1)[0], array)
    stored = wkwdask.info(tmp_path / "back").layers[0].mags[0]
    assert (stored.compression, stored.block_len) == ("lz4", 8)


@pytest.mark.parametrize(
    ("dtype", "compressors", "shard", "length"),
    [
        # Blosc splits values of several bytes
        ("uint32", zarr.codecs.BloscCodec(cname="lz4", shuffle="noshuffle"), (32, 32, 32), 16),
        ("uint16", zarr.codecs.BloscCodec(cname="lz4", shuffle="shuffle"), (32, 32, 32), 32),
        ("uint8", None, (32, 32, 32), 32),
        ("uint8", zarr.codecs.BloscCodec(cname="lz4", shuffle="noshuffle"), (16, 32, 48), 16),
    ],
)
def test_other_chunks_are_decoded(tmp_path, dtype, compressors, shard, length):
    array = voxels_of((1, 40, 60, 30), dtype)[0]
    source = image(
        tmp_path / "em.ome.zarr", array, chunks=(16, 16, 16), shards=shard, compressors=compressors
    )
    wkwdask.convert(source, tmp_path / "back", layer="color")
    np.testing.assert_array_equal(wkwdask.open(tmp_path / "back", layer="color", mag=1)[0], array)
    assert wkwdask.info(tmp_path / "back").layers[0].mags[0].block_len == length


def test_voxels_that_other_software_stored_beyond_the_end_are_not_copied(tmp_path):
    source = image(
        tmp_path / "em.ome.zarr",
        np.full((16, 16, 16), 7, np.uint8),
        chunks=(8, 8, 8),
        shards=(16, 16, 16),
        compressors=zarr.codecs.BloscCodec(cname="lz4", shuffle="noshuffle"),
    )
    document = source / "1" / "zarr.json"
    document.write_text(json.dumps({**json.loads(document.read_text()), "shape": [16, 16, 13]}))
    wkwdask.convert(source, tmp_path / "back", layer="color")
    assert sum_of_files(tmp_path / "back") == 7 * 13 * 16 * 16


@given(data=st.data())
@FEWER
def test_damaged_frames_are_errors_or_decode(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("fuzz")
    source = dataset(
        folder / "ds", voxels_of((1, 8, 8, 8)) + 1, block_len=4, file_len=2, compression="lz4"
    )
    wkwdask.convert(source, folder / "em.ome.zarr", layer="color")
    (path,) = shards(folder / "em.ome.zarr" / "1")
    raw = bytearray(path.read_bytes())
    frames = len(raw) - 8 * 16 - 4
    for _ in range(data.draw(st.integers(1, 3))):
        raw[data.draw(st.integers(0, frames - 1))] = data.draw(st.integers(0, 255))
    path.write_bytes(raw)
    with contextlib.suppress(FormatError):
        found = wkwdask.read(f"zarr://{folder}/em.ome.zarr", mag=1)
        wkwdask.convert(folder / "em.ome.zarr", folder / "back", layer="color")
        np.testing.assert_array_equal(wkwdask.read(folder / "back" / "color" / "1"), found)
        return
    with pytest.raises(FormatError, match=str(path)):
        wkwdask.convert(folder / "em.ome.zarr", folder / "back", layer="color")
    assert not (folder / "back" / "color" / "1").exists()
