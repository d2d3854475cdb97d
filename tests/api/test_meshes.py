"""Meshes of any source, with every option and runner, and after every interruption."""

from __future__ import annotations

import json
import shutil
import sys
import tracemalloc
from pathlib import Path

import dask
import numpy as np
import pytest
from faults.drivers import stopping, tasks_run_by
from faults.trees import leftovers
from support.commands import run_here
from support.inside import before_task
from support.mesh_files import (
    labels_of,
    num_levels,
    num_open_edges,
    read_fragments,
    read_level,
    volume,
    voxelised,
)

import wkwdask
from wkwdask.errors import (
    BoundsError,
    ExistsError,
    FormatError,
    IncompleteWriteError,
    LockedError,
    MissingError,
    ResumeError,
    UnsupportedError,
)
from wkwdask.ids import sorted_runs
from wkwdask.meshing import plan, tasks
from wkwdask.meshing.surface import Simplifier
from wkwdask.store.store import store_at

pytestmark = pytest.mark.needs("zmesh", "DracoPy", "pyfqmr")
SHAPE, LENGTHS, OFFSET = (40, 30, 20), (8.0, 6.0, 30.0), (13, 8, 5)
LARGE = 2**53 + 1


class StopError(BaseException):
    """End of a job that nothing in it expects."""


def boxes(dtype=np.uint32):
    """Labels of three boxes; the second touches the border of the volume."""
    labels = np.zeros(SHAPE, dtype)
    labels[3:35, 4:12, 4:16] = 1
    labels[3:40, 15:25, 4:16] = 2
    labels[5:8, 27, 5:7] = 3
    return labels


def save(folder, labels, **options):
    url = f"precomputed://{folder}"
    placed = {"offset": OFFSET, "voxel_size": LENGTHS, "category": "segmentation"}
    wkwdask.save(labels, url, **{**placed, **options})
    return url


@pytest.fixture
def cells(tmp_path):
    return save(tmp_path / "cells", boxes())


def files_of(folder):
    return {path.name: path.read_bytes() for path in Path(folder).iterdir()}


def inside(folder, label, lengths=LENGTHS, offset=OFFSET, shape=SHAPE):
    vertices, faces = read_level(folder, label, 0)
    assert num_open_edges(vertices, faces) == 0
    return voxelised(vertices / lengths - offset, faces, shape)


def test_info_names_the_meshes(tmp_path, cells):
    before = json.loads((tmp_path / "cells" / "info").read_bytes())
    report = wkwdask.meshes(cells, cell=12)
    assert report.note.startswith("3 labels; ")
    assert json.loads((tmp_path / "cells" / "info").read_bytes()) == {**before, "mesh": "mesh"}
    folder = tmp_path / "cells" / "mesh"
    assert labels_of(folder) == [1, 2, 3]
    assert [num_levels(folder, label) for label in (1, 2, 3)] == [3, 3, 1]
    assert leftovers(tmp_path) == []
    assert (wkwdask.read(cells)[0] == boxes()).all()
    assert wkwdask.verify(cells).is_sound


@pytest.mark.parametrize(
    "target",
    ["ds/seg/1", pytest.param("v.zarr", marks=pytest.mark.needs("zarr")), "n5://v.n5/seg"],
)
def test_any_format_is_a_source(tmp_path, target):
    save(tmp_path / "cells", boxes())
    prefix, _, name = target.rpartition("://")
    source = f"{prefix}://{tmp_path / name}" if prefix else str(tmp_path / name)
    placed = {"offset": OFFSET, "voxel_size": LENGTHS}
    if target.startswith("ds"):
        wkwdask.create_dataset(tmp_path / "ds", voxel_size=LENGTHS)
        placed = {"offset": OFFSET, "category": "segmentation"}
    wkwdask.save(boxes(), source, **placed)
    wkwdask.meshes(source, tmp_path / "cells" / "other", cell=12, error=0)
    wkwdask.meshes(f"precomputed://{tmp_path / 'cells'}", cell=12, error=0, existing="overwrite")
    other, own = (files_of(tmp_path / "cells" / name) for name in ("other", "mesh"))
    assert other == own


def test_coarser_mags_have_the_same_place(tmp_path):
    labels = np.zeros((64, 64, 32), np.uint8)
    labels[16:48, 8:40, 8:24] = 5
    url = save(tmp_path / "v", labels, offset=(0, 0, 0))
    wkwdask.build_pyramid(url, mags=["2-2-1"], method="mode")
    ends = []
    for mag in ("1", "2-2-1"):
        wkwdask.meshes(url, mag=mag, error=0, existing="overwrite")
        vertices, faces = read_level(tmp_path / "v" / "mesh", 5, 0)
        ends.append([vertices.min(axis=0), vertices.max(axis=0)])
        assert volume(vertices, faces) == pytest.approx(32 * 32 * 16 * np.prod(LENGTHS), rel=0.05)
    expected = [np.array([16, 8, 8]) * LENGTHS, np.array([48, 40, 24]) * LENGTHS]
    np.testing.assert_allclose(ends, [expected] * 2, atol=0.02)


def test_labels_that_are_chosen(tmp_path, cells):
    folder = tmp_path / "cells" / "mesh"
    report = wkwdask.meshes(cells, ids=[2, 9], cell=12)
    assert labels_of(folder) == [2]
    assert "1 label of ids not found: 9" in report.note
    (tmp_path / "ids.txt").write_text("3\n\n1\n")
    wkwdask.meshes(cells, ids=tmp_path / "ids.txt", existing="overwrite")
    assert labels_of(folder) == [1, 3]
    report = wkwdask.meshes(cells, min_voxels=7, cell=12, existing="overwrite")
    assert labels_of(folder) == [1, 2]
    assert "1 label smaller than min_voxels: 3" in report.note


def test_mapped_labels_share_a_mesh(tmp_path, cells):
    folder = tmp_path / "cells" / "mesh"
    wkwdask.meshes(cells, mapping={1: LARGE, 3: LARGE}, cell=12, error=0)
    assert labels_of(folder) == [2, LARGE]
    assert (inside(folder, LARGE) == np.isin(boxes(), [1, 3])).all()
    wkwdask.meshes(cells, mapping={1: 7, 3: 7}, ids=[7], cell=12, existing="overwrite")
    assert labels_of(folder) == [7]


def test_merger_mode_reports_nodes_on_no_label(tmp_path, cells):
    x, y, z = OFFSET
    nodes = "".join(
        f'<node id="{n}" x="{x + a}" y="{y + b}" z="{z + c}" radius="1"/>'
        for n, (a, b, c) in enumerate([(4, 5, 5), (4, 16, 5), (0, 0, 0), (900, 0, 0)], 1)
    )
    (tmp_path / "merged.nml").write_text(
        f'<things><thing id="1" name="t"><nodes>{nodes}</nodes><edges/></thing></things>'
    )
    report = wkwdask.meshes(cells, mapping=tmp_path / "merged.nml", cell=12)
    assert labels_of(tmp_path / "cells" / "mesh") == [1, 3]
    assert report.note.endswith("; 2 of 4 nodes lie on no segment")


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.uint64])
def test_types_of_labels(tmp_path, dtype):
    labels = boxes(dtype)
    largest = min(np.iinfo(dtype).max, 2**64 - 3)
    labels[labels == 2] = largest
    url = save(tmp_path / "v", labels, offset=(-40, 7, -1))
    wkwdask.meshes(url, error=0, cell=16)
    assert labels_of(tmp_path / "v" / "mesh") == [1, 3, largest]
    found = inside(tmp_path / "v" / "mesh", largest, offset=(-40, 7, -1))
    assert (found == (labels == largest)).all()


@pytest.mark.parametrize("cell", [12, 100])
def test_open_at_the_border(tmp_path, cells, cell):
    report = wkwdask.meshes(cells, close=False, cell=cell)
    folder = tmp_path / "cells" / "mesh"
    assert num_open_edges(*read_level(folder, 1, 0)) == 0
    assert num_open_edges(*read_level(folder, 2, 0)) > 0
    # the centres of the last voxels
    assert read_level(folder, 2, 0)[0][:, 0].max() == pytest.approx((OFFSET[0] + 39.5) * 8)
    assert report.note.startswith("3 labels;")


@pytest.mark.parametrize("close", [True, False])
@pytest.mark.parametrize("cell", [5, 10, 40])
def test_every_voxel_of_a_label_counts(tmp_path, close, cell):
    labels = np.random.default_rng(0).integers(0, 5, SHAPE).astype(np.uint32)
    labels[-1], labels[:, -1] = 5, 6  # layers that no other label has
    url = save(tmp_path / "v", labels)
    report = wkwdask.meshes(
        url, close=close, cell=cell, lods=1, error=0, min_voxels=600, segment_properties=True
    )
    ids, voxels = (array[1:].tolist() for array in np.unique(labels, return_counts=True))
    assert voxels[4:] == [29 * 20, 40 * 20]
    document = json.loads((tmp_path / "v" / "mesh" / "properties" / "info").read_text())
    assert document["inline"]["ids"] == [str(label) for label in ids if label != 5]
    (found,) = document["inline"]["properties"]
    assert found["values"] == voxels[:4] + voxels[5:]
    assert "1 label smaller than min_voxels: 5" in report.note


def test_a_label_without_a_surface_is_named(tmp_path):
    url = save(tmp_path / "v", np.full(SHAPE, 4, np.uint32))
    report = wkwdask.meshes(url, close=False, cell=12)
    assert report.note.startswith("0 labels;")
    assert "1 label without a surface: 4" in report.note


def test_a_part_of_the_volume(tmp_path, cells):
    where = [(16, 12, 9), (30, 28, 19)]
    wkwdask.meshes(cells, where=where, cell=7, error=0)
    labels = np.zeros(SHAPE, np.uint32)
    part = tuple(slice(a - o, b - o) for a, b, o in zip(*where, OFFSET, strict=True))
    labels[part] = boxes()[part]
    folder = tmp_path / "cells" / "mesh"
    assert labels_of(folder) == [1, 2]
    for label in (1, 2):
        assert (inside(folder, label) == (labels == label)).all()


def test_levels_of_detail(tmp_path, cells):
    folder = tmp_path / "cells" / "mesh"
    wkwdask.meshes(cells, cell=12, lods=2)
    assert num_levels(folder, 1) == 2
    many = [len(read_level(folder, 1, lod)[1]) for lod in (0, 1)]
    wkwdask.meshes(cells, cell=12, lods=2, reduction=1, existing="overwrite")
    few = [len(read_level(folder, 1, lod)[1]) for lod in (0, 1)]
    assert many[0] == few[0] == few[1] > many[1]


def test_fragments_of_coarse_levels_have_few_faces(tmp_path, monkeypatch):
    x, y, z = np.ogrid[-22:22, -22:22, -22:22]
    url = save(tmp_path / "v", (x * x + y * y + z * z < 400).astype(np.uint8))
    most = []
    for limit in (1 << 20, 100):
        monkeypatch.setattr(tasks, "_MOST_FACES", limit)
        with dask.config.set(scheduler="synchronous"):
            wkwdask.meshes(url, cell=23, error=0.1, existing="overwrite")
        fragments = read_fragments(tmp_path / "v" / "mesh", 1)
        most.append(max(len(faces) for lod, _, _, faces in fragments if lod == 1))
        assert num_open_edges(*read_level(tmp_path / "v" / "mesh", 1, 1)) == 0
    assert most[1] < most[0] / 1.5, most


def sponge(count):
    """Return a label that fills so many tiles along x and y like a sponge."""
    from scipy.ndimage import gaussian_filter

    noise = np.random.default_rng(1).normal(size=(24, 24, 12))
    tile = (gaussian_filter(noise, 1, mode="wrap") > 0).astype(np.uint8)
    return np.tile(tile, (count, count, 1))


@pytest.fixture
def peaks(monkeypatch):
    """Peak of the memory of joins, by level."""
    found, join = {}, tasks.Meshing.join_cells

    def watched(self, lod, *arguments):
        tracemalloc.start()
        join(self, lod, *arguments)
        found[lod] = max(found.get(lod, 0), tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()

    monkeypatch.setattr(tasks.Meshing, "join_cells", watched)
    return found


def test_the_memory_of_joins_does_not_grow_with_a_label(tmp_path, monkeypatch, peaks):
    """The faces of a coarse fragment are bounded, except those at its planes: without the bound a
    sponge takes ten times as much memory in its coarsest level as in the first join."""
    monkeypatch.setattr(tasks, "_MOST_FACES", 500)
    url = save(tmp_path / "v", sponge(4))
    with dask.config.set(scheduler="synchronous"):
        wkwdask.meshes(url, cell=13, reduction=1)
    assert len(peaks) == 3
    assert max(peaks.values()) < 2 * peaks[1], peaks


def test_levels_end_before_fragments_are_large(tmp_path, monkeypatch, peaks):
    """No fragment has more faces than the bound, so the memory of joins is the same for labels of
    any extent. A level that one cell lacks has no fragment in any cell."""
    monkeypatch.setattr(tasks, "MOST_FRAGMENT_FACES", 20_000)
    of_extents = []
    for count in (2, 4):
        labels = sponge(count)
        labels[:, :4, :4] = 2
        labels[60:] *= labels[60:] == 2  # the sponge has few faces in cells at its end
        url, folder = save(tmp_path / f"{count}", labels), tmp_path / f"{count}" / "mesh"
        peaks.clear()
        with dask.config.set(scheduler="synchronous"):
            report = wkwdask.meshes(url, cell=13, error=0)
        of_extents.append(max(peaks.values()))
        assert "1 label without coarse levels, which would have more than" in report.note
        assert report.note.endswith(" faces in a cell: 1")
        assert [num_levels(folder, label) for label in (1, 2)] == [2, len(peaks) + 1]
        assert max(len(faces) for *_, faces in read_fragments(folder, 1)) <= 20_000
        for label, lod in ((1, 0), (1, 1), (2, len(peaks))):
            assert num_open_edges(*read_level(folder, label, lod)) == 0
        assert wkwdask.verify(url).is_sound
    assert of_extents[1] < 1.2 * of_extents[0], of_extents


def test_a_surface_that_would_vanish_is_kept(tmp_path, cells, monkeypatch):
    def lose_all(self, surface, error, least):
        return type(surface)(surface.vertices[:0], surface.faces[:0])

    monkeypatch.setattr(Simplifier, "_by_pyfqmr", lose_all)
    with dask.config.set(scheduler="synchronous"):
        report = wkwdask.meshes(cells, cell=12)
    assert "surfaces not simplified, since pyfqmr lost all faces or a vertex" in report.note
    for label in (1, 2):
        for lod in range(3):
            assert num_open_edges(*read_level(tmp_path / "cells" / "mesh", label, lod)) == 0


def test_the_estimate_writes_nothing(tmp_path, cells):
    before = [*tmp_path.rglob("*")]
    planned = wkwdask.meshes(cells, cell=12, dry_run=True)
    assert [*tmp_path.rglob("*")] == before
    assert (planned.voxels, planned.cells, planned.lods) == (24000, 24, 3)
    assert planned.path == str(tmp_path / "cells" / "mesh")
    assert "24 cells of 12 x 12 x 12, 3 levels of detail; about" in str(planned)


@pytest.mark.parametrize(
    "options", [{}, {"ids": [1, 3]}, {"mapping": {1: 2, 3: 2}}, {"mapping": {1: 7}, "ids": [7]}]
)
def test_the_estimate_is_near(tmp_path, options):
    """Faces are counted in all cells of a small volume, and simplified in some of them."""
    labels = sponge(1).repeat(3, 0).repeat(3, 1).repeat(3, 2)
    labels *= 1 + np.arange(72, dtype=np.uint8)[:, np.newaxis, np.newaxis] // 25
    url = save(tmp_path / "v", labels)
    planned = wkwdask.meshes(url, cell=24, dry_run=True, **options)
    report = wkwdask.meshes(url, cell=24, sharded=False, **options)
    raw, faces = (int(report.note.split()[n].replace(",", "")) for n in (2, 6))
    assert planned.raw_faces == raw
    assert planned.faces == pytest.approx(faces, rel=0.2)
    nbytes = sum(path.stat().st_size for path in (tmp_path / "v" / "mesh").glob("[0-9]"))
    assert 0.8 * nbytes < planned.nbytes < 1.9 * nbytes  # more than in larger cells
    finest = wkwdask.meshes(url, cell=24, dry_run=True, lods=1, existing="overwrite", **options)
    assert planned.nbytes > 1.5 * finest.nbytes


def test_the_estimate_of_a_volume_without_labels(tmp_path):
    url = save(tmp_path / "v", np.zeros((20, 20, 20), np.uint8))
    planned = wkwdask.meshes(url, dry_run=True)
    assert (planned.cells, planned.raw_faces, planned.faces, planned.nbytes) == (0, 0, 0, 0)
    assert wkwdask.meshes(url).note.startswith("0 labels")


@pytest.mark.parametrize("cell", [96, 100, 128])
def test_the_estimate_simplifies_what_it_counts(tmp_path, cell):
    """Cells of 96 voxels are no whole number of small ones of 64."""
    labels = np.zeros((128, 128, 128), np.uint8)
    labels[105:125, 105:125, 105:125] = 1
    planned = wkwdask.meshes(save(tmp_path / "v", labels), cell=cell, dry_run=True)
    assert planned.raw_faces > planned.faces > 0
    assert planned.nbytes > 0


def test_the_estimate_counts_faces_anywhere(tmp_path, monkeypatch):
    """With 125 cells, every 10th of them lies in two planes."""
    url, seen, counted = save(tmp_path / "v", np.ones((39, 39, 39), np.uint8)), [], plan._num_faces

    def watched(meshing, cell):
        seen.append(cell)
        return counted(meshing, cell)

    monkeypatch.setattr(plan, "_num_faces", watched)
    monkeypatch.setattr(plan, "_SAMPLE", 8)
    monkeypatch.setattr(plan, "_SAMPLES", 12)
    assert wkwdask.meshes(url, cell=8, dry_run=True).cells == 125
    assert len(seen) == len(set(seen)) == 12
    assert all(len({cell[axis] for cell in seen}) > 2 for axis in range(3))


# ------------------------------------------------------------------------------------------------
# jobs


def test_all_runners_make_the_same(tmp_path, cells, client):
    folder = tmp_path / "cells" / "mesh"
    wkwdask.meshes(cells, cell=12)
    expected = files_of(folder)
    for scheduler in ("synchronous", "threads", "processes"):
        with client.as_current(), dask.config.set(scheduler=scheduler):
            wkwdask.meshes(cells, cell=12, existing="overwrite")
        assert files_of(folder) == expected


@pytest.mark.parametrize("after", [5, 20, 25, 28, 30])
def test_the_same_call_resumes(tmp_path, cells, after):
    shutil.copytree(tmp_path / "cells", tmp_path / "whole")
    log = tmp_path / "log"
    with dask.config.set(scheduler="synchronous"):
        wkwdask.meshes(f"precomputed://{tmp_path / 'whole'}", cell=12)
        with pytest.raises(StopError), stopping(log, after, StopError()):
            wkwdask.meshes(cells, cell=12)
        assert "mesh" not in json.loads((tmp_path / "cells" / "info").read_bytes())
        assert not (tmp_path / "cells" / "mesh").exists()
        with pytest.raises(ResumeError, match="cell was 12, is 13"):
            wkwdask.meshes(cells, cell=13)
        status = run_here("status", tmp_path / "cells")
        assert "meshes into" in status.stdout
        with stopping(log, 1000, StopError()):
            wkwdask.meshes(cells, cell=12)
    begun = [line for line in log.read_text().splitlines() if line.startswith("begin")]
    assert len(begun) == len(set(begun))
    assert files_of(tmp_path / "cells" / "mesh") == files_of(tmp_path / "whole" / "mesh")
    assert leftovers(tmp_path / "cells") == []


def test_damaged_scratch_files_are_made_again(tmp_path, cells):
    shutil.copytree(tmp_path / "cells", tmp_path / "whole")
    wkwdask.meshes(f"precomputed://{tmp_path / 'whole'}", cell=12)
    with (
        dask.config.set(scheduler="synchronous"),
        pytest.raises(StopError),
        stopping(tmp_path / "log", 30, StopError()),
    ):
        wkwdask.meshes(cells, cell=12)
    first, second, third = sorted(
        (tmp_path / "cells").rglob("lod*"), key=lambda path: -path.stat().st_size
    )[:3]
    first.write_bytes(first.read_bytes()[:-9])
    second.write_bytes(bytes([second.read_bytes()[0] ^ 1]) + second.read_bytes()[1:])
    third.unlink()
    wkwdask.meshes(cells, cell=12)
    assert files_of(tmp_path / "cells" / "mesh") == files_of(tmp_path / "whole" / "mesh")


def test_a_changed_source_is_not_resumed(tmp_path, cells):
    with (
        dask.config.set(scheduler="synchronous"),
        pytest.raises(StopError),
        stopping(tmp_path / "log", 20, StopError()),
    ):
        wkwdask.meshes(cells, cell=12)
    changed = boxes()
    changed[20, 20, 10] = 9
    save(tmp_path / "cells", changed, existing="overwrite")
    with pytest.raises(ResumeError):
        wkwdask.meshes(cells, cell=12)
    with pytest.warns(wkwdask.errors.DiscardWarning):
        wkwdask.meshes(cells, cell=12, existing="restart")
    assert labels_of(tmp_path / "cells" / "mesh") == [1, 2, 3, 9]


def test_a_source_that_changes_while_it_is_read_is_an_error(tmp_path, cells):
    """Cells that were read before would not fit those that are read after it."""

    def write():
        voxel = np.full((1, 1, 1), 9, wkwdask.open(cells).dtype)
        low = np.add(OFFSET, (20, 20, 10))
        wkwdask.save(voxel, cells, region=(low.tolist(), (low + 1).tolist()))

    with (
        dask.config.set(scheduler="synchronous"),
        before_task(20, write),
        pytest.raises(IncompleteWriteError, match="was changed while it was read"),
    ):
        wkwdask.meshes(cells, cell=12)
    assert not (tmp_path / "cells" / "mesh").exists()
    with pytest.raises(ResumeError):
        wkwdask.meshes(cells, cell=12)
    with pytest.warns(wkwdask.errors.DiscardWarning):
        wkwdask.meshes(cells, cell=12, existing="restart")
    assert labels_of(tmp_path / "cells" / "mesh") == [1, 2, 3, 9]


def test_interrupted_jobs_are_cancelled_and_cleaned(tmp_path, cells):
    with (
        dask.config.set(scheduler="synchronous"),
        pytest.raises(StopError),
        stopping(tmp_path / "log", 20, StopError()),
    ):
        wkwdask.meshes(cells, cell=12)
    cancelled = run_here("cancel", tmp_path / "cells", "--discard")
    assert cancelled.returncode == 0, cancelled.stderr
    assert leftovers(tmp_path / "cells") == []


def test_one_job_at_a_time(tmp_path, cells):
    seen = []

    def second(task):
        if not seen:
            seen.append(task)
            with pytest.raises(LockedError):
                wkwdask.meshes(cells, cell=12)
        return task.run()

    with dask.config.set(scheduler="synchronous"), tasks_run_by(second):
        wkwdask.meshes(cells, cell=12)
    assert len(seen) == 1


# ------------------------------------------------------------------------------------------------
# errors


def test_existing_folders(tmp_path, cells):
    folder = tmp_path / "cells"
    wkwdask.meshes(cells)
    with pytest.raises(ExistsError, match="mesh: already exists"):
        wkwdask.meshes(cells)
    with pytest.raises(ExistsError, match="info: names the meshes in 'mesh'"):
        wkwdask.meshes(cells, folder / "other")
    assert not (folder / "other").exists()
    wkwdask.meshes(cells, folder / "other", existing="overwrite")
    assert json.loads((folder / "info").read_bytes())["mesh"] == "other"
    (folder / "other" / "mine.txt").write_text("")
    with pytest.raises(ExistsError, match=r"something else \(mine.txt\)"):
        wkwdask.meshes(cells, folder / "other", existing="overwrite")
    with pytest.raises(ValueError, match="is a volume"):
        wkwdask.meshes(cells, folder / "8_6_30", existing="overwrite")
    (folder / "mine.txt").write_text("")
    with pytest.raises(ExistsError, match="is a file"):
        wkwdask.meshes(cells, folder / "mine.txt")
    (folder / "link").symlink_to(folder / "mesh")
    with pytest.raises(ExistsError, match="symbolic link"):
        wkwdask.meshes(cells, folder / "link", existing="overwrite")


def test_wrong_targets(tmp_path, cells):
    image = save(tmp_path / "image", boxes(np.uint8), category="color")
    with pytest.raises(ValueError, match="image/info: expected a segmentation, found of type"):
        wkwdask.meshes(cells, tmp_path / "image" / "mesh")
    with pytest.raises(MissingError, match="not a Neuroglancer precomputed volume"):
        wkwdask.meshes(cells, tmp_path / "nothing" / "mesh")
    with pytest.raises(ValueError, match="is a volume; name a folder for meshes in it"):
        wkwdask.meshes(cells, cells)
    with pytest.raises(UnsupportedError, match="remote locations are read-only"):
        wkwdask.meshes(cells, "precomputed://https://host/cells/mesh")
    wkwdask.save(boxes(), tmp_path / "seg" / "1", offset=OFFSET)
    with pytest.raises(ValueError, match="name the folder of the meshes"):
        wkwdask.meshes(tmp_path / "seg" / "1")
    del image


@pytest.mark.parametrize(
    ("options", "error", "match"),
    [
        ({"simplifier": "other"}, ValueError, "simplifier must be 'pyfqmr' or 'meshoptimizer'"),
        ({"lods": 0}, ValueError, "lods must be at least 1, got 0"),
        ({"lods": "2"}, TypeError, "lods must be a whole number, got '2'"),
        ({"error": -1}, ValueError, "error must be a number of voxels"),
        ({"error": "0.5"}, TypeError, "error must be a number, got '0.5'"),
        ({"reduction": 0.5}, ValueError, "reduction must be at least 1"),
        ({"reduction": {}}, TypeError, "reduction must be a number, got {}"),
        ({"cell": 1}, ValueError, "cell must be from 2 to 1000"),
        ({"cell": (64, 64, 32)}, TypeError, r"cell must be a whole number, got \(64, 64, 32\)"),
        ({"cell": 12.5}, TypeError, "cell must be a whole number, got 12.5"),
        ({"min_voxels": -1}, ValueError, "min_voxels must be at least 0, got -1"),
        ({"min_voxels": None}, TypeError, "min_voxels must be a whole number, got None"),
        ({"where": [(900, 0, 0), (901, 1, 1)]}, BoundsError, "lies outside"),
        ({"where": 5}, ValueError, "where is a pair of corners .* got 5"),
        ({"ids": [-1]}, ValueError, "is not an id"),
        ({"ids": "missing.txt"}, MissingError, "no such file"),
        ({"mapping": {0: 5}}, ValueError, "maps id 0, which is background"),
        ({"mapping": 3}, TypeError, "a mapping is"),
        ({"ids": []}, ValueError, "ids: lists no id above 0"),
        ({"ids": [0, 0]}, ValueError, "ids: lists no id above 0"),
    ],
)
def test_wrong_options(cells, options, error, match):
    with pytest.raises(error, match=match):
        wkwdask.meshes(cells, **options)


def test_an_empty_file_of_ids_replaces_no_meshes(tmp_path, cells):
    (tmp_path / "ids.txt").write_text("\n")
    with pytest.raises(ValueError, match=r"ids\.txt: lists no id above 0"):
        wkwdask.meshes(cells, ids=tmp_path / "ids.txt", existing="overwrite")


@pytest.mark.parametrize("line", ["x4", "-4", "4.0", str(2**64), 5000 * "1"])
def test_wrong_files_of_ids(tmp_path, cells, line):
    (tmp_path / "ids.txt").write_text(f"3\n{line}\n")
    with pytest.raises(FormatError, match=f"line 2: '{line[:40]}': expected one id from 0 to 2"):
        wkwdask.meshes(cells, ids=tmp_path / "ids.txt")


@pytest.mark.parametrize("mapping", [None, {1: 2**31}, {1: 2**63}])
def test_wrong_labels(tmp_path, cells, mapping):
    negative = save(tmp_path / "negative", np.full(SHAPE, -2, np.int32))
    with pytest.raises(ValueError, match=r"label -2 in .*; labels are not negative"):
        wkwdask.meshes(negative, mapping=mapping)
    floats = save(tmp_path / "floats", np.ones(SHAPE, np.float32), category="color")
    with pytest.raises(TypeError, match="labels are integers in one channel"):
        wkwdask.meshes(floats, tmp_path / "cells" / "mesh")


@pytest.mark.parametrize(
    ("package", "options", "extra"),
    [
        ("zmesh", {}, "meshes"),
        ("DracoPy", {}, "meshes"),
        ("pyfqmr", {}, "meshes"),
        ("meshoptimizer", {"simplifier": "meshoptimizer"}, "meshes-fast"),
    ],
)
def test_missing_packages_are_named(cells, monkeypatch, package, options, extra):
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, "wkwdask.meshing.fast_simplifier", raising=False)
    with pytest.raises(ModuleNotFoundError, match=rf"{package}.*pip install 'wkwdask\[{extra}\]'"):
        wkwdask.meshes(cells, **options)


def test_labels_without_a_voxel_size(tmp_path):
    wkwdask.write(tmp_path / "cells" / "1", (0, 0, 0), boxes())
    document = {"type": "segmentation", "data_type": "uint32", "num_channels": 1, "scales": []}
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume" / "info").write_text(json.dumps(document))
    with pytest.raises(MissingError, match=r"cells/1: states no voxel size, .*volume/mesh"):
        wkwdask.meshes(tmp_path / "cells" / "1", f"precomputed://{tmp_path}/volume/mesh")


@pytest.mark.needs("meshoptimizer")
def test_other_versions_are_refused(cells, monkeypatch):
    monkeypatch.delitem(sys.modules, "wkwdask.meshing.fast_simplifier", raising=False)
    monkeypatch.setattr("importlib.metadata.version", lambda _: "0.3")
    with pytest.raises(
        UnsupportedError, match=r"meshoptimizer 0.3 is installed, and only 0.2.30a0"
    ):
        wkwdask.meshes(cells, simplifier="meshoptimizer")


def test_the_command(tmp_path, cells):
    (tmp_path / "ids.txt").write_text("1\n")
    planned = run_here("meshes", cells, "--dry-run", "--cell", "12", "--json")
    assert json.loads(planned.stdout)["cells"] == 24
    done = run_here("meshes", cells, "--ids", tmp_path / "ids.txt", "--cell", "12", "--lods", "2")
    assert done.returncode == 0, done.stderr
    assert "1 label; " in done.stdout
    assert labels_of(tmp_path / "cells" / "mesh") == [1]
    again = run_here("meshes", cells)
    assert again.returncode == 1
    assert "--overwrite" in again.stderr


def meshes_in(url):
    """Return the content of the files of meshes in a bucket."""
    folder = url.removeprefix("precomputed://")
    (info,) = store_at(folder).read_whole(["info"], 1 << 16)
    store = store_at(f"{folder}/{json.loads(info)['mesh']}")
    names = [name for name in store.names() if not name.startswith(".")]
    return dict(zip(names, store.read_whole(names, 1 << 24), strict=True))


def test_runs_that_could_not_be_deleted_are_not_taken_for_those_of_another_level(monkeypatch):
    """In a bucket, an object that exists stays."""
    url = "precomputed://memory://runs/left"
    leave, levels = sorted_runs.SortedRuns.__exit__, []

    def fail(runs, *error):
        levels.append(error)
        if len(levels) == 2:
            raise OSError(5, "cannot be deleted")
        return leave(runs, *error)

    save("memory://runs/left", boxes())
    with dask.config.set(scheduler="synchronous"):
        wkwdask.meshes(url, cell=12)
        expected = meshes_in(url)
        monkeypatch.setattr(sorted_runs.SortedRuns, "__exit__", fail)
        with pytest.raises(OSError, match="cannot be deleted"):
            wkwdask.meshes(url, cell=12, existing="overwrite")
        monkeypatch.undo()
        wkwdask.meshes(url, cell=12, existing="overwrite")
    assert meshes_in(url) == expected
