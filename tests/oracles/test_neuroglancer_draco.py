"""The decoder of Neuroglancer, from its npm package 2.41.2 and under Node.js, reads every fragment,
and cuts those of coarse levels where the fragments of the finer level meet."""

from __future__ import annotations

import json
import shutil
import subprocess
import tarfile
from itertools import pairwise

import numpy as np
import pytest
from support.mesh_files import fragment_bytes, labels_of

import wkwdask

pytestmark = pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
PACKAGE = "neuroglancer@2.41.2"
BITS = 16
_DECODE = """
import { readFileSync, writeSync } from "fs";
globalThis.fetch = async (url) =>
  new Response(readFileSync(url), { headers: { "content-type": "application/wasm" } });
const { decodeDracoPartitioned } = await import(process.argv[2]);
const frames = readFileSync(0);
const write = (array) => {
  const bytes = new Uint8Array(array.buffer, array.byteOffset, array.byteLength);
  for (let done = 0; done < bytes.length; ) done += writeSync(1, bytes, done);
};
for (let at = 0; at < frames.length; ) {
  const nbytes = frames.readUInt32LE(at), partition = frames.readUInt32LE(at + 4) > 0;
  const raw = new Uint8Array(frames.subarray(at + 8, at + 8 + nbytes));
  const mesh = await decodeDracoPartitioned(raw, 16, partition);
  write(new Uint32Array([mesh.vertexPositions.length, mesh.indices.length]));
  for (const part of [mesh.subChunkOffsets, mesh.vertexPositions, mesh.indices]) write(part);
  at += 8 + nbytes;
}
"""


@pytest.fixture(scope="module")
def decoder(tmp_path_factory):
    """Return the path of the decoder's module."""
    npm = shutil.which("npm")
    if npm is None or shutil.which("node") is None:
        pytest.skip("Node.js is absent: apt-get install nodejs npm")
    folder = tmp_path_factory.mktemp("npm")
    try:
        command = [npm, "pack", "--silent", PACKAGE]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, timeout=120)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired) as error:
        pytest.skip(f"npm cannot fetch {PACKAGE}: {error}")
    (archive,) = folder.glob("*.tgz")
    with tarfile.open(archive) as file:
        file.extractall(folder, filter="data")
    return folder / "package/lib/mesh/draco/index.js"


def decoded(decoder, frames, folder):
    """Yield offsets of octants, positions and faces of each fragment."""
    (folder / "decode.mjs").write_text(_DECODE)
    packed = [
        len(data).to_bytes(4, "little") + bool(lod).to_bytes(4, "little") + data
        for lod, data in frames
    ]
    command = ["node", folder / "decode.mjs", decoder]
    done = subprocess.run(command, input=b"".join(packed), capture_output=True, check=False)
    assert done.returncode == 0, done.stderr.decode()
    numbers, at = np.frombuffer(done.stdout, "<u4"), 0
    for lod, _ in frames:
        counts = [9 if lod else 2, *numbers[at : at + 2].tolist()]
        ends = np.cumsum([at + 2, *counts])
        offsets, positions, indices = (numbers[a:b] for a, b in pairwise(ends))
        yield offsets, positions.reshape(-1, 3), indices.reshape(-1, 3)
        at = ends[-1]
    assert at == len(numbers)


def triangles(positions, faces):
    """Return the corners of all faces, in an order that does not depend on that of faces."""
    corners = positions[faces].astype(np.int64)
    codes = corners @ np.array([1 << 32, 1 << 16, 1])
    first = codes.argmin(axis=1)[:, np.newaxis]
    rolled = np.take_along_axis(codes, (first + np.arange(3)) % 3, axis=1)
    return rolled[np.lexsort(rolled.T)]


@pytest.mark.parametrize("sharded", [True, False])
def test_every_fragment_is_decoded_and_cut(tmp_path, decoder, sharded):
    import DracoPy
    from scipy.ndimage import gaussian_filter

    random = np.random.default_rng(1)
    fields = [gaussian_filter(random.normal(size=(90, 70, 60)), 4) for _ in range(6)]
    labels = np.argmax(fields, axis=0).astype(np.uint64) * (2**53 + 1)
    url = f"precomputed://{tmp_path / 'v'}"
    wkwdask.save(labels, url, voxel_size=(8, 8, 20), category="segmentation")
    wkwdask.meshes(url, cell=16, sharded=sharded)
    folder = tmp_path / "v/mesh"
    assert json.loads((folder / "info").read_bytes())["vertex_quantization_bits"] == BITS
    fragments = [
        (label, *each) for label in labels_of(folder) for each in fragment_bytes(folder, label)
    ]
    stored = {(label, lod, cell) for label, lod, cell, _ in fragments}
    assert {lod for _, lod, _, _ in fragments} == {0, 1, 2, 3}
    frames = [(lod, data) for _, lod, _, data in fragments]
    half, num_cut = 1 << BITS - 1, 0
    for (label, lod, cell, data), (offsets, positions, faces) in zip(
        fragments, decoded(decoder, frames, tmp_path), strict=True
    ):
        mesh = DracoPy.decode(data)
        expected = triangles(np.asarray(mesh.points).astype(np.int64), mesh.faces)
        np.testing.assert_array_equal(triangles(positions, faces), expected)
        assert offsets[-1] == 3 * len(faces)
        for octant in range(8 if lod else 0):
            own = positions[faces[offsets[octant] // 3 : offsets[octant + 1] // 3]]
            side = np.array([octant & 1, octant >> 1 & 1, octant >> 2])
            assert (
                np.where(side, own.astype(np.int64) - half, half - own.astype(np.int64)) >= 0
            ).all()
            child = tuple((2 * np.array(cell) + side).tolist())
            assert not len(own) or (label, lod - 1, child) in stored
            num_cut += len(own) > 0
    assert len(fragments) > 500
    assert num_cut > 300
