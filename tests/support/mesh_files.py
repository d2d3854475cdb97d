"""Reading of meshes by the format's description alone, and properties of surfaces (neuroglancer,
``precomputed/meshes.rst``, "multi-resolution mesh format")."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np


def fragment_bytes(folder, label):
    """Yield lod, cell and bytes of each fragment of a label."""
    info = json.loads((Path(folder) / "info").read_text())
    raw, data = _read_label(Path(folder), info, label)
    num_lods = int(np.frombuffer(raw, "<u4", 1, 24)[0])
    at = 28 + 16 * num_lods
    counts = np.frombuffer(raw, "<u4", num_lods, at)
    at += 4 * num_lods
    start = len(data) - sum(_sizes(raw, at, counts.tolist()))
    assert start == 0 or "sharding" in info
    for lod, count in enumerate(counts.tolist()):
        cells = np.frombuffer(raw, "<u4", 3 * count, at).reshape(3, count).T
        sizes = np.frombuffer(raw, "<u4", count, at + 12 * count)
        at += 16 * count
        for cell, size in zip(cells.tolist(), sizes.tolist(), strict=True):
            yield lod, tuple(cell), data[start : start + size]
            start += size
    assert start == len(data)
    assert at == len(raw)


def read_fragments(folder, label):
    """Yield lod, cell, vertices [nm] and faces of each fragment of a label."""
    import DracoPy

    info = json.loads((Path(folder) / "info").read_text())
    largest = 2 ** info["vertex_quantization_bits"] - 1
    transform = np.array(info["transform"], float).reshape(3, 4)
    raw, _ = _read_label(Path(folder), info, label)
    shape, origin = np.frombuffer(raw, "<f4", 6).astype(float).reshape(2, 3)
    num_lods = int(np.frombuffer(raw, "<u4", 1, 24)[0])
    assert (np.diff(np.frombuffer(raw, "<f4", num_lods, 28)) >= 0).all()
    offsets = np.frombuffer(raw, "<f4", 3 * num_lods, 28 + 4 * num_lods).reshape(num_lods, 3)
    for lod, cell, data in fragment_bytes(folder, label):
        mesh = DracoPy.decode(data)
        points = np.asarray(mesh.points, float)
        assert points.min() >= 0
        assert points.max() <= largest
        local = np.array(cell) + points / largest
        vertices = origin + offsets[lod] + shape * 2**lod * local
        yield lod, cell, vertices @ transform[:, :3].T + transform[:, 3], mesh.faces


def _sizes(raw, at, counts):
    """Yield the sizes of fragments."""
    for count in counts:
        yield from np.frombuffer(raw, "<u4", count, at + 12 * count).tolist()
        at += 16 * count


def _read_label(folder, info, label):
    """Return a manifest, and the bytes of fragments; in a shard, all bytes before the manifest."""
    if "sharding" not in info:
        return (folder / f"{label}.index").read_bytes(), (folder / str(label)).read_bytes()
    for path in folder.glob("*.shard"):
        shard = path.read_bytes()
        for ids, starts, sizes in _minishards(shard, info["sharding"]):
            if label in ids:
                row = ids.index(label)
                start, end = starts[row], starts[row] + sizes[row]
                return gzip.decompress(shard[start:end]), shard[:start]
    raise KeyError(label)


def _minishards(shard, sharding):
    """Yield ids, starts and sizes of the minishards of a shard (neuroglancer,
    ``precomputed/sharded.rst``)."""
    assert sharding["minishard_index_encoding"] == sharding["data_encoding"] == "gzip"
    base = 16 << sharding["minishard_bits"]
    for start, end in np.frombuffer(shard[:base], "<u8").reshape(-1, 2).tolist():
        if start < end:
            table = gzip.decompress(shard[base + start : base + end])
            ids, gaps, sizes = np.frombuffer(table, "<u8").reshape(3, -1)
            starts = np.cumsum(gaps) + np.cumsum(sizes) - sizes + base
            yield np.cumsum(ids).tolist(), starts.tolist(), sizes.tolist()


def labels_of(folder):
    """Return the labels that have a mesh, ascending."""
    folder = Path(folder)
    info = json.loads((folder / "info").read_text())
    if "sharding" not in info:
        return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())
    shards = [path.read_bytes() for path in folder.glob("*.shard")]
    tables = [table for shard in shards for table in _minishards(shard, info["sharding"])]
    return sorted(label for ids, *_ in tables for label in ids)


def read_level(folder, label, lod):
    """Return vertices [nm] and faces of a level of detail."""
    parts = [(v, f) for at, _, v, f in read_fragments(folder, label) if at == lod]
    starts = np.cumsum([0, *(len(v) for v, _ in parts)])
    vertices = np.concatenate([v for v, _ in parts])
    return vertices, np.concatenate([f + n for (_, f), n in zip(parts, starts[:-1], strict=True)])


def num_levels(folder, label):
    return 1 + max(lod for lod, *_ in read_fragments(folder, label))


def num_open_edges(vertices, faces):
    """Count the edges whose two directions do not occur equally often, where vertices of equal
    positions are one."""
    places = vertices.round(4)
    order = np.lexsort(places.T)
    is_new = np.append(True, (np.diff(places[order], axis=0) != 0).any(axis=1))
    numbers = np.empty(len(order), int)
    numbers[order] = np.cumsum(is_new)
    joined = numbers[faces]
    edges = np.concatenate([joined[:, [0, 1]], joined[:, [1, 2]], joined[:, [2, 0]]])
    edges = edges[edges[:, 0] != edges[:, 1]]
    codes = edges.min(axis=1) << 32 | edges.max(axis=1)
    _, pairs = np.unique(codes, return_inverse=True)
    sums = np.bincount(pairs.reshape(-1), np.where(edges[:, 0] < edges[:, 1], 1, -1))
    return int((sums != 0).sum())


def volume(vertices, faces):
    """Return the volume inside a closed surface, positive if faces are seen counter-clockwise from
    outside."""
    a, b, c = (vertices[faces[:, n]] for n in range(3))
    return float(np.einsum("ij,ij->", a, np.cross(b, c)) / 6)


SHIFT = np.array([0.0137, 0.0071])
"""Shift of rays from the centres of voxels, so that none meets a vertex or an edge."""


def voxelised(vertices, faces, shape):
    """Return the voxels whose centres lie inside a closed surface with vertices in voxels: a ray
    along z crosses it an odd number of times below them."""
    corners = vertices[faces]
    low = np.ceil(corners[:, :, :2].min(axis=1) - 0.5 - SHIFT).astype(int).clip(0)
    high = np.floor(corners[:, :, :2].max(axis=1) - 0.5 - SHIFT).astype(int)
    counts = (high.clip(max=np.array(shape[:2]) - 1) - low + 1).clip(0)
    repeats = counts.prod(axis=1)
    triangle = np.repeat(np.arange(len(faces)), repeats)
    place = np.arange(repeats.sum()) - np.repeat(np.cumsum(repeats) - repeats, repeats)
    columns = low[triangle] + np.stack(
        [place // counts[triangle, 1], place % counts[triangle, 1]], axis=1
    )
    a, b, c = (corners[triangle, n] for n in range(3))
    u, v, p = b[:, :2] - a[:, :2], c[:, :2] - a[:, :2], columns + 0.5 + SHIFT - a[:, :2]
    area = u[:, 0] * v[:, 1] - u[:, 1] * v[:, 0]
    with np.errstate(divide="ignore", invalid="ignore"):
        s = (p[:, 0] * v[:, 1] - p[:, 1] * v[:, 0]) / area
        t = (u[:, 0] * p[:, 1] - u[:, 1] * p[:, 0]) / area
        hit = (s >= 0) & (t >= 0) & (s + t <= 1)
        z = a[:, 2] + s * (b[:, 2] - a[:, 2]) + t * (c[:, 2] - a[:, 2])
    first = np.ceil(z[hit] - 0.5).astype(int).clip(0, shape[2])
    crossings = np.zeros((*shape[:2], shape[2] + 1), int)
    np.add.at(crossings, (*columns[hit].T, first), 1)
    return np.cumsum(crossings, axis=2)[:, :, :-1] % 2 == 1


def dice(a, b):
    """Return the Dice coefficient of two sets of voxels."""
    return 2 * (a & b).sum() / max(1, a.sum() + b.sum())
