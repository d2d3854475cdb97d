"""Plans of conversions agree with the conversions."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image
from support.commands import run_here
from support.precomputed_volumes import labels, write_volume

import wkwdask
from wkwdask import Sharding
from wkwdask.errors import ExistsError, SectionWarning

IDS = labels((150, 90, 70), np.uint32)
EM = np.random.default_rng(0).integers(0, 255, (20, 130, 150)).astype(np.uint8)  # z, y, x


@pytest.fixture
def ids(tmp_path):
    write_volume(
        tmp_path / "ids",
        IDS,
        "segmentation",
        encoding="compressed_segmentation",
        sharding=Sharding(2, 1, 9),
    )
    return tmp_path / "ids"


@pytest.fixture
def sections(tmp_path):
    (tmp_path / "sections").mkdir()
    for z, section in enumerate(EM):
        Image.fromarray(section).save(tmp_path / "sections" / f"s{z}.png")
    return tmp_path / "sections"


def planned_and_done(source, target, **options):
    plan = wkwdask.plan_convert(source, target, **options)
    report = wkwdask.convert(source, target, **options)
    assert [mag.folder for mag in plan.mags] == [mag.path for mag in report.mags]
    for mag, made in zip(plan.mags, report.mags, strict=True):
        assert np.prod(mag.size) == made.voxels
        assert made.files <= mag.files <= 2 * made.files + 8  # some are all zero
        assert made.nbytes / 3 < mag.nbytes < 3 * made.nbytes
    assert plan.tasks >= len(report.mags)
    assert plan.seconds > 0
    return plan


@pytest.mark.parametrize(
    ("target", "options"),
    [
        ("ds", {"layer": "ids"}),
        ("n5://v.n5/ids", {"chunk_shape": (16, 16, 16)}),
        ("v.ome.zarr", {"shard_shape": False, "chunk_shape": (32, 32, 32)}),
    ],
)
def test_the_plan_of_a_volume_agrees_with_its_conversion(
    tmp_path, monkeypatch, ids, target, options
):
    monkeypatch.chdir(tmp_path)
    if target.endswith(".zarr"):
        pytest.importorskip("zarr", reason="the extra zarr")
    planned_and_done(ids, target, **options)


@pytest.mark.parametrize("target", ["ds", "precomputed://em"])
@pytest.mark.parametrize("options", [{}, {"dtype": "uint16"}])
def test_the_plan_of_sections_agrees_with_their_conversion(
    tmp_path, monkeypatch, sections, target, options
):
    monkeypatch.chdir(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    plan = wkwdask.plan_convert(sections, target, voxel_size=(4, 4, 35), pyramid=True, **options)
    assert sorted(tmp_path.rglob("*")) == before  # nothing was written
    assert len(plan.pyramids) == 1
    assert "then the pyramid of" in str(plan)
    planned_and_done(sections, target, voxel_size=(4, 4, 35), **options)
    (again,) = wkwdask.plan_convert(sections, target, **options).mags
    assert any("would be refused" in note for note in again.notes)


def test_plans_count_mags_that_are_left_to_convert(tmp_path, ids):
    wkwdask.build_pyramid(ids)
    plan = wkwdask.plan_convert(ids, tmp_path / "ds", layer="ids", pyramid=True)
    assert (len(plan.mags), len(plan.pyramids)) == (1, 1)
    planned_and_done(ids, tmp_path / "ds", layer="ids")
    with pytest.raises(ExistsError):
        wkwdask.plan_convert(ids, tmp_path / "ds", layer="ids")
    assert len(wkwdask.plan_convert(tmp_path / "ds", f"precomputed://{tmp_path}/again").mags) > 1
    export = wkwdask.plan_convert(tmp_path / "ds" / "ids" / "1", tmp_path / "ids.npy")
    assert (export.files, export.nbytes_out) == (1, IDS.nbytes)
    assert not (tmp_path / "ids.npy").exists()


@pytest.mark.parametrize(
    "target",
    [
        "ids.npy",
        pytest.param("ids.tif", marks=pytest.mark.needs("tifffile")),
        pytest.param("sections", marks=pytest.mark.needs("tifffile")),
        pytest.param("ids.zarr", marks=pytest.mark.needs("zarr")),
    ],
)
def test_the_plan_of_an_export_agrees_with_it(tmp_path, target):
    mag, target = tmp_path / "ds" / "ids" / "1", tmp_path / target
    wkwdask.write(mag, (5, 6, 7), IDS, block_len=8, file_len=4, voxel_size=(4, 4, 4))
    plan = wkwdask.plan_convert(mag, target)
    assert not target.exists()
    report = wkwdask.convert(mag, target)
    assert report.files <= plan.files < 2 * report.files
    assert not any("would be refused" in note for note in plan.mags[0].notes)
    (again,) = wkwdask.plan_convert(mag, target).mags
    assert any("would be refused" in note and "already exists" in note for note in again.notes)
    with pytest.raises(ExistsError):
        wkwdask.convert(mag, target)
    assert wkwdask.plan_convert(mag, target, existing="overwrite").mags[0].notes == ()


def test_files_of_single_chunks_are_counted(tmp_path):
    write_volume(tmp_path / "ids", IDS, "segmentation", chunk=(16, 16, 16))
    plan = wkwdask.plan_pyramid(tmp_path / "ids", mags=["2"])
    assert plan.files_in == len(list((tmp_path / "ids" / "4_4_40").iterdir()))
    assert wkwdask.build_pyramid(tmp_path / "ids", mags=["2"]).files <= plan.files == 5 * 3 * 3


def test_levels_of_zeros_are_named(tmp_path):
    write_volume(tmp_path / "zeros", np.zeros_like(IDS), "segmentation")
    report = wkwdask.convert(tmp_path / "zeros", tmp_path / "ds", layer="cells")
    assert report.note == f"{tmp_path}/ds/cells/1 is all zero, as {tmp_path}/zeros/4_4_40 is"


def test_command(tmp_path, sections):
    (sections / "s7.png").unlink()
    done = run_here(
        "convert",
        sections,
        f"precomputed://{tmp_path}/em",
        "--voxel-size",
        "4,4,35",
        "--dry-run",
        "--pyramid",
        "--on-error",
        "fill",
    )
    assert done.returncode == 0, done.output
    for text in (
        "4_4_35: 150 x 130 x 20 voxels, ",
        "reads ",
        "writes ",
        "memory ",
        "time ",
        "then the pyramid of",
        "filled with zeros: 7",
    ):
        assert text in done.output
    assert not (tmp_path / "em").exists()
    with pytest.warns(SectionWarning):
        wkwdask.plan_convert(sections, tmp_path / "ds", voxel_size=(4, 4, 35), on_error="fill")
