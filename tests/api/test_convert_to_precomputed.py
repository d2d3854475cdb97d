"""Conversion of images and arrays to precomputed volumes: places, types, broken sections, pyramids,
interruptions, the command."""

from __future__ import annotations

import json

import dask
import numpy as np
import pytest
from faults.drivers import imports_of, logged, runs, stopping
from PIL import Image
from support.commands import run_here

import wkwdask
from wkwdask.errors import (
    BoundsError,
    CorruptError,
    ExistsError,
    MissingError,
    ResumeError,
    SectionWarning,
    ViewerWarning,
)

SIZE = (4, 4, 35)
VOXELS = np.random.default_rng(0).integers(0, 255, (21, 30, 41)).astype(np.uint8)  # z, y, x
IDS = np.kron(
    np.random.default_rng(1).integers(0, 1 << 60, (6, 5, 7), np.uint64),
    np.ones((3, 6, 6), np.uint64),
)
OPTIONS = {"voxel_size": SIZE, "chunk_shape": (16, 16, 8)}


@pytest.fixture(autouse=True)
def _in_this_thread():
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.fixture
def sections(tmp_path):
    folder = tmp_path / "sections"
    folder.mkdir()
    for z, section in enumerate(VOXELS):
        Image.fromarray(section).save(folder / f"s{z}.png")
    return folder


def info_of(folder):
    return json.loads((folder / "info").read_text())


@pytest.mark.parametrize("sharded", [False, True])
def test_sections_become_a_volume(tmp_path, sections, sharded):
    report = wkwdask.convert(
        sections, f"precomputed://{tmp_path}/em", offset=(-5, 6, 7), shard_shape=sharded, **OPTIONS
    )
    assert (report.mags[0].voxels, report.mags[0].minimum, report.mags[0].maximum) == (
        21 * 30 * 41,
        0,
        254,
    )
    info = info_of(tmp_path / "em")
    (scale,) = info["scales"]
    assert (
        info["type"],
        info["data_type"],
        scale["key"],
        scale["voxel_offset"],
        scale["size"],
    ) == ("image", "uint8", "4_4_35", [-5, 6, 7], [41, 30, 21])
    assert ("sharding" in scale, scale["chunk_sizes"], scale["encoding"]) == (
        sharded,
        [[16, 16, 8]],
        "raw",
    )
    np.testing.assert_array_equal(wkwdask.open(tmp_path / "em")[0], VOXELS.T)
    assert wkwdask.verify(tmp_path / "em").is_sound
    with pytest.raises(ExistsError):
        wkwdask.convert(
            sections,
            f"precomputed://{tmp_path}/em",
            offset=(-5, 6, 7),
            shard_shape=sharded,
            **OPTIONS,
        )
    again = wkwdask.convert(
        sections,
        f"precomputed://{tmp_path}/em",
        offset=(-5, 6, 7),
        shard_shape=sharded,
        existing="resume",
        **OPTIONS,
    )
    assert "nothing to do" in again.note
    with pytest.raises(ResumeError, match="scales was"):
        wkwdask.convert(
            sections,
            f"precomputed://{tmp_path}/em",
            offset=(-5, 6, 8),
            shard_shape=sharded,
            existing="resume",
            **OPTIONS,
        )


def test_arrays_become_images_and_segmentations(tmp_path):
    pytest.importorskip("imagecodecs", reason="png needs the extra precomputed")
    np.save(tmp_path / "ids.npy", IDS)
    wkwdask.convert(tmp_path / "ids.npy", f"precomputed://{tmp_path}/ids", **OPTIONS)
    info = info_of(tmp_path / "ids")
    assert (info["type"], info["data_type"], info["scales"][0]["encoding"]) == (
        "segmentation",
        "uint64",
        "compressed_segmentation",
    )
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "ids")[0], IDS.T)
    np.save(tmp_path / "em.npy", np.stack([VOXELS, VOXELS[::-1]]).astype(np.uint16))
    wkwdask.convert(
        tmp_path / "em.npy",
        f"precomputed://{tmp_path}/em",
        axes="czyx",
        channels=(1,),
        dtype="uint8",
        encoding="png",
        **OPTIONS,
    )
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "em")[0], VOXELS[::-1].T)
    np.save(tmp_path / "half.npy", VOXELS[:, ::2, ::2])
    wkwdask.convert(
        tmp_path / "half.npy", f"precomputed://{tmp_path}/em", mag="2-2-1", encoding="png"
    )
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "em", mag="2-2-1")[0], VOXELS[:, ::2, ::2].T
    )
    assert [scale["key"] for scale in info_of(tmp_path / "em")["scales"]] == ["4_4_35", "8_8_35"]
    wkwdask.convert(
        tmp_path / "half.npy",
        f"precomputed://{tmp_path}/labels",
        category="segmentation",
        compression="gzip",
        **OPTIONS,
    )
    assert info_of(tmp_path / "labels")["type"] == "segmentation"
    assert all(
        path.name.startswith(".") or path.name.endswith(".gz")
        for path in (tmp_path / "labels" / "4_4_35").iterdir()
    )


@pytest.mark.parametrize("dtype", [None, "int16"])
def test_a_box_is_in_voxels_of_the_volume(tmp_path, sections, dtype):
    box = (-2, 10, 9, 20, 100, 5)
    wkwdask.convert(
        sections,
        f"precomputed://{tmp_path}/em",
        offset=(-5, 6, 7),
        bounding_box=box,
        dtype=dtype,
        **OPTIONS,
    )
    assert info_of(tmp_path / "em")["scales"][0]["voxel_offset"] == [-2, 10, 9]
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "em")[0], VOXELS.T[3:23, 4:, 2:7])
    with pytest.raises(BoundsError, match=r"lies outside of the source, whose box is .*-5, 6, 7"):
        wkwdask.convert(
            sections,
            f"precomputed://{tmp_path}/em2",
            offset=(-5, 6, 7),
            bounding_box=(100, 0, 0, 5, 5, 5),
            **OPTIONS,
        )


def test_the_pyramid_is_built_in_the_same_call(tmp_path, sections):
    url = f"precomputed://{tmp_path}/em"
    report = wkwdask.convert(sections, url, pyramid=True, **OPTIONS)
    assert len(report.mags) > 1
    assert len(info_of(tmp_path / "em")["scales"]) == len(report.mags)
    # as after an interruption while the pyramid was built
    again = wkwdask.convert(sections, url, pyramid=True, **OPTIONS)
    assert "nothing to do" in again.note


@pytest.mark.parametrize("existing", ["error", "overwrite"])
@pytest.mark.parametrize("form", ["array", "wkw"])
def test_the_pyramid_starts_at_the_converted_scale(tmp_path, sections, form, existing):
    """The volume has a finer scale."""
    url, half = f"precomputed://{tmp_path}/em", tmp_path / "half.npy"
    wkwdask.convert(sections, url, pyramid=existing == "overwrite", **OPTIONS)
    np.save(half, np.full((21, 15, 21), 77, np.uint8))
    if form == "wkw":
        wkwdask.convert(half, tmp_path / "ds", mag="2-2-1", voxel_size=SIZE)
    options = {"mag": "2-2-1"} if form == "array" else {}
    wkwdask.convert(
        half if form == "array" else tmp_path / "ds",
        url,
        pyramid=True,
        existing=existing,
        **options,
    )
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "em", mag=1)[0], VOXELS.T)
    for mag in ("2-2-1", "4-4-1"):
        assert (wkwdask.read(tmp_path / "em", mag=mag) == 77).all()


def test_a_pyramid_is_rebuilt_from_the_finest_scale_of_another_volume(tmp_path, sections):
    """Coarser scales of the source are not copied."""
    source, url = f"precomputed://{tmp_path}/em", f"precomputed://{tmp_path}/too"
    made = wkwdask.convert(sections, source, pyramid=True, **OPTIONS)
    report = wkwdask.convert(source, url, pyramid=True, chunk_shape=(8, 8, 8))
    assert len(report.mags) == len(made.mags) == len(info_of(tmp_path / "too")["scales"]) > 1
    assert len(wkwdask.plan_convert(source, f"{url}-not", pyramid=True).mags) == 1


@pytest.mark.parametrize(
    ("source", "target"),
    [("precomputed", "precomputed"), ("precomputed", "wkw"), ("wkw", "precomputed")],
)
def test_a_call_interrupted_before_the_pyramid_is_resumed(
    tmp_path, monkeypatch, sections, source, target
):
    url = {"precomputed": f"precomputed://{tmp_path}/em", "wkw": tmp_path / "ds"}
    wkwdask.convert(
        sections,
        url[source],
        **({} if source == "wkw" else {"chunk_shape": (16, 16, 8)}),
        voxel_size=SIZE,
    )
    into = {"precomputed": f"precomputed://{tmp_path}/em2", "wkw": tmp_path / "ds2"}[target]
    with monkeypatch.context() as patch:
        patch.setattr("wkwdask.api.conversion.build_pyramid", fail)
        with pytest.raises(OSError, match="the plug"):
            wkwdask.convert(url[source], into, pyramid=True)
    with pytest.raises(ExistsError):
        wkwdask.convert(url[source], into)
    report = wkwdask.convert(url[source], into, pyramid=True)
    assert "nothing to do" in report.note
    assert len(report.mags) > 1


def fail(*_, **__):
    raise OSError("the plug")


def test_a_call_interrupted_after_the_first_scale_is_resumed(tmp_path, sections):
    source, url = f"precomputed://{tmp_path}/em", f"precomputed://{tmp_path}/too"
    made = wkwdask.convert(sections, source, pyramid=True, **OPTIONS)
    with logged(tmp_path / "log"):
        wkwdask.convert(source, f"precomputed://{tmp_path}/whole", chunk_shape=(8, 8, 8))
    with (
        stopping(tmp_path / "log", sum(runs(tmp_path / "log").values()) - 1, OSError("the plug")),
        pytest.raises(OSError, match="the plug"),
    ):
        wkwdask.convert(source, url, chunk_shape=(8, 8, 8))
    report = wkwdask.convert(source, url, chunk_shape=(8, 8, 8))
    assert len(report.mags) == len(made.mags) > 1
    with pytest.raises(ExistsError):
        wkwdask.convert(source, url, chunk_shape=(8, 8, 8))


def test_broken_and_missing_sections_are_named(tmp_path, sections):
    (sections / "s4.png").write_bytes(b"no picture")
    (sections / "s7.png").unlink()
    with pytest.raises(CorruptError, match=r"s4\.png"):
        wkwdask.convert(sections, f"precomputed://{tmp_path}/em", **OPTIONS)
    assert not (tmp_path / "em" / "info").exists()
    with pytest.warns(SectionWarning) as found:
        report = wkwdask.convert(
            sections, f"precomputed://{tmp_path}/em", on_error="fill", **OPTIONS
        )
    assert len(found) == 2
    expected = VOXELS.copy()
    expected[[4, 7]] = 0
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "em")[0], expected.T)
    assert "filled with zeros" in report.note


def test_an_interrupted_import_is_resumed(tmp_path, sections):
    url = f"precomputed://{tmp_path}/em"
    with (
        imports_of(8),
        stopping(tmp_path / "log", 2, OSError("the plug")),
        pytest.raises(OSError, match="the plug") as caught,
    ):
        wkwdask.convert(sections, url, shard_shape=True, **OPTIONS)
    assert any("the same call resumes" in note for note in caught.value.__notes__)
    assert not (tmp_path / "em" / "info").exists()
    with pytest.raises(ResumeError, match="scales was"):
        wkwdask.convert(sections, url, shard_shape=True, offset=(1, 0, 0), **OPTIONS)
    report = wkwdask.convert(sections, url, shard_shape=True, **OPTIONS)
    assert "2 tasks had been finished before" in report.note
    np.testing.assert_array_equal(wkwdask.read(tmp_path / "em")[0], VOXELS.T)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"voxel_size": None}, r"voxel_size= is needed for a new volume"),
        ({"layer": "em"}, "layer= is not for it"),
        (
            {"block_len": 16},
            "precomputed has no option block_len; it has: chunk_shape, shard_shape, encoding",
        ),
        ({"ngff": "0.5", "level": 9}, "precomputed has no options ngff, level; it has"),
        (
            {"encoding": "compresso", "dtype": "int8", "value_range": (0, 255)},
            "compresso encodes uint8, uint16, uint32, uint64, not int8",
        ),
        ({"dtype": "int64"}, "the format has no int64"),
        ({"category": "segmentation", "encoding": "jpeg"}, "jpeg changes the ids"),
        ({"category": "raw"}, 'type must be "image" or "segmentation", got \'raw\''),
        ({"quality": 5}, "quality= is for jpeg and jxl, not for raw"),
        ({"channels": (1,)}, r"channels must be some of 0\.\.0"),
    ],
)
def test_malformed_options_are_refused(tmp_path, sections, options, message):
    with pytest.raises(ValueError, match=message):
        wkwdask.convert(sections, f"precomputed://{tmp_path}/em", **{**OPTIONS, **options})
    assert not (tmp_path / "em").exists()


def test_missing_sources_and_other_targets_are_refused(tmp_path, sections):
    for source in (tmp_path / "none", f"{tmp_path}/none*.png", f"n5://{tmp_path}/none"):
        with pytest.raises(MissingError):
            wkwdask.convert(source, f"precomputed://{tmp_path}/em", **OPTIONS)
    wkwdask.convert(sections, tmp_path / "ds", voxel_size=SIZE, layer="em")
    with pytest.raises(ExistsError, match="holds WKW data"):
        wkwdask.convert(sections, f"precomputed://{tmp_path}/ds/em", **OPTIONS)
    with pytest.raises(ValueError, match="axes= is not for it"):
        wkwdask.convert(tmp_path / "ds", f"precomputed://{tmp_path}/em", axes="zyx")


def test_encodings_that_the_viewer_shows_wrong_are_warned_about(tmp_path):
    pytest.importorskip("imagecodecs", reason="png needs the extra precomputed")
    np.save(tmp_path / "em.npy", np.stack([VOXELS, VOXELS]).astype(np.uint16))
    with pytest.warns(ViewerWarning, match="png of uint16"):
        wkwdask.convert(
            tmp_path / "em.npy", f"precomputed://{tmp_path}/em", encoding="png", **OPTIONS
        )


def test_command(tmp_path, sections):
    pytest.importorskip("imagecodecs", reason="jpeg needs the extra precomputed")
    arguments = [
        "convert",
        f"{sections}/s*.png",
        f"precomputed://{tmp_path}/em",
        "--voxel-size",
        "0.004,0.004,0.035",
        "--unit",
        "um",
        "--offset",
        "1,2,3",
    ]
    done = run_here(
        *arguments,
        "--encoding",
        "jpeg",
        "--quality",
        "95",
        "--shard-shape",
        "auto",
        "--chunk-shape",
        "32,32,16",
        "--pyramid",
    )
    assert done.returncode == 0, done.output
    scales = info_of(tmp_path / "em")["scales"]
    assert (scales[0]["resolution"], scales[0]["voxel_offset"], scales[0]["encoding"]) == (
        [4, 4, 35],
        [1, 2, 3],
        "jpeg",
    )
    assert scales[0]["jpeg_quality"] == 95
    assert len(scales) > 1
