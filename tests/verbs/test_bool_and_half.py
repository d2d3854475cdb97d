"""Bool and float16, which only Zarr stores: verbs keep them there, and cast them for other formats.
Oracles: zarr-python, tensorstore, numpy."""

from __future__ import annotations

import dask.array as da
import numpy as np
import pytest
from verbs.cases import components_of

import wkwdask
from wkwdask.kernels.window.reduce import METHODS

pytestmark = [pytest.mark.needs("zarr"), pytest.mark.filterwarnings("ignore::UserWarning:zarr")]

SIZE = (20, 12, 8)
VOXEL_SIZE = (4.0, 4.0, 8.0)
WIDER = {"bool": "uint8", "float16": "float32"}


def draw(dtype, seed=0):
    rng = np.random.default_rng(seed)
    values = rng.integers(0, 2, SIZE) if dtype == "bool" else rng.normal(scale=300, size=SIZE)
    return values.astype(dtype)


def save(folder, *levels, version=3):
    """Write levels (x, y, z) with zarr-python as an OME-NGFF image of mags 1, 2, 4 and so on."""
    import zarr

    group = zarr.open_group(folder, mode="w", zarr_format=version)
    datasets = []
    for n, voxels in enumerate(levels):
        group.create_array(str(n), shape=voxels.shape[::-1], dtype=voxels.dtype, chunks=(8, 8, 8))[
            ...
        ] = voxels.T
        scale = [edge * 2**n for edge in VOXEL_SIZE[::-1]]
        center = [(length - fine) / 2 for length, fine in zip(scale, VOXEL_SIZE[::-1], strict=True)]
        moves = [{"type": "scale", "scale": scale}, {"type": "translation", "translation": center}]
        datasets.append({"path": str(n), "coordinateTransformations": moves})
    entry = {
        "axes": [{"name": axis, "type": "space", "unit": "nanometer"} for axis in "zyx"],
        "datasets": datasets,
    }
    group.attrs.update(
        {"multiscales": [{"version": "0.4", **entry}]}
        if version == 2
        else {"ome": {"version": "0.5", "multiscales": [entry]}}
    )
    return f"zarr://{folder}"


def stored(folder, version=3):
    """Read an array with zarr-python and with tensorstore, as (x, y, z)."""
    import tensorstore
    import zarr

    spec = {
        "driver": "zarr3" if version == 3 else "zarr",
        "kvstore": {"driver": "file", "path": f"{folder}/"},
    }
    found, other = (
        np.asarray(zarr.open_array(folder, mode="r")[...]),
        tensorstore.open(spec).result().read().result(),
    )
    assert found.dtype == other.dtype
    np.testing.assert_array_equal(found, other)
    return found.T


@pytest.mark.parametrize("version", [2, 3])
@pytest.mark.parametrize("dtype", WIDER)
def test_read_returns_the_stored_type_and_copies_keep_it(tmp_path, dtype, version):
    voxels = draw(dtype)
    url = save(tmp_path / "image.ome.zarr", voxels, version=version)
    assert wkwdask.open(url).dtype == dtype
    np.testing.assert_array_equal(wkwdask.read(url, ((0, 0, 0), SIZE), mag=1)[0], voxels)
    copied, converted, raw = (
        tmp_path / f"{name}.ome.zarr" for name in ("copied", "converted", "raw")
    )
    wkwdask.copy(url, f"zarr://{copied}")
    wkwdask.convert(url, f"zarr://{converted}", ngff="0.4" if version == 2 else "0.5")
    wkwdask.compress(url, f"zarr://{raw}", compression="gzip")
    for folder, level in ((copied, "0"), (converted, "1"), (raw, "0")):
        found = stored(folder / level, version)
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, voxels)


@pytest.mark.parametrize("is_lazy", [False, True], ids=["numpy", "dask"])
def test_regions_accept_the_stored_type_and_values_that_it_has(tmp_path, is_lazy):
    """What ``read`` returns, and the wider type of other formats; a value that would be rounded is
    an error and changes nothing."""
    region, part = ((3, 2, 1), (9, 7, 6)), (slice(3, 9), slice(2, 7), slice(1, 6))
    as_array = (lambda array: da.from_array(array, chunks=4)) if is_lazy else np.asarray
    for dtype, wrong in (("bool", 2), ("float16", 0.1), ("float16", 1e6)):
        voxels = draw(dtype)
        url = save(tmp_path / f"{dtype}.ome.zarr", voxels)
        patch = draw(dtype, 1)[part]
        wkwdask.save(as_array(~patch if dtype == "bool" else -patch), f"{url}/0", region=region)
        wkwdask.save(as_array(patch.astype(WIDER[dtype])), f"{url}/0", region=region)
        voxels[part] = patch
        found = stored(tmp_path / f"{dtype}.ome.zarr/0")
        assert found.dtype == dtype
        np.testing.assert_array_equal(found, voxels)
        patch = patch.astype(WIDER[dtype])
        patch[2, 1, 3] = wrong
        with pytest.raises(
            (wkwdask.BoundsError, wkwdask.TaskFailedError),
            match=rf"is no value of {dtype}: round the array first, with .astype\('{dtype}'\)",
        ):
            wkwdask.save(as_array(patch), f"{url}/0", region=region)
        np.testing.assert_array_equal(stored(tmp_path / f"{dtype}.ome.zarr/0"), voxels)
        with pytest.raises(TypeError, match=f"holds 1 channel of {dtype}, the array is 1 of int64"):
            wkwdask.save(as_array(patch.astype("int64")), f"{url}/0", region=region)


@pytest.mark.parametrize("method", METHODS)
def test_levels_of_half_floats_are_computed_as_float32_and_rounded_once(tmp_path, method):
    voxels = draw("float16")
    url = save(tmp_path / "half.ome.zarr", voxels)
    wkwdask.build_pyramid(url, mags=["2", "4"], method=method)
    wide = save(tmp_path / "wide.ome.zarr", voxels.astype("float32"))
    wkwdask.build_pyramid(wide, mags=["2"], method=method)
    found = stored(tmp_path / "half.ome.zarr/2")
    assert found.dtype == "float16"
    np.testing.assert_array_equal(found, stored(tmp_path / "wide.ome.zarr/2").astype("float16"))
    again = save(tmp_path / "again.ome.zarr", found.astype("float32"))
    wkwdask.build_pyramid(again, mags=["2"], method=method)
    np.testing.assert_array_equal(
        stored(tmp_path / "half.ome.zarr/4"),
        stored(tmp_path / "again.ome.zarr/2").astype("float16"),
    )
    assert wkwdask.verify(url, pyramid=True).is_sound


def test_mean_of_half_floats_does_not_overflow(tmp_path):
    url = save(tmp_path / "half.ome.zarr", np.full(SIZE, 60000, "float16"))
    wkwdask.build_pyramid(url, mags=["2"], method="mean")
    assert (stored(tmp_path / "half.ome.zarr/2") == 60000).all()


def test_levels_of_bool_are_made_by_the_mode_alone(tmp_path):
    voxels = draw("bool")
    url = save(tmp_path / "mask.ome.zarr", voxels)
    for method in set(METHODS) - {"mode"}:
        with pytest.raises(
            ValueError,
            match=(
                "holds bool, whose coarser levels are made by the mode alone, got method "
                f"'{method}'"
            ),
        ):
            wkwdask.build_pyramid(url, mags=["2"], method=method)
    assert "by mode" in str(wkwdask.plan_pyramid(url, mags=["2"]))
    wkwdask.build_pyramid(url, mags=["2"])
    found = stored(tmp_path / "mask.ome.zarr/2")
    assert found.dtype == "bool"
    counts = voxels.reshape(10, 2, 6, 2, 4, 2).sum((1, 3, 5))
    np.testing.assert_array_equal(found, counts > 4)  # a tie is the smallest value
    assert wkwdask.verify(url, pyramid=True).is_sound


def test_levels_of_bool_are_upsampled(tmp_path):
    fine = draw("bool")[::2, ::2, ::2].repeat(2, 0).repeat(2, 1).repeat(2, 2)
    url = save(tmp_path / "mask.ome.zarr", fine)
    wkwdask.build_pyramid(url, mags=["2"])
    wkwdask.rm(url, mags=["1"])
    wkwdask.upsample(url, mags=["1"], voxel_size=VOXEL_SIZE)
    np.testing.assert_array_equal(stored(tmp_path / "mask.ome.zarr/1"), fine)


@pytest.mark.parametrize(
    "target", ["{folder}/dataset", "precomputed://{folder}/volume", "n5://{folder}/volume.n5/raw"]
)
@pytest.mark.parametrize("dtype", WIDER)
def test_other_formats_get_a_wider_type_and_plan_and_report_say_so(tmp_path, dtype, target):
    voxels = draw(dtype)
    url = save(tmp_path / "image.ome.zarr", voxels)
    target, options = (
        target.format(folder=tmp_path),
        {"layer": "image"} if "dataset" in target else {},
    )
    note = f"{dtype} is stored as {WIDER[dtype]}"
    assert note in str(wkwdask.plan_convert(url, target, **options))
    assert note in wkwdask.convert(url, target, **options).note
    found = wkwdask.open(target, mag=1)
    assert found.dtype == WIDER[dtype]
    np.testing.assert_array_equal(found[0], voxels.astype(WIDER[dtype]))


def test_exports_keep_the_type_where_the_file_has_it(tmp_path):
    for dtype, wider in WIDER.items():
        voxels = draw(dtype)
        url = save(tmp_path / f"{dtype}.ome.zarr", voxels)
        wkwdask.convert(f"{url}/0", tmp_path / f"{dtype}.npy")
        np.testing.assert_array_equal(found := np.load(tmp_path / f"{dtype}.npy"), voxels.T)
        assert found.dtype == dtype
        report = wkwdask.convert(f"{url}/0", tmp_path / f"{dtype}.tif")
        assert f"{dtype} is stored as {wider}" in report.note


def test_axes_that_are_given_do_not_change_the_type(tmp_path):
    """The third way of ``convert``: an array with stated axes."""
    import zarr

    voxels = draw("bool")
    zarr.create_array(tmp_path / "mask.zarr", shape=SIZE, dtype="bool", chunks=(8, 8, 8))[...] = (
        voxels
    )
    wkwdask.convert(
        tmp_path / "mask.zarr",
        f"zarr://{tmp_path}/kept.ome.zarr",
        axes="xyz",
        voxel_size=VOXEL_SIZE,
    )
    assert stored(tmp_path / "kept.ome.zarr/1").dtype == "bool"
    report = wkwdask.convert(
        tmp_path / "mask.zarr", tmp_path / "dataset", axes="xyz", voxel_size=VOXEL_SIZE
    )
    assert "bool is stored as uint8" in report.note
    np.testing.assert_array_equal(wkwdask.open(tmp_path / "dataset")[0], voxels)


def test_values_are_converted_to_and_from_both_types(tmp_path):
    levels = np.array([[[0, 1, 100, 255]]], "uint8")
    url = save(tmp_path / "grey.ome.zarr", levels)
    wkwdask.convert(url, f"zarr://{tmp_path}/half.ome.zarr", dtype="float16")
    np.testing.assert_array_equal(stored(tmp_path / "half.ome.zarr/1"), levels.astype("float16"))
    with pytest.raises(wkwdask.BoundsError, match="100 does not fit into bool"):
        wkwdask.convert(url, f"zarr://{tmp_path}/mask.ome.zarr", dtype="bool")
    wkwdask.convert(url, f"zarr://{tmp_path}/scaled.ome.zarr", dtype="bool", value_range=(0, 255))
    np.testing.assert_array_equal(
        stored(tmp_path / "scaled.ome.zarr/1"), [[[False, False, False, True]]]
    )
    wkwdask.convert(
        f"zarr://{tmp_path}/scaled.ome.zarr",
        f"zarr://{tmp_path}/back.ome.zarr",
        dtype="uint8",
        value_range=(0, 1),
    )
    np.testing.assert_array_equal(stored(tmp_path / "back.ome.zarr/1"), [[[0, 0, 0, 255]]])


@pytest.mark.parametrize("dtype", WIDER)
def test_verify_reports_levels_of_differing_types(tmp_path, dtype):
    voxels = draw(dtype)
    coarse = np.zeros([n // 2 for n in SIZE], WIDER[dtype])
    url = save(tmp_path / "image.ome.zarr", voxels, coarse)
    for pyramid in (False, True):
        report = wkwdask.verify(url, pyramid=pyramid)
        assert [
            (fault.kind, fault.found) for fault in report.faults if fault.severity == "error"
        ] == [("level.dtype", WIDER[dtype])]


def test_masks_are_labels(tmp_path):
    """Verbs of ids and statistics count bool as 0 and 1, and half floats as float32."""
    mask = draw("bool") & draw("bool", 1) & draw("bool", 2)
    url = save(tmp_path / "mask.ome.zarr", mask)
    wkwdask.connected_components(url, f"zarr://{tmp_path}/parts.ome.zarr")
    found = wkwdask.open(f"zarr://{tmp_path}/parts.ome.zarr")[0].compute()
    pairs = np.unique(
        np.stack([found.ravel(), components_of(mask.astype("uint8")).ravel()]), axis=1
    )
    assert len(set(pairs[0])) == len(set(pairs[1])) == pairs.shape[1] > 2
    wkwdask.connected_components(url, f"zarr://{tmp_path}/above.ome.zarr", threshold=1)
    np.testing.assert_array_equal(wkwdask.open(f"zarr://{tmp_path}/above.ome.zarr")[0] > 0, mask)
    assert wkwdask.label_statistics(url)["voxels"].to_dict() == {1: mask.sum()}
    np.testing.assert_array_equal(wkwdask.histogram(url)[0][:2], [(~mask).sum(), mask.sum()])
    wkwdask.remap(url, f"zarr://{tmp_path}/remapped.ome.zarr", {1: 7})
    np.testing.assert_array_equal(wkwdask.open(f"zarr://{tmp_path}/remapped.ome.zarr")[0], mask * 7)
    half = save(tmp_path / "half.ome.zarr", draw("float16"))
    assert int(wkwdask.histogram(half, bins=10).sum()) == np.prod(SIZE)
    values = wkwdask.label_statistics(url, color=half)
    np.testing.assert_allclose(
        values["mean"], draw("float16").astype("float64")[mask].mean(), rtol=1e-5
    )


def test_masks_and_half_floats_are_shown(tmp_path):
    from PIL import Image

    for dtype in WIDER:
        url = save(tmp_path / f"{dtype}.ome.zarr", draw(dtype))
        with Image.open(wkwdask.preview(url, tmp_path / "picture.png", mag=1)) as picture:
            assert np.asarray(picture.convert("L"), int).std() > 10


def test_functions_get_the_stored_type(tmp_path):
    seen = []

    def invert(voxels):
        seen.append(voxels.dtype.name)
        return ~voxels

    url = save(tmp_path / "mask.ome.zarr", draw("bool"))
    wkwdask.apply(invert, f"{url}/0", f"zarr://{tmp_path}/inverse.ome.zarr")
    np.testing.assert_array_equal(stored(tmp_path / "inverse.ome.zarr/1"), ~draw("bool"))
    assert set(seen) == {"bool"}
    wkwdask.create_dataset(tmp_path / "dataset", VOXEL_SIZE)
    report = wkwdask.apply(invert, f"{url}/0", f"{tmp_path}/dataset/mask/1")
    assert "bool is stored as uint8" in report.note
    np.testing.assert_array_equal(wkwdask.open(f"{tmp_path}/dataset/mask")[0], ~draw("bool"))


@pytest.mark.parametrize("dtype", WIDER)
@pytest.mark.parametrize("version", ["0.4", "0.5"])
def test_new_images_have_the_type_of_the_array(tmp_path, dtype, version):
    voxels = draw(dtype)
    wkwdask.save(voxels, f"zarr://{tmp_path}/image.ome.zarr", voxel_size=VOXEL_SIZE, ngff=version)
    found = stored(tmp_path / "image.ome.zarr/1", 2 if version == "0.4" else 3)
    assert found.dtype == dtype
    np.testing.assert_array_equal(found, voxels)
