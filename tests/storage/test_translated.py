"""Volumes moved by any vector, in memory with anisotropic shards: voxels, cells with data, states of files."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from memory_volume import make_volume, store_of

from wkwdask import BoundingBox
from wkwdask.geometry.grid import cell_box, cells
from wkwdask.model.translated import TranslatedVolume, moved

OFFSET = (40, 33, 17)
SHARD_SHAPE = (32, 32, 16)


def scattered(name, seed):
    """A volume of which only some shards are stored."""
    array = np.random.default_rng(seed).integers(1, 200, (1, 70, 50, 40)).astype(np.uint8)
    store_of(name).clear()
    volume = make_volume(name, array, OFFSET)
    for number, index in enumerate(cells(volume.box, SHARD_SHAPE)):
        if (number + seed) % 3:
            store_of(name).pop("shard-{}-{}-{}".format(*index))
    return volume


vectors = st.tuples(*[st.integers(-17, 70) | st.sampled_from([-16, 0, 16, 32, 64])] * 3)


@given(shift=vectors, cell=st.tuples(*[st.sampled_from([4, 8, 16, 32, 64, 128])] * 3), seed=st.integers(0, 2))
def test_cells_and_voxels(shift, cell, seed):
    volume = scattered("translated", seed)
    translated = TranslatedVolume(volume, shift)
    box = translated.box
    assert box == BoundingBox(tuple(a + b for a, b in zip(OFFSET, shift, strict=True)), volume.box.size)
    whole, before = np.empty((1, *box.size), np.uint8), np.empty((1, *box.size), np.uint8)
    translated.read_into(whole, box.topleft)
    volume.read_into(before, volume.box.topleft)
    np.testing.assert_array_equal(whole, before)
    occupied = translated.occupied(cell)
    for index, found in zip(cells(box, cell), occupied.transpose(2, 1, 0).ravel(), strict=True):
        part = cell_box(index, cell, box).intersection(box)
        # all stored voxels are at least 1
        assert found == bool(whole[(slice(None), *(slice(a - t, b - t) for a, b, t in zip(part.topleft, part.bottomright, box.topleft, strict=True)))].any())


@given(shift=vectors, seed=st.integers(0, 2))
def test_shards_and_states(shift, seed):
    """A file has a row for each shard that holds a part of it."""
    volume = scattered("translated", seed)
    translated = TranslatedVolume(volume, shift)
    stored = [index for index in cells(volume.box, SHARD_SHAPE) if volume.shard_exists(index)]
    expected = set()
    for index in stored:
        for shard in cells(moved(cell_box(index, SHARD_SHAPE, volume.box), shift), SHARD_SHAPE):
            expected.add(shard)
            assert translated.shard_exists(shard)
    states = translated.stored_states()
    assert {tuple(row) for row in states[:, :3].tolist()} == expected
    assert len(np.unique(states[:, 3:], axis=0)) == len(stored)
    for index in cells(translated.box, SHARD_SHAPE):
        assert translated.shard_exists(index) == (index in expected)
        assert translated.shard_path(index).startswith("memory:translated/shard-")
