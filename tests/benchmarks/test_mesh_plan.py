"""The simulated plan of a meshing job, at a small size."""

from __future__ import annotations

from .mesh_plan import simulate


def test_each_label_is_counted_once(tmp_path):
    found, numbers = simulate(str(tmp_path), 20_000, 200)
    assert found.num_meshed == 20_000
    assert found.num_continued == 20_000 - 100  # those of the last cell
    assert not found.left_out.count
    assert numbers["shard_bits"] == 2
    assert numbers["batches"] == 3
