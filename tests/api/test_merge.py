"""Merges of volume annotations: file lengths, zips, ids, types, boxes, refusals and
interruptions."""

from __future__ import annotations

import zipfile

import dask
import numpy as np
import pytest
from faults.drivers import rechunks_of, stopping
from hypothesis import given
from hypothesis import strategies as st
from support.annotations import write_annotation, write_annotations, write_data_zip
from support.commands import run_here
from support.datasets import edit, layer_of
from support.inside import before_task
from support.strategies import HEAVY
from support.wkw_files import LZ4, Header, block_bytes, spoil_block, stored_voxels

import wkwdask
from wkwdask.errors import (
    CorruptError,
    DiscardWarning,
    ExistsError,
    IncompleteWriteError,
    MissingError,
    ResumeError,
    UnsupportedError,
)

STEP = 32
SHAPE = (150, 130, 70)
LARGEST = 50


@pytest.fixture(autouse=True)
def _in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


def labels(shape, low, high, seed=0):
    return np.kron(
        np.random.default_rng(seed).integers(low, high, [-(-n // 4) for n in shape]),
        np.ones((4, 4, 4), int),
    )[tuple(slice(n) for n in shape)]


@pytest.fixture
def dataset(tmp_path):
    return make_dataset(tmp_path / "ds")


def make_dataset(folder, dtype=np.uint32, file_len=2, largest=LARGEST):
    wkwdask.create_dataset(folder, (11.24, 11.24, 28))
    wkwdask.to_wkw(
        labels(SHAPE, 0, 9).astype(dtype),
        folder / "seg" / "1",
        file_len=file_len,
        compression="lz4",
        category="segmentation",
    )
    wkwdask.to_wkw(np.ones(SHAPE, np.uint8), folder / "color" / "1", file_len=2)
    edit(
        folder,
        lambda document: document["dataLayers"][0].update(
            {"largestSegmentId": largest} if largest else {}
        ),
    )
    return folder


def whole(folder, layer="seg", mag=1):
    return wkwdask.open(folder, layer=layer, mag=mag).compute()[0]


def block(seed=0, low=0, high=99):
    return labels((STEP,) * 3, low, high, seed)


def put(array, blocks, step=STEP):
    """Replace whole blocks of an array."""
    array = array.copy()
    for index, voxels in blocks.items():
        place = tuple(slice(n * step, (n + 1) * step) for n in index)
        array[place] = voxels[tuple(slice(n) for n in array[place].shape)]
    return array


def cut_block(seed):
    """Return a block that has voxels in one corner only."""
    voxels = block(seed)
    voxels[22:], voxels[:, 2:], voxels[:, :, 6:] = 0, 0, 0
    return voxels


INSIDE = {(0, 0, 0): block(1), (1, 1, 1): np.zeros((STEP,) * 3, int)}
BLOCKS = {**INSIDE, (3, 2, 1): block(2), (4, 4, 2): cut_block(3)}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"file_len": 1},
        {"file_len": 8},
        {"block_len": 16},
        {"compression": "lz4hc"},
        {"block_len": 64, "file_len": 1},
    ],
)
def test_annotated_blocks_replace_blocks(dataset, tmp_path, options):
    """Zeros replace voxels too."""
    path = write_annotation(tmp_path / "annotation.zip", {"1": BLOCKS, "2-2-1": {}, "4-4-2": {}})
    report = wkwdask.merge(dataset, path, tmp_path / "merged", **options, verify=True)
    expected = put(whole(dataset), BLOCKS)
    np.testing.assert_array_equal(whole(tmp_path / "merged"), expected)
    assert layer_of(tmp_path / "merged", "seg")["largestSegmentId"] == max(
        LARGEST, max(int(voxels.max()) for voxels in BLOCKS.values())
    )
    assert (
        layer_of(tmp_path / "merged", "seg")["boundingBox"]
        == layer_of(dataset, "seg")["boundingBox"]
    )
    assert [entry["mag"] for entry in layer_of(tmp_path / "merged", "seg")["mags"]] == [[1, 1, 1]]
    assert report.note.endswith(f"coarser mags are not made: wkwdask pyramid {tmp_path}/merged/seg")
    wkwdask.build_pyramid(tmp_path / "merged", "seg", mags=["2"])


@pytest.mark.needs("zarr")
def test_into_a_layer_that_is_stored_as_zarr(dataset, tmp_path):
    """Its group and the dataset list the mag."""
    target = tmp_path / "target"
    wkwdask.create_dataset(target, (11.24, 11.24, 28))
    old = labels(SHAPE, 0, 9, seed=5).astype(np.uint32)
    wkwdask.save(old, f"zarr://{target}/seg", voxel_size=(11.24, 11.24, 28))
    entry = {**layer_of(dataset, "seg"), "dataFormat": "zarr3"}
    entry["mags"] = [{"mag": [1, 1, 1], "path": "./seg/1"}]
    edit(target, lambda document: document.update({"dataLayers": [entry]}))
    path = write_annotation(tmp_path / "annotation.zip", {"1": INSIDE})
    wkwdask.merge(dataset, path, target, existing="overwrite", verify=True)
    expected = put(whole(dataset), INSIDE)
    np.testing.assert_array_equal(whole(target), expected)
    stored = wkwdask.read(f"zarr://{target}/seg", ((0, 0, 0), SHAPE))[0]  # it ends on a shard
    np.testing.assert_array_equal(stored, expected)
    assert layer_of(target, "seg")["largestSegmentId"] == max(LARGEST, int(expected.max()))


@pytest.mark.parametrize(
    ("form", "stored"),
    [
        ("zip of zip", zipfile.ZIP_DEFLATED),
        ("packed zip of zip", zipfile.ZIP_STORED),
        ("data zip", zipfile.ZIP_STORED),
        ("data zip", zipfile.ZIP_DEFLATED),
        ("unpacked", zipfile.ZIP_DEFLATED),
        ("data unpacked", zipfile.ZIP_STORED),
    ],
)
def test_every_form_of_a_download_is_accepted(dataset, tmp_path, stored, form):
    path = tmp_path / "annotation.zip"
    mags = {"1-1-1": BLOCKS, "2": {}}
    if form == "data zip":
        write_data_zip(path, mags, compression=stored)
    else:
        write_annotation(
            path,
            mags,
            inner_compression=stored,
            outer_compression=zipfile.ZIP_DEFLATED
            if form.startswith("packed")
            else zipfile.ZIP_STORED,
        )
    if "unpacked" in form:
        with zipfile.ZipFile(path) as outer:
            outer.extractall(tmp_path / "outer")
        path = tmp_path / "outer"
        if form == "data unpacked":
            with zipfile.ZipFile(path / "data_0_Volume.zip") as inner:
                inner.extractall(tmp_path / "inner")
            path = tmp_path / "inner"
    wkwdask.merge(dataset, path, tmp_path / "merged")
    np.testing.assert_array_equal(whole(tmp_path / "merged"), put(whole(dataset), BLOCKS))


def test_untouched_blocks_keep_their_bytes(dataset, tmp_path):
    """Files without annotated blocks are copied unseen, even if they are damaged; the other blocks
    of annotated files byte for byte."""
    blocks = {index: voxels for index, voxels in BLOCKS.items() if index != (4, 4, 2)}
    path = write_annotation(tmp_path / "annotation.zip", {"1": blocks})
    kept = {}
    for index in np.ndindex(4, 4, 2):
        file, number = (
            f"seg/1/z{index[2] // 2}/y{index[1] // 2}/x{index[0] // 2}.wkw",
            sum((n % 2) << axis for axis, n in enumerate(index)),
        )
        if index not in blocks:
            is_whole = not any(
                tuple(n // 2 for n in other) == tuple(n // 2 for n in index) for other in blocks
            )
            kept[file, number] = (
                spoil_block(dataset / file, number)
                if is_whole
                else block_bytes(dataset / file, number)
            )
    wkwdask.merge(dataset, path, tmp_path / "merged")
    assert {
        (file, number): block_bytes(tmp_path / "merged" / file, number) for file, number in kept
    } == kept
    untouched = "seg/1/z0/y0/x1.wkw"
    assert (tmp_path / "merged" / untouched).read_bytes() == (dataset / untouched).read_bytes()


def test_the_last_annotation_of_a_block_counts(dataset, tmp_path):
    first = write_annotation(
        tmp_path / "first.zip", {"1": {(0, 0, 0): block(1), (1, 0, 0): block(2)}}
    )
    second = write_annotation(
        tmp_path / "second.zip", {"1": {(1, 0, 0): block(3), (2, 0, 0): block(4)}}
    )
    nothing = write_annotation(tmp_path / "nothing.zip", {"1": {}})
    report = wkwdask.merge(dataset, [first, second, nothing], tmp_path / "merged")
    expected = put(whole(dataset), {(0, 0, 0): block(1), (1, 0, 0): block(3), (2, 0, 0): block(4)})
    np.testing.assert_array_equal(whole(tmp_path / "merged"), expected)
    assert f"no block is stored in {nothing}" in report.note
    with pytest.raises(ValueError, match="nothing to merge"):
        wkwdask.merge(dataset, nothing, tmp_path / "other")


def test_relabel_gives_each_annotation_new_ids(dataset, tmp_path):
    """Ids of the base and zero stay."""
    first = {(0, 0, 0): block(1, 45, 61)}
    second = {(1, 0, 0): block(2, 0, 71), (2, 1, 1): np.full((STEP,) * 3, LARGEST)}
    third = {(0, 3, 0): block(3, LARGEST + 1, LARGEST + 3)}
    paths = [
        write_annotation(tmp_path / f"{n}.zip", {"1": blocks})
        for n, blocks in enumerate((first, second, third))
    ]
    report = wkwdask.merge(dataset, paths, tmp_path / "merged", relabel=True)
    assert first[0, 0, 0].max() == 60
    assert second[1, 0, 0].max() == 70
    raised = {
        index: np.where(voxels > LARGEST, voxels + 10, voxels) for index, voxels in second.items()
    }
    raised_more = {index: voxels + 30 for index, voxels in third.items()}
    np.testing.assert_array_equal(
        whole(tmp_path / "merged"), put(whole(dataset), first | raised | raised_more)
    )
    assert layer_of(tmp_path / "merged", "seg")["largestSegmentId"] == LARGEST + 32
    assert "ids 51 to 70 became 61 to 80" in report.note
    edit(dataset, lambda document: document["dataLayers"][0].pop("largestSegmentId"))
    with pytest.raises(ValueError, match="its JSON does not state"):
        wkwdask.merge(dataset, paths, tmp_path / "other", relabel=True)
    wkwdask.merge(dataset, paths, tmp_path / "other", relabel=LARGEST)
    np.testing.assert_array_equal(whole(tmp_path / "other"), whole(tmp_path / "merged"))
    with pytest.raises(UnsupportedError, match="ids up to 4294967312 do not fit into uint32"):
        wkwdask.merge(
            dataset,
            [paths[0], *paths[:1]],
            tmp_path / "third",
            relabel=(1 << 32) + 12 - 24 + 12 + 16,
        )


def test_relabel_refuses_a_base_with_ids_above_its_largest(dataset, tmp_path):
    edit(dataset, lambda document: document["dataLayers"][0].update({"largestSegmentId": 3}))
    path = write_annotation(
        tmp_path / "annotation.zip", {"1": {(0, 0, 0): whole(dataset)[:32, :32, :32]}}
    )
    with pytest.raises(
        ValueError, match="seg/1: contains id 4, although its largest id is stated as 3"
    ):
        wkwdask.merge(dataset, path, tmp_path / "merged", relabel=True)
    wkwdask.merge(dataset, path, tmp_path / "merged", relabel=8)
    np.testing.assert_array_equal(whole(tmp_path / "merged"), whole(dataset))
    assert layer_of(tmp_path / "merged", "seg")["largestSegmentId"] == 8


def test_ids_are_widened_but_not_narrowed(tmp_path):
    base = make_dataset(tmp_path / "ds", np.uint64, largest=0)
    edit(
        base,
        lambda document: document["dataLayers"][0].update(
            {"largestSegmentId": {"customJsonEncoding": "bigint", "value": str(1 << 60)}}
        ),
    )
    path = write_annotation(tmp_path / "annotation.zip", {"1": BLOCKS})
    wkwdask.merge(base, path, tmp_path / "merged")
    np.testing.assert_array_equal(whole(tmp_path / "merged"), put(whole(base), BLOCKS))
    assert layer_of(tmp_path / "merged", "seg")["largestSegmentId"] == {
        "customJsonEncoding": "bigint",
        "value": str(1 << 60),
    }
    small = make_dataset(tmp_path / "small", np.uint16)
    with pytest.raises(
        UnsupportedError,
        match=(
            r"annotation.zip\|zip:/data_0_Volume.zip\|zip:/1: holds uint32 in 1 channel, which .* "
            r"cannot hold"
        ),
    ):
        wkwdask.merge(small, path, tmp_path / "other")


def test_the_box_grows_with_annotated_voxels(dataset, tmp_path):
    """Files of the base hold other voxels there, which stay invisible."""
    edit(
        dataset,
        lambda document: document["dataLayers"][0].update(
            {"boundingBox": {"topLeft": [10, 10, 10], "width": 100, "height": 90, "depth": 40}}
        ),
    )
    voxels = np.zeros((STEP,) * 3, int)
    voxels[3:7, 4, 5] = 8
    wkwdask.merge(
        dataset,
        write_annotation(tmp_path / "annotation.zip", {"1": {(5, 0, 0): voxels}}),
        tmp_path / "merged",
    )
    assert layer_of(tmp_path / "merged", "seg")["boundingBox"] == {
        "topLeft": [10, 4, 5],
        "width": 157,
        "height": 96,
        "depth": 45,
    }
    expected = np.zeros((157, 96, 45), int)
    expected[:100, 6:, 5:] = whole(dataset)
    expected[153:157, 0, 0] = 8
    np.testing.assert_array_equal(whole(tmp_path / "merged"), expected)


def test_an_annotation_of_an_empty_layer_is_merged(tmp_path):
    base = make_dataset(tmp_path / "ds")
    for path in sorted((base / "seg" / "1").rglob("x*.wkw")):
        path.unlink()
    wkwdask.merge(
        base, write_annotation(tmp_path / "annotation.zip", {"1": BLOCKS}), tmp_path / "merged"
    )
    np.testing.assert_array_equal(whole(tmp_path / "merged"), put(np.zeros(SHAPE, int), BLOCKS))


def test_a_coarser_mag_is_merged_under_another_name(dataset, tmp_path):
    wkwdask.build_pyramid(dataset, "seg", mags=["2-2-1"])
    path = write_annotation(tmp_path / "annotation.zip", {"1": {}, "2-2-1": INSIDE}, block_len=32)
    wkwdask.merge(dataset, path, tmp_path / "merged")
    np.testing.assert_array_equal(
        whole(tmp_path / "merged", mag="2-2-1"), put(whole(dataset, mag="2-2-1"), INSIDE)
    )
    wkwdask.merge(dataset / "seg" / "2-2-1", path, dataset / "corrected" / "2-2-1")
    np.testing.assert_array_equal(
        whole(dataset, "corrected", "2-2-1"), whole(tmp_path / "merged", mag="2-2-1")
    )
    with pytest.raises(MissingError, match="no blocks of mag 1; there are blocks of 2-2-1"):
        wkwdask.merge(dataset, path, tmp_path / "other", layer="seg", mag=1)
    with pytest.raises(MissingError, match="has no mag 4"):
        wkwdask.merge(
            dataset,
            write_annotation(tmp_path / "coarse.zip", {"4": BLOCKS}),
            tmp_path / "other",
            layer="seg",
        )


def test_the_annotation_of_the_layer_is_chosen(dataset, tmp_path):
    path = write_annotations(
        tmp_path / "annotation.zip", {"other": {"1": {(0, 0, 0): block(7)}}, "seg": {"1": BLOCKS}}
    )
    wkwdask.merge(dataset, path, tmp_path / "merged")
    np.testing.assert_array_equal(whole(tmp_path / "merged"), put(whole(dataset), BLOCKS))
    path = write_annotations(tmp_path / "annotation.zip", {"a": {"1": BLOCKS}, "b": {"1": BLOCKS}})
    with pytest.raises(
        ValueError, match="several volume annotations, 0 of them drawn on layer seg"
    ):
        wkwdask.merge(dataset, path, tmp_path / "other")


def test_malformed_annotations_are_refused(dataset, tmp_path):
    def zipped(name, files):
        with zipfile.ZipFile(tmp_path / name, "w") as file:
            for path, content in files.items():
                file.writestr(path, content)
        return tmp_path / name

    (tmp_path / "text.zip").write_bytes(b"no zip at all")
    whole_zip = write_data_zip(tmp_path / "whole.zip", {"1": BLOCKS})
    raw = bytearray(whole_zip.read_bytes())
    raw[1500:1600] = bytes(100)
    (tmp_path / "damaged.zip").write_bytes(raw)
    wkwdask.write(
        tmp_path / "large" / "1", (0, 0, 0), block().astype(np.uint32), block_len=16, file_len=2
    )
    header = Header(np.uint32, 1, 32, 1, LZ4).to_bytes()
    for path, error, message in (
        (tmp_path / "nothing.zip", MissingError, "no such file"),
        (tmp_path / "text.zip", CorruptError, r"text.zip: not readable as zip"),
        (tmp_path / "damaged.zip", CorruptError, r"damaged.zip\|zip:/1/z\d/y\d/x\d.wkw"),
        (tmp_path / "large", UnsupportedError, r"files of 2\^3 blocks do not show which"),
        (zipped("other.zip", {"notes.txt": "mine"}), MissingError, "no volume annotation"),
        (
            zipped("zarr.zip", {"volumeAnnotationData/1/.zarray": "{}"}),
            UnsupportedError,
            "are Zarr",
        ),
        (zipped("headless.zip", {"1/z0/y0/x0.wkw": b"WKW"}), MissingError, "header.wkw"),
        (
            zipped("bomb.zip", {"1/header.wkw": header, "1/z0/y0/x0.wkw": bytes(1 << 20)}),
            CorruptError,
            "bomb.zip",
        ),
    ):
        with pytest.raises(error, match=message):
            wkwdask.merge(dataset, path, tmp_path / "merged")
        assert not (tmp_path / "merged").exists()
    with pytest.raises(ValueError, match="is the source"):
        wkwdask.merge(dataset, whole_zip, dataset)
    with pytest.raises(ValueError, match="existing must be"):
        wkwdask.merge(dataset, whole_zip, tmp_path / "merged", existing="update")


@pytest.mark.parametrize("options", [{}, {"block_len": 16}])
def test_another_annotation_is_not_resumed(dataset, tmp_path, options):
    path = write_annotation(tmp_path / "annotation.zip", {"1": BLOCKS})
    call = (dataset, path, tmp_path / "merged")
    with (
        rechunks_of(64),
        stopping(tmp_path / "log", 3, KeyboardInterrupt()),
        pytest.raises(KeyboardInterrupt),
    ):
        wkwdask.merge(*call, **options)
    assert not (tmp_path / "merged" / "seg" / "1").exists()
    before = path.read_bytes()
    write_annotation(path, {"1": {(0, 0, 0): block(9)}})
    with rechunks_of(64), pytest.raises(ResumeError, match="annotations was"):
        wkwdask.merge(*call, **options)
    path.write_bytes(before)
    with rechunks_of(64), pytest.warns(DiscardWarning, match="3 tasks"):
        report = wkwdask.merge(*call, **options, existing="restart")
    np.testing.assert_array_equal(whole(tmp_path / "merged"), put(whole(dataset), BLOCKS))
    with pytest.raises(ExistsError):
        wkwdask.merge(*call, **options)
    assert wkwdask.merge(*call, **options, existing="resume").note.startswith("nothing to do"), (
        report
    )


def test_an_annotation_replaced_during_the_merge_is_an_error(dataset, tmp_path):
    path = write_annotation(tmp_path / "annotation.zip", {"1": BLOCKS})
    replace = before_task(1, lambda: write_annotation(path, {"1": {(0, 0, 0): block(9)}}))
    with (
        replace,
        pytest.raises(
            IncompleteWriteError,
            match=r"annotation.zip\|zip:/data_0_Volume.zip\|zip:: was replaced while it was read",
        ),
    ):
        wkwdask.merge(dataset, path, tmp_path / "merged")
    assert not (tmp_path / "merged" / "seg" / "1").exists()


def test_an_interrupted_merge_is_resumed(dataset, tmp_path):
    path = write_annotation(tmp_path / "annotation.zip", {"1": BLOCKS})
    call = (dataset, path, tmp_path / "merged")
    with (
        rechunks_of(64),
        stopping(tmp_path / "log", 3, KeyboardInterrupt()),
        pytest.raises(KeyboardInterrupt),
    ):
        wkwdask.merge(*call)
    with rechunks_of(64):
        assert "3 tasks had been finished before" in wkwdask.merge(*call).note
    np.testing.assert_array_equal(whole(tmp_path / "merged"), put(whole(dataset), BLOCKS))


@HEAVY
@given(
    steps=st.tuples(st.sampled_from([4, 8, 16]), st.sampled_from([4, 8, 16])),
    lengths=st.tuples(st.sampled_from([1, 2, 4]), st.sampled_from([1, 2, 4])),
    offset=st.tuples(*[st.integers(0, 20)] * 3),
    shape=st.tuples(*[st.integers(1, 30)] * 3),
    indices=st.lists(
        st.sets(st.tuples(*[st.integers(0, 4)] * 3), max_size=5), min_size=1, max_size=3
    ),
    seed=st.integers(0, 5),
)
def test_any_block_lengths_and_boxes_equal_numpy(
    tmp_path_factory, steps, lengths, offset, shape, indices, seed
):
    if not any(indices):
        return
    folder, random = tmp_path_factory.mktemp("merge"), np.random.default_rng(seed)
    array = random.integers(0, 5, shape).astype(np.uint32)
    wkwdask.write(
        folder / "seg" / "1",
        offset,
        array,
        block_len=steps[0],
        file_len=lengths[0],
        compression="lz4",
    )
    low, high = offset, [a + n for a, n in zip(offset, shape, strict=True)]
    expected = np.zeros((96, 96, 96), np.uint32)
    expected[tuple(slice(a, b) for a, b in zip(low, high, strict=True))] = array
    paths = []
    for number, chosen in enumerate(indices):
        blocks = {index: random.integers(0, 5, (steps[1],) * 3) for index in chosen}
        paths.append(write_data_zip(folder / f"{number}.zip", {"1": blocks}, block_len=steps[1]))
        expected = put(expected, blocks, steps[1])
    with dask.config.set(scheduler="synchronous"):
        wkwdask.merge(folder / "seg" / "1", paths, folder / "merged" / "1", file_len=lengths[1])
    np.testing.assert_array_equal(stored_voxels(folder / "merged" / "1", (96, 96, 96))[0], expected)


def test_command(dataset, tmp_path):
    first = write_annotation(tmp_path / "first.zip", {"1": {(0, 0, 0): block(1)}})
    second = write_annotation(tmp_path / "second.zip", {"1": {(0, 0, 0): block(2)}})
    run = run_here(
        "merge", dataset, first, second, tmp_path / "merged", "--layer", "seg", "--relabel"
    )
    assert run.returncode == 0, run.output
    assert "became" in run.output
    run = run_here("merge", dataset, first, tmp_path / "other", "--largest-id", "5")
    assert run.returncode == 2


@pytest.mark.parametrize(
    ("annotations", "options", "match"),
    [
        ([], {}, "at least one"),
        (None, {"relabel": -5}, "an integer >= 0"),
        (None, {"relabel": 1.5}, "an integer >= 0"),
    ],
)
def test_malformed_arguments_are_refused(dataset, tmp_path, annotations, options, match):
    if annotations is None:
        annotations = [
            write_data_zip(tmp_path / "a.zip", {"1": {(0, 0, 0): np.ones((32, 32, 32))}})
        ]
    with pytest.raises(ValueError, match=match):
        wkwdask.merge(dataset, annotations, tmp_path / "merged", layer="seg", **options)
