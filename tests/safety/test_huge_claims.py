"""Metadata that claim 2^31 voxels and more along an axis, where three files are stored: work is
bounded by these, or an error names file and field."""

import json
import resource
import shutil
import subprocess
import sys
import textwrap

import numpy as np
import pytest
from support.commands import run_here
from support.n5_volumes import write_dataset

import wkwdask
from wkwdask.errors import FormatError, UnsupportedError

EDGE = 64
BLOCK = np.random.default_rng(1).integers(1, 200, (EDGE,) * 3, np.uint8)
CELLS = ((0, 0, 0), (3, 0, 0), (70_000, 100_000, 5))  # far from each other
SIZES = (2**40,)
MEMORY_NBYTES = 3 << 30


@pytest.fixture(autouse=True)
def _bounded_memory():
    """A limit for arrays, as the machine of a user has one."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/self/statm", encoding="ascii") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY_NBYTES, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def write_wkw(folder, size):
    stored = wkwdask.write(folder / "em" / "1", (0, 0, 0), BLOCK, file_len=2, block_len=32)
    del stored
    mag = folder / "em" / "1"
    for name in (".wkwdask-files.npy", ".wkwdask.json"):
        (mag / name).unlink(missing_ok=True)
    for x, y, z in CELLS[1:]:
        path = mag / f"z{z}" / f"y{y}" / f"x{x}.wkw"
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(mag / "z0" / "y0" / "x0.wkw", path)
    box = {"topLeft": [0, 0, 0], "width": size, "height": size, "depth": size}
    layer = {
        "name": "em",
        "category": "color",
        "boundingBox": box,
        "elementClass": "uint8",
        "dataFormat": "wkw",
        "mags": [{"mag": [1, 1, 1]}],
    }
    (folder / "datasource-properties.json").write_text(
        json.dumps({"scale": [4, 4, 40], "dataLayers": [layer]})
    )
    return str(folder)


def write_precomputed(folder, size):
    (folder / "s0").mkdir(parents=True)
    scale = {
        "key": "s0",
        "size": [size] * 3,
        "resolution": [4, 4, 40],
        "voxel_offset": [0, 0, 0],
        "chunk_sizes": [[EDGE] * 3],
        "encoding": "raw",
    }
    (folder / "info").write_text(
        json.dumps({"type": "image", "data_type": "uint8", "num_channels": 1, "scales": [scale]})
    )
    for cell in CELLS:
        (folder / "s0" / "_".join(f"{n * EDGE}-{n * EDGE + EDGE}" for n in cell)).write_bytes(
            BLOCK.tobytes("F")
        )
    return f"precomputed://{folder}"


def write_n5(folder, size):
    write_dataset(folder, BLOCK, (EDGE,) * 3)
    attributes = json.loads((folder / "attributes.json").read_text())
    (folder / "attributes.json").write_text(
        json.dumps({**attributes, "dimensions": [size] * 3, "resolution": [4, 4, 40]})
    )
    for cell in CELLS[1:]:
        path = folder.joinpath(*map(str, cell))
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(folder / "0" / "0" / "0", path)
    return f"n5://{folder}"


def write_zarr(folder, size):
    zarr = pytest.importorskip("zarr", reason="the extra zarr")
    attributes = {"voxel_size_nm": [4, 4, 40]}
    zarr.create_array(
        folder,
        shape=(size,) * 3,
        chunks=(EDGE,) * 3,
        dtype="u1",
        compressors=None,
        dimension_names=list("xyz"),
        attributes=attributes,
    )
    for cell in CELLS:
        path = folder.joinpath("c", *map(str, cell))
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(BLOCK.tobytes())
    return f"zarr://{folder}"


WRITERS = {"wkw": write_wkw, "precomputed": write_precomputed, "n5": write_n5, "zarr": write_zarr}


@pytest.mark.long
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", WRITERS)
def test_three_files_in_a_huge_box(tmp_path, name, size):
    url = WRITERS[name](tmp_path / "v", size)
    with pytest.warns(UserWarning, match="dask takes milliseconds for each"):
        array = wkwdask.open(url)
    assert array.shape == (1, size, size, size)
    corner = tuple(slice(n * EDGE, n * EDGE + EDGE) for n in CELLS[2])
    np.testing.assert_array_equal(array[(0, *corner)].compute(), BLOCK)
    np.testing.assert_array_equal(wkwdask.read(url, ((0, 0, 0), (EDGE,) * 3))[0], BLOCK)
    assert wkwdask.sample(
        url, [[CELLS[2][0] * EDGE, CELLS[2][1] * EDGE, CELLS[2][2] * EDGE]]
    ).ravel().tolist() == [BLOCK[0, 0, 0]]
    assert wkwdask.diff(url, url).equal
    assert wkwdask.label_statistics(url)["voxels"].sum() == 3 * EDGE**3
    target = f"n5://{tmp_path / 'n5'}" if name == "wkw" else tmp_path / "wkw"
    plan = wkwdask.plan_convert(url, target)
    assert plan.mags[0].regions == 3 - (CELLS[1][0] * EDGE < plan.mags[0].region_shape[0])
    made = wkwdask.convert(url, target)
    assert wkwdask.diff(url, made.mags[0].path if name != "wkw" else target).equal
    assert run_here("info", url.removeprefix("zarr://")).returncode == 0
    with pytest.raises(
        UnsupportedError,
        match=rf"{tmp_path}.* values of uint8, which do not fit into memory; choose a smaller box",
    ):
        wkwdask.read(url)
    with pytest.raises(ValueError, match="expected at most 262,144"):
        wkwdask.open(url, chunks=64)


@pytest.mark.long
@pytest.mark.parametrize("size", SIZES)
def test_a_pyramid_of_three_files(tmp_path, size):
    dataset = write_wkw(tmp_path / "ds", size)
    assert wkwdask.verify(dataset).is_sound
    plan = wkwdask.plan_pyramid(dataset)
    assert plan.passes[0].regions <= 3
    wkwdask.build_pyramid(dataset, mags="2,4")
    half = wkwdask.read(f"{dataset}/em/2", ((0, 0, 0), (EDGE // 2,) * 3))
    far = [n * EDGE // 2 for n in CELLS[2]]
    np.testing.assert_array_equal(
        wkwdask.read(f"{dataset}/em/2", (far, [n + EDGE // 2 for n in far])), half
    )
    assert half.any()
    assert wkwdask.verify(dataset, pyramid=True).is_sound
    assert wkwdask.repair(dataset, dry_run=True).is_sound
    made = wkwdask.rechunk(dataset, tmp_path / "other", file_len=1)
    assert wkwdask.diff(f"{dataset}/em/1", made.mags[0].path).equal
    shutil.copytree(dataset, tmp_path / "up")
    path = tmp_path / "up" / "datasource-properties.json"
    document = json.loads(path.read_text())
    document["dataLayers"][0]["mags"] = [{"mag": [4, 4, 4]}]
    path.write_text(json.dumps(document))
    shutil.rmtree(tmp_path / "up" / "em" / "1")
    shutil.rmtree(tmp_path / "up" / "em" / "2")
    wkwdask.upsample(tmp_path / "up", mags="2")
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "up" / "em" / "2", (far, [n + 2 for n in far])).std(axis=(1, 2, 3)),
        0,
    )
    wkwdask.apply(np.negative, f"{dataset}/em/1", tmp_path / "negative" / "1", skip_empty=True)
    np.testing.assert_array_equal(
        wkwdask.read(tmp_path / "negative" / "1", ((0, 0, 0), (EDGE,) * 3))[0], np.negative(BLOCK)
    )


def test_xarray_refuses_a_coordinate_for_each_voxel(tmp_path):
    xarray = pytest.importorskip("xarray", reason="the extra xarray")
    dataset = write_wkw(tmp_path / "ds", 2**31)
    with pytest.raises(
        UnsupportedError,
        match=rf"{dataset}/em/1: found 2,147,483,648 voxels along x.*bounding_box=",
    ):
        xarray.open_dataset(dataset, engine="wkw")


@pytest.mark.parametrize("size", [2**62, 10**30])
@pytest.mark.parametrize("name", WRITERS)
def test_what_no_software_counts_is_refused(tmp_path, name, size):
    url = WRITERS[name](tmp_path / "v", 128)
    record, field = {
        "wkw": ("datasource-properties.json", "boundingBox"),
        "precomputed": ("info", "size"),
        "n5": ("attributes.json", "dimensions"),
        "zarr": ("", "shape"),
    }[name]
    path = tmp_path / "v" / (record or "zarr.json")
    path.write_text(path.read_text().replace("128", str(size)))
    for call in (
        wkwdask.open,
        wkwdask.read,
        lambda url: wkwdask.convert(url, tmp_path / "out"),
        lambda url: wkwdask.preview(url, tmp_path / "p.png"),
    ):
        with pytest.raises(
            (FormatError, UnsupportedError), match=rf"{tmp_path / 'v'}.*{record}.*{field}.*2\^53"
        ):
            call(url)


def test_aliases_in_a_cluster_file(tmp_path):
    """Ten lines would make ten to the power of ten values."""
    lines = [
        "a0: &a0 [x, x, x, x, x, x, x, x, x, x]",
        *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)),
    ]
    (tmp_path / "bomb.yaml").write_text("\n".join(["kind: local", *lines]))
    script = textwrap.dedent(f"""
        import wkwdask
        try:
            wkwdask.cluster({str(tmp_path / "bomb.yaml")!r}).__enter__()
        except wkwdask.FormatError as error:
            print(error)
    """)
    found = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=300, check=True
    )
    assert "bomb.yaml: not YAML: found the alias *a0, expected plain values" in found.stdout


@pytest.mark.long
def test_a_pyramid_whose_regions_can_all_be_listed_and_whose_files_cannot(tmp_path):
    wkwdask.to_wkw(BLOCK, tmp_path / "ds" / "em" / "1", voxel_size=(4, 4, 40))
    path = tmp_path / "ds" / "datasource-properties.json"
    document = json.loads(path.read_text())
    document["dataLayers"][0]["boundingBox"].update(width=10**6, height=10**6, depth=10**5)
    path.write_text(json.dumps(document))
    assert wkwdask.plan_pyramid(tmp_path / "ds", mags="2,4").passes[0].regions == 1
    assert [mag.files for mag in wkwdask.build_pyramid(tmp_path / "ds", mags="2,4").mags] == [1, 1]
