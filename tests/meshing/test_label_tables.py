"""Tables of labels equal sums over all cells, whatever the number of rows sorted at once."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from wkwdask.meshing import label_tables
from wkwdask.meshing.label_tables import LabelRows, LabelTables, is_in

LABELS = st.lists(st.tuples(st.sampled_from([1, 2, 5, 8, 2**53 + 1, 2**64 - 1]), st.booleans()))


@given(
    cells=st.lists(LABELS, max_size=6),
    rows=st.integers(1, 9),
    min_voxels=st.integers(0, 25),
    ids=st.none() | st.sets(st.sampled_from([1, 3, 8, 2**64 - 1])),
)
def test_sums_over_cells(tmp_path_factory, cells, rows, min_voxels, ids):
    folder = tmp_path_factory.mktemp("tables")
    surfaces, voxels, parts = {}, {}, []
    for cell in cells:
        for label, has_surface in dict(cell).items():
            voxels[label] = voxels.get(label, 0) + 7
            surfaces[label] = surfaces.get(label, 0) + has_surface
        columns = [*dict(cell)], [*dict(cell).values()], [7] * len(dict(cell))
        types = np.uint64, np.int64, np.int64
        parts.append(LabelRows(*(np.array(c, t) for c, t in zip(columns, types, strict=True))))
    wanted = None if ids is None else np.array(sorted(ids), np.uint64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(label_tables, "_ROWS", rows)
        found = LabelTables(str(folder)).write(0, iter(parts), min_voxels, wanted)
    small = sorted(label for label in voxels if voxels[label] < min_voxels)
    kept = sorted(set(voxels) - set(small))
    assert found.left_out.first == small
    assert found.num_meshed == sum(surfaces[label] > 0 for label in kept)
    assert found.without_surface.first == [label for label in kept if not surfaces[label]]
    assert found.missing.first == sorted(set(ids or ()) - set(voxels))
    continued = LabelTables(str(folder)).continued(0)
    assert continued.tolist() == [label for label in kept if surfaces[label] > 1]
    assert found.num_continued == len(continued)
    assert LabelTables(str(folder)).dropped(0).tolist() == small
    every = np.array([1, 2, 3, 5, 8, 2**53 + 1, 2**64 - 1], np.uint64)
    assert every[is_in(every, continued)].tolist() == continued.tolist()
    assert sorted(path.name for path in folder.iterdir()) == ["continued0", "dropped0"]
