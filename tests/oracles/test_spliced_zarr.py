"""WKW blocks that became chunks of Zarr, as other software reads them. Neuroglancer's client reads
some in ``test_neuroglancer``.

Tested with zarr-python 3.1.6 and 3.4.2, tensorstore 0.1.86, zarrs 0.2.3, ngff-zarr 0.50 and
numcodecs 0.3.2 of JavaScript.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import warnings
from pathlib import Path

import dask
import numpy as np
import pytest
from support.zarr_sources import stored_block

import wkwdask

zarr = pytest.importorskip(
    "zarr", minversion="3.1.4", reason="zarr, of the extra zarr, is not installed"
)

CASES = [  # type, channels, block length, file length, compression, offset
    ("uint8", 1, 32, 2, "lz4", (3, 5, 40)),
    ("int8", 3, 4, 4, "lz4hc", (0, 0, 0)),
    ("uint16", 1, 1, 32, "lz4", (7, 0, 2)),
    ("int16", 2, 2, 16, "raw", (1, 40, 9)),
    ("uint32", 1, 8, 8, "lz4hc", (64, 0, 65)),
    ("int32", 1, 64, 1, "lz4", (70, 2, 0)),
    ("uint64", 1, 16, 2, "lz4", (5, 6, 7)),
    ("int64", 1, 8, 1, "raw", (8, 8, 9)),
    ("float32", 3, 8, 2, "lz4", (0, 3, 100)),
    ("float64", 1, 128, 1, "lz4", (3, 0, 0)),
    ("uint8", 1, 1, 128, "lz4", (130, 1, 2)),
]


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    """Folders of images, each with its voxels (c, z, y, x) from the first one of the array, and the
    edge of its blocks."""
    folder, found = tmp_path_factory.mktemp("spliced"), []
    with dask.config.set(scheduler="synchronous"):
        for number, (dtype, channels, block_len, file_len, compression, offset) in enumerate(CASES):
            random = np.random.default_rng(number)
            shape = [min(n, 4 * block_len + 1) for n in (40, 27, 22)]
            values = (
                random.standard_normal((channels, *shape))
                if "float" in dtype
                else random.integers(0, 99, (channels, *shape))
            )
            values[:, : 2 * block_len, :block_len] = 0
            source = folder / f"{number}"
            wkwdask.create_dataset(source, (4, 4, 40))
            wkwdask.to_wkw(
                values.astype(dtype),
                source / "color" / "1",
                offset=offset,
                block_len=block_len,
                file_len=file_len,
                compression=compression,
                category="color",
            )
            found.append(_convert(source, values.astype(dtype), offset, block_len))
        source = folder / "stored"
        wkwdask.create_dataset(source, (4, 4, 40))
        values = np.concatenate([stored_block(), np.ones((8, 8, 8), np.uint8), stored_block()])[
            np.newaxis
        ]
        wkwdask.to_wkw(
            values,
            source / "color" / "1",
            block_len=8,
            file_len=2,
            compression="lz4",
            category="color",
        )
        found.append(_convert(source, values, (0, 0, 0), 8))
    return found


def _convert(source, values, offset, block_len):
    image = Path(f"{source}.ome.zarr")
    (planned,) = wkwdask.plan_convert(source, image, layer="color").mags
    assert planned.path.startswith("copies stored chunks")
    wkwdask.convert(source, image, layer="color")
    return image, np.pad(values, [(0, 0), *((n % block_len, 0) for n in offset)]).transpose(
        0, 3, 2, 1
    )


def read_by_zarr(image):
    return zarr.open_array(str(image / "1"), mode="r")[...]


def read_by_zarrs(image):
    pytest.importorskip("zarrs", reason="zarrs, of the extra oracles, is not installed")
    with zarr.config.set({"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}):
        return zarr.open_array(str(image / "1"), mode="r")[...]


def read_by_tensorstore(image):
    tensorstore = pytest.importorskip(
        "tensorstore", reason="tensorstore, of the extra oracles, is not installed"
    )
    return (
        tensorstore.open({"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{image}/1/"}})
        .result()
        .read()
        .result()
    )


def read_by_ngff_zarr(image):
    ngff_zarr = pytest.importorskip("ngff_zarr", reason="ngff-zarr is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return ngff_zarr.from_ngff_zarr(str(image)).images[0].data.compute(scheduler="synchronous")


@pytest.mark.parametrize(
    "read", [read_by_zarr, read_by_zarrs, read_by_tensorstore, read_by_ngff_zarr]
)
def test_voxels(images, read):
    for image, expected in images:
        if read is read_by_ngff_zarr and zarr.open_array(str(image / "1"), mode="r").chunks[-1] < 4:
            # it reads by tasks of a chunk
            continue
        found = read(image)
        found = found if found.ndim == 4 else found[np.newaxis]
        assert found.dtype == expected.dtype, image
        np.testing.assert_array_equal(found, expected, err_msg=str(image))


_DECODE = """
import { readFileSync, writeSync } from "fs";
const { default: Blosc } = await import(process.argv[2]);
const codec = Blosc.fromConfig({ id: "blosc" }), frames = readFileSync(0);
for (let at = 0; at < frames.length; ) {
  const nbytes = frames.readUInt32LE(at);
  const decoded = await codec.decode(frames.subarray(at + 4, at + 4 + nbytes));
  for (let done = 0; done < decoded.length; ) done += writeSync(1, decoded, done);
  at += 4 + nbytes;
}
"""


def test_frames_by_the_blosc_of_neuroglancer(images, tmp_path):
    """The JavaScript package that its client contains."""
    node, npm = shutil.which("node"), shutil.which("npm")
    if node is None or npm is None:
        pytest.skip("Node.js is absent: apt-get install nodejs npm")
    module = (
        Path(
            subprocess.run(
                [npm, "root", "-g"], check=True, capture_output=True, text=True
            ).stdout.strip()
        )
        / "numcodecs"
        / "dist"
        / "blosc.js"
    )
    if not module.exists():
        pytest.skip("numcodecs of JavaScript is absent: npm install -g numcodecs")
    (tmp_path / "decode.mjs").write_text(_DECODE)
    frames, expected = [], []
    for image, _ in images:
        document = json.loads((image / "1" / "zarr.json").read_text())
        inner = document["codecs"][0]["configuration"]
        if inner["codecs"][-1]["name"] != "blosc":
            continue
        for path in filter(Path.is_file, (image / "1" / "c").rglob("*")):
            raw = path.read_bytes()
            count = np.prod(
                np.array(document["chunk_grid"]["configuration"]["chunk_shape"])
                // inner["chunk_shape"]
            )
            table = np.frombuffer(raw[-16 * count - 4 : -4], "<u8").reshape(-1, 2)
            for start, nbytes in table[table[:, 0] != 2**64 - 1][:20].tolist():
                frames += [nbytes.to_bytes(4, "little"), raw[start : start + nbytes]]
                expected.append(_decoded(raw[start : start + nbytes]))
    done = subprocess.run(
        [node, tmp_path / "decode.mjs", module],
        input=b"".join(frames),
        check=True,
        capture_output=True,
    )
    assert len(expected) > 60
    assert done.stdout == b"".join(expected)


def _decoded(frame):
    numcodecs = pytest.importorskip("numcodecs", reason="an oracle of Blosc")
    return numcodecs.Blosc().decode(frame)
