"""Guards of a segmentation: pairs are sorted on disk in little memory, and refused like by plain
Python sets."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.inside import limited

from wkwdask.ids.guards import GuardedSets, Guards, best_first
from wkwdask.ids.table_file import write_parts


def random_pairs(seed, num_nodes, number, num_scores=4):
    """Draw pairs of nodes, the lower one first, without duplicates, and their scores."""
    random = np.random.default_rng(seed)
    pairs = np.sort(random.integers(0, num_nodes, (number, 2)), axis=1)
    pairs = np.unique(pairs[pairs[:, 0] < pairs[:, 1]], axis=0)
    return pairs, random.integers(0, num_scores, len(pairs)) / num_scores


def in_order(pairs, scores):
    order = np.lexsort((pairs[:, 1], pairs[:, 0], -scores))
    return pairs[order], scores[order]


def in_parts(pairs, scores, cuts):
    return zip(np.split(pairs, cuts), np.split(scores, cuts), strict=True)


def joined(parts):
    pairs, scores = zip(*parts, strict=True)
    return np.concatenate(pairs), np.concatenate(scores)


def refused_by_sets(guards, pairs, sizes, blocks):
    """Refuse pairs by Python sets of nodes; return the reasons, and the least node of each set."""
    groups, reasons = {n: frozenset([n]) for n in range(len(sizes))}, []
    for a, b in pairs.tolist():
        both = groups[a] | groups[b]
        is_crowded = len({blocks[n] for n in both}) < len(both)
        is_large = guards.max_voxels is not None and sizes[list(both)].sum() > guards.max_voxels
        if groups[a] == groups[b]:
            reasons.append(0)
        elif guards.one_per_block and is_crowded:
            reasons.append(1)
        elif is_large:
            reasons.append(2)
        else:
            reasons.append(0)
            groups.update(dict.fromkeys(both, both))
    return reasons, [min(groups[n]) for n in range(len(sizes))]


@given(
    seed=st.integers(0, 99),
    num_blocks=st.sampled_from([2, 9, 64, 65, 200]),
    per_block=st.integers(1, 4),
    num_pairs=st.integers(0, 800),
    one_per_block=st.booleans(),
    max_voxels=st.sampled_from([None, 1, 60, 400]),
)
def test_guards_refuse_like_sets(
    seed, num_blocks, per_block, num_pairs, one_per_block, max_voxels
):  # fmt: skip
    """Objects grow from lists of blocks to bits: 200 blocks are four words of bits."""
    random = np.random.default_rng(seed)
    num_nodes = random.integers(0, per_block + 1, num_blocks)
    total = int(num_nodes.sum())
    pairs, scores = random_pairs(seed, max(total, 1), num_pairs)
    pairs, scores = in_order(pairs, scores)
    sizes, blocks = random.integers(1, 50, total), np.repeat(np.arange(num_blocks), num_nodes)
    guards = Guards(one_per_block, max_voxels)
    reasons, roots = refused_by_sets(guards, pairs, sizes, blocks)
    for most_listed in (1, 16):
        with limited(listed_nodes=most_listed):
            sets = GuardedSets(guards, num_nodes, sizes.copy())
        cut = len(pairs) // 3
        found = [sets.unite_in_order(part) for part in (pairs[:cut], pairs[cut:])]
        assert np.concatenate(found).tolist() == reasons
        assert sets.roots().tolist() == roots


@given(
    seed=st.integers(0, 99),
    number=st.sampled_from([0, 1, 30, 500]),
    cuts=st.lists(st.integers(0, 500), max_size=4).map(sorted),
    at_once=st.sampled_from([1, 7, 100, 1000]),
)
def test_pairs_are_sorted_on_disk(tmp_path_factory, seed, number, cuts, at_once):
    folder = tmp_path_factory.mktemp("sorted")
    pairs, scores = random_pairs(seed, 60, number)
    order = np.random.default_rng(seed).permutation(len(pairs))
    # some pairs are found twice
    twice = np.concatenate([order, order[: len(order) // 3]])
    with limited(pairs_at_once=at_once):
        parts = list(best_first(in_parts(pairs[twice], scores[twice], cuts), str(folder)))
    expected, found = in_order(pairs, scores), joined(parts)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_array_equal(found[1], expected[1])
    assert not list(folder.iterdir())


def test_the_memory_of_sorting_does_not_grow_with_the_pairs(tmp_path):
    def peak(num_parts):
        def parts():
            random = np.random.default_rng(1)
            for _ in range(num_parts):
                yield random.integers(0, 10**9, (10_000, 2)), random.random(10_000)

        tracemalloc.start()
        number = sum(len(pairs) for pairs, _ in best_first(parts(), str(tmp_path)))
        nbytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert number == num_parts * 10_000
        return nbytes

    with limited(pairs_at_once=40_000):
        peak(1)  # imports
        few, many = peak(16), peak(160)
    assert many < 1.5 * few
    assert many < 1_600_000 * 24 / 4  # the keys of all pairs


@pytest.mark.parametrize("guards", [Guards(True), Guards(False, 100), Guards(True, 100)])
def test_a_label_takes_few_bytes(guards):
    """Sets of all sizes: an object of each block, and many small ones."""
    num_nodes = np.full(1000, 100)
    sizes = np.ones(100_000, np.int64)
    chain = np.stack([np.arange(999) * 100, np.arange(1, 1000) * 100], axis=1)
    pairs = np.concatenate([chain + n for n in range(100)])
    GuardedSets(guards, num_nodes[:2], sizes[:200]).unite_in_order(pairs[:0])  # imports
    tracemalloc.start()
    sets = GuardedSets(guards, num_nodes, sizes)
    reasons = sets.unite_in_order(pairs)
    nbytes = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert nbytes < 36 * len(sizes) + 1_000_000
    num_objects = len(np.unique(sets.roots()))
    assert num_objects == (100 if guards.max_voxels is None else 1000)
    assert (reasons == 0).sum() == 100_000 - num_objects


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_a_table_in_parts_is_that_of_one_part(tmp_path, suffix):
    pytest.importorskip("pyarrow")
    frame = pd.DataFrame(
        {"score": np.arange(7) / 4, "refused_by": np.array(["max_voxels"] * 7, object)},
        pd.Index(np.arange(7, dtype=np.uint64), name="label"),
    )
    whole, parts = tmp_path / f"whole.{suffix}", tmp_path / f"parts.{suffix}"
    write_parts([frame], str(whole))
    write_parts((frame[n : n + 3] for n in (0, 3, 6)), str(parts))
    read = pd.read_csv if suffix == "csv" else pd.read_parquet
    pd.testing.assert_frame_equal(read(parts), read(whole))
    if suffix == "parquet":
        pd.testing.assert_frame_equal(read(whole), frame)
