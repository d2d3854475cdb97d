"""Segmentation block by block in plain numpy: every pair of labels is compared with masks of whole
planes. And volumes of cells whose truth is known."""

from __future__ import annotations

import itertools
from fractions import Fraction

import numpy as np
from scipy import ndimage

AXES = "xyz"


def blocks_of(low, high, shape):
    """List the blocks of a grid that starts at voxel 0 as (index, low corner, high corner), z
    slowest."""
    ranges = [range(a // n, -(-b // n)) for a, b, n in zip(low, high, shape, strict=True)]
    found = []
    for z, y, x in itertools.product(*ranges[::-1]):
        index = (x, y, z)
        a = tuple(max(i * n, lo) for i, n, lo in zip(index, shape, low, strict=True))
        b = tuple(min(i * n + n, hi) for i, n, hi in zip(index, shape, high, strict=True))
        found.append((index, a, b))
    return found


def smooth_noise(seed, shape):
    """Draw an image (x, y, z) of dark and bright spots."""
    smooth = ndimage.gaussian_filter(np.random.default_rng(seed).random(shape), 1.5)
    return ((smooth - smooth.min()) / max(np.ptp(smooth), 1e-9) * 255).astype(np.uint8)


def bright(em):
    """Label connected bright voxels, in numbers that depend on the block."""
    labels, count = ndimage.label(em > 140)
    return np.where(labels > 0, count + 3 - labels, 0).astype(np.int32)


def with_values(em):
    """Labels, and two channels of values that differ from voxel to voxel."""
    return bright(em), np.stack([em / np.float32(3), em.astype(np.float32)])


def cut(array, low, high, origin):
    return array[tuple(slice(a - o, b - o) for a, b, o in zip(low, high, origin, strict=True))]


def stitched(
    function, box, inside, shape, halo, *, least=0.5, stitch="xyz", mask=None, min_voxels=0,
    connectivity=None, one_per_block=False, max_voxels=None,
):  # fmt: skip
    """Segment a box of voxels by overlaps, or with a connectivity by touching voxels.

    ``function(low, high)`` returns the labels of a box. ``box`` is what can be read, ``inside`` is
    what is segmented, both as corners; ``mask`` covers ``box``. Returns the ids of ``inside`` and
    the refused pairs: both ids, the score, and the guard.
    """
    blocks, nodes = {}, []
    for index, low, high in blocks_of(*inside, shape):
        grown = (
            tuple(max(a - h, b) for a, h, b in zip(low, halo, box[0], strict=True)),
            tuple(min(a + h, b) for a, h, b in zip(high, halo, box[1], strict=True)),
        )
        labels = function(*grown).astype(np.int64)
        if mask is not None:
            labels = labels * cut(mask, *grown, box[0])
        blocks[index] = (labels, grown[0], low, high)
        seen = []
        for label in cut(labels, low, high, grown[0]).ravel(order="F").tolist():
            if label and label not in seen:
                seen.append(label)
        nodes += [(index, label) for label in seen]
    out = np.zeros([b - a for a, b in zip(*inside, strict=True)], np.int64)  # numbers of nodes
    for number, (index, label) in enumerate(nodes):
        labels, corner, low, high = blocks[index]
        cut(out, low, high, inside[0])[cut(labels, low, high, corner) == label] = number + 1
    pairs = (
        _overlapping(blocks, nodes, stitch, least)
        if connectivity is None
        else _touching(out, [index for index, _ in nodes], connectivity)
    )
    sizes = np.bincount(out.ravel(), minlength=len(nodes) + 1)[1:].tolist()
    group, refused = {number: {number} for number in range(len(nodes))}, []
    for score, a, b in sorted(pairs, key=lambda pair: (-pair[0], *pair[1:])):
        joined = group[a] | group[b]
        if len(joined) == len(group[a]):
            continue
        if one_per_block and len({nodes[n][0] for n in joined}) < len(joined):
            refused.append((a, b, score, "one_per_block"))
        elif max_voxels is not None and sum(sizes[n] for n in joined) > max_voxels:
            refused.append((a, b, score, "max_voxels"))
        else:
            group.update(dict.fromkeys(joined, joined))
    least_of = np.array([0] + [1 + min(group[number]) for number in range(len(nodes))])
    ids = numbered(least_of[out], min_voxels)
    id_of = {number: int(ids[out == number + 1][0]) for number in range(len(nodes))}
    return ids, [(id_of[a], id_of[b], *rest) for a, b, *rest in refused]


def _overlapping(blocks, nodes, stitch, least):
    """List the pairs (score, number, number) of nodes that overlap at faces."""
    found, number_of = [], {node: number for number, node in enumerate(nodes)}
    for index, (labels, corner, low, high) in blocks.items():
        for axis in [AXES.index(name) for name in stitch]:
            beyond = tuple(n + (a == axis) for a, n in enumerate(index))
            if beyond not in blocks:
                continue
            first = [n if a != axis else high[axis] - 1 for a, n in enumerate(low)]
            last = [n if a != axis else high[axis] + 1 for a, n in enumerate(high)]
            ours = cut(labels, first, last, corner)
            theirs = cut(blocks[beyond][0], first, last, blocks[beyond][1])
            for a, b in itertools.product(np.unique(ours), np.unique(theirs)):
                common = int(((ours == a) & (theirs == b)).sum())
                either = int(((ours == a) | (theirs == b)).sum())
                pair = (index, int(a)), (beyond, int(b))
                if common > least * either and all(node in number_of for node in pair):
                    found.append((Fraction(common, either), *(number_of[node] for node in pair)))
    return found


def _touching(out, blocks, connectivity):
    """List the pairs (score, number, number) of nodes of two blocks whose voxels touch."""
    found = {}
    for step in itertools.product((-1, 0, 1), repeat=3):
        distance = sum(map(abs, step))
        if not distance or distance > {6: 1, 18: 2, 26: 3}[connectivity]:
            continue
        here = tuple(slice(max(0, -n), min(0, -n) or None) for n in step)
        there = tuple(slice(max(0, n), min(0, n) or None) for n in step)
        for a, b in zip(out[here].ravel().tolist(), out[there].ravel().tolist(), strict=True):
            if 0 < a < b and blocks[a - 1] != blocks[b - 1]:
                found[a - 1, b - 1] = found.get((a - 1, b - 1), 0) + (distance == 1)
    return [(score, *pair) for pair, score in found.items()]


def numbered(labels, min_voxels=0):
    """Renumber labels from 1 on in their order, without small ones."""
    sizes = np.bincount(labels.ravel())
    kept = np.flatnonzero((sizes >= max(1, min_voxels)) & (np.arange(len(sizes)) > 0))
    table = np.zeros(len(sizes), np.int64)
    table[kept] = np.arange(1, len(kept) + 1)
    return table[labels]


# ----------------------------------------------------------------------------- cells with a truth


def cells(kind, shape=(160, 160, 144), number=400, seed=0):
    """Return the labels of ellipsoids or of Voronoi cells with membranes, and a noisy image of
    them."""
    from scipy.spatial import cKDTree

    random = np.random.default_rng(seed)
    seeds = [random.random(3) * shape]
    while len(seeds) < number:  # the farthest of some candidates: far from each other
        candidates = random.random((12, 3)) * shape
        seeds.append(candidates[cKDTree(seeds).query(candidates)[0].argmax()])
    seeds = np.array(seeds)
    voxels = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), -1)
    voxels = voxels.reshape(-1, 3).astype(np.float32)
    distances, nearest = cKDTree(seeds).query(voxels, k=2)
    labels = (nearest[:, 0] + 1).reshape(shape).astype(np.uint32)
    if kind == "voronoi":
        gap = (distances[:, 1] - distances[:, 0]).reshape(shape)
        labels[gap < 1.2] = 0
        signal = 1 - np.exp(-gap / 3)
    else:
        radii = random.uniform(5.5, 10.5, (number, 3)).astype(np.float32)
        inside = (((voxels - seeds[nearest[:, 0]]) / radii[nearest[:, 0]]) ** 2).sum(1) < 1
        labels[~inside.reshape(shape)] = 0
        signal = ndimage.gaussian_filter(inside.reshape(shape).astype(np.float32), 1.0)
    image = (signal + random.normal(0, 0.15, shape)).astype(np.float32)
    return labels, ndimage.gaussian_filter(image, 1.0)


def watershed_of_cells(image):
    """Threshold, distance transform and watershed by scikit-image."""
    from skimage.feature import peak_local_max
    from skimage.segmentation import watershed

    mask = image > 0.45
    distance = ndimage.gaussian_filter(ndimage.distance_transform_edt(mask).astype(np.float32), 1.0)
    peaks = peak_local_max(
        distance, min_distance=5, labels=mask.astype(np.uint8), exclude_border=False
    )
    markers = np.zeros(image.shape, np.int32)
    markers[tuple(peaks.T)] = np.arange(1, len(peaks) + 1)
    return watershed(-distance, markers, mask=mask).astype(np.uint32)


def splits_and_merges(expected, found, least=0.05):
    """Count the labels of one segmentation that have several labels in the other, each with a share
    of at least ``least``."""
    keys, counts = np.unique(
        expected.astype(np.int64) << 32 | found.astype(np.int64), return_counts=True
    )
    pairs = np.stack([keys >> 32, keys & 0xFFFFFFFF])
    both, sizes = (pairs > 0).all(axis=0), [np.bincount(x.ravel()) for x in (expected, found)]
    return tuple(
        int((np.bincount(label[both & (counts >= least * size[label])]) > 1).sum())
        for label, size in zip(pairs, sizes, strict=True)
    )
