"""The harness on tiny volumes: every installed tool runs, results agree, and rows are printed. No
timing is asserted."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from itertools import pairwise, product
from pathlib import Path

import dask.config
import numpy as np
import pytest

from . import against_command, command, levels_command
from .cases import all_cases
from .client import Worker
from .data import Data, prepare
from .measure import Outcome, Sample, measure
from .memory import Memory
from .numbering import SparseVolume
from .race import NOT_INSTALLED, Faster, OfLimit, Race, Scaling, Unit, Within, run_units
from .serving import Server, create
from .start import Start
from .table import VOXELS_DIFFER, Row, format_table
from .tasks import Tasks
from .works.base import boxes, digest, read_mag

pytestmark = pytest.mark.one_in(3)

_SIZE = 64


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    random = np.random.default_rng(0)
    coarse = random.integers(1, 4, (_SIZE // 8,) * 3, dtype=np.uint32)
    volumes = {
        "em": np.asfortranarray(random.integers(0, 256, (_SIZE,) * 3, dtype=np.uint8)),
        "seg": np.asfortranarray(coarse.repeat(8, 0).repeat(8, 1).repeat(8, 2)),
    }
    return prepare(tmp_path_factory.mktemp("benchmarks"), _SIZE, volumes)


def _race(data: Data, name: str) -> Race:
    """Find a race, and write its volumes."""
    race = next(case for case in all_cases(data) if case.name == name)
    for volume in race.volumes:
        volume.make()
    return race


def _only(race: Race, *works: str) -> list[Outcome]:
    """Measure the last two units of a race with one of the works once; reads make one pass."""
    units = [
        dataclasses.replace(
            unit, options=unit.options | ({"passes": 1} if "passes" in unit.options else {})
        )
        for unit in race.units
    ]
    return run_units([unit for unit in units if unit.work in works][-2:], 1)


def _needs(package: str) -> None:
    """Skip where a peer is not installed. It is not imported here, since its warnings would be
    errors."""
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"{package} is not installed")


@pytest.mark.parametrize("name", ["read/em/box32", "read/seg/open"])
@pytest.mark.needs("wkw")
def test_reads_are_equal(data, name):
    outcomes = _only(_race(data, name), "ours.Read", "ours.OpenCompute", "reference.Read")
    assert [outcome.problem for outcome in outcomes] == [""] * len(outcomes)
    assert outcomes[0].digests
    assert all(
        outcome.digests == outcomes[0].digests and outcome.nbytes == outcomes[0].nbytes
        for outcome in outcomes
    )


@pytest.mark.parametrize(
    "name", ["slices/em/xy", "slices/seg/xz", "slices/em/yz", "slices/em/yz/next"]
)
@pytest.mark.needs("wkw", "tensorstore")
def test_slices_are_equal(data, name):
    outcomes = run_units(_race(data, name).units, 1)
    assert [outcome.problem for outcome in outcomes] == [""] * 4
    assert len(outcomes[0].digests) == 50
    assert all(
        outcome.digests == outcomes[0].digests and outcome.nbytes == outcomes[0].nbytes
        for outcome in outcomes
    )


@pytest.mark.needs("wkw")
def test_slices_on_two_threads_are_equal(data):
    two, one = run_units(_race(data, "slices/em/threads").units, 1)
    assert (two.problem, one.problem) == ("", "")
    assert len(set(two.digests)) == 32
    assert two.digests == one.digests
    assert two.nbytes == one.nbytes == 32 * (2 * data.size) ** 2


@pytest.mark.parametrize(
    ("name", "package"),
    [("labels/seg", "cc3d"), ("labels/seg", "numpy"), ("histogram/em", "numpy")],
)
@pytest.mark.needs("wkw")
def test_analyses_are_equal(data, name, package):
    _needs(package)
    units = _race(data, name).units
    outcomes = run_units([units[0], *(unit for unit in units if unit.label.startswith(package))], 1)
    assert [outcome.problem for outcome in outcomes] == ["", "", ""]
    for ours, theirs in pairwise(outcomes):
        assert all(a == b for a, b in zip(ours.digests, theirs.digests, strict=False))
        assert ours.nbytes == theirs.nbytes
        assert theirs.digests


@pytest.mark.needs("wkw", "cloudvolume", "zmesh", "DracoPy", "pyfqmr")
def test_meshes_are_written(data):
    _needs("igneous")
    outcomes = run_units(_race(data, "meshes/seg/pyfqmr").units, 1)
    assert [outcome.problem for outcome in outcomes] == ["", ""]
    assert all(outcome.written > 0 for outcome in outcomes)


@pytest.mark.needs("wkw")
def test_volumes_are_mirrored_cut_and_split(data):
    real = read_mag(data.cube("em").mag, _SIZE)
    larger, split = data.cube("em", 2 * _SIZE), data.cube("em", file_vx=32)
    for cube in (larger, split):
        cube.make()
        cube.make()
    mirrored = np.pad(real[0], (0, _SIZE), "symmetric")
    np.testing.assert_array_equal(read_mag(larger.mag, larger.edge)[0], mirrored)
    np.testing.assert_array_equal(read_mag(split.mag, _SIZE), real)
    assert (
        len(list(Path(larger.mag).rglob("x*.wkw"))),
        len(list(Path(split.mag).rglob("x*.wkw"))),
    ) == (1, 8)
    assert (larger.nbytes, split.nbytes) == (mirrored.nbytes, real.nbytes)


@pytest.mark.parametrize("dense", [False, True])
@pytest.mark.needs("wkw")
def test_scattered_files_hold_labels(data, dense):
    volume = data.scattered(dense=dense)
    volume.make()
    assert len(set(volume.files())) == len(list(Path(volume.dataset).rglob("x*.wkw"))) == 41
    assert all(index in set(product(*map(range, volume.grid))) for index in volume.files())
    (layer,) = json.loads((Path(volume.dataset) / "datasource-properties.json").read_text())[
        "dataLayers"
    ]
    assert layer["boundingBox"]["width"] == volume.grid[0] * volume.file_vx
    assert volume.nbytes == 41 * volume.file_vx**3


@pytest.mark.parametrize(
    ("name", "package", "work", "mags"),
    [
        ("pyramid/em/lz4/1", "tensorstore", "with_tensorstore.Pyramid", 4),
        # it makes no mag smaller than a chunk
        ("pyramid/seg/lz4/2", "igneous", "with_igneous.Pyramid", 3),
        ("pyramid/em/lz4hc/padded", "webknossos", "with_webknossos.Pyramid", 4),
        ("pyramid/em/lz4hc/2", "wkw", "with_coarsen.Pyramid", 4),  # by np.median, on two threads
        ("pyramid/seg/lz4hc/1", "wkw", "with_coarsen.Pyramid", 4),
    ],
)
def test_pyramids_are_equal(data, name, package, work, mags):
    _needs(package)
    units = _race(data, name).units
    peer = next(unit for unit in units if unit.work == work)
    if name.endswith("padded"):
        # files of 1024^3 take a minute; a volume of 64^3 does not fill these either
        peer = dataclasses.replace(peer, options=peer.options | {"file_vx": 2 * _SIZE})
    ours, theirs = run_units([units[0], peer], 1)
    assert (ours.problem, theirs.problem) == ("", "")
    assert (len(ours.digests), len(theirs.digests)) == (4, mags)
    # the labels are cubes of 8 voxels: no window of the first three mags has a tie that tools break
    # differently
    assert ours.digests[:mags] == theirs.digests
    assert min(ours.written, theirs.written) > 0


@pytest.mark.parametrize("name", ["pyramid/em/file-len-1", "pyramid/sparse"])
@pytest.mark.needs("wkw")
def test_files_of_many_kinds(data, name):
    race = _race(data, name)
    outcomes = run_units(race.units, 1)
    assert [outcome.problem for outcome in outcomes] == ["", ""]
    assert outcomes[0].nbytes == outcomes[1].nbytes
    assert outcomes[0].digests == outcomes[1].digests
    (row,) = race.conclusions[0].rows(race.work, outcomes)
    assert row.met is not None


@pytest.mark.parametrize(
    "name", ["rechunk/em/split", "rechunk/seg/block-len", "rechunk/seg/lz4hc-to-lz4"]
)
@pytest.mark.needs("webknossos")
def test_rechunked_mags_are_equal(data, name):
    race = _race(data, name)
    outcomes = run_units(race.units, 1)
    assert [outcome.problem for outcome in outcomes] == [""] * len(outcomes)
    assert all(
        outcome.digests == outcomes[0].digests and outcome.digests and outcome.written > 0
        for outcome in outcomes
    )
    rows = [row for conclusion in race.conclusions for row in conclusion.rows(race.work, outcomes)]
    assert all(row.voxels == "same voxels" and row.note.startswith("peak ") for row in rows)


@pytest.fixture
def own_settings():
    """Restore the settings of dask that works change in this process."""
    with dask.config.set(scheduler="synchronous"):
        yield


@pytest.mark.filterwarnings("ignore")  # those of the peers
@pytest.mark.parametrize(
    ("work", "kind"),
    [
        *(("write", kind) for kind in ("em/sharded", "seg/files")),
        *(("read", kind) for kind in ("em/files", "seg/sharded")),
        *(("pyramid", kind) for kind in ("em/sharded", "seg/sharded", "seg/files")),
        *(("convert", kind) for kind in ("em/files", "seg/sharded")),
    ],
)
@pytest.mark.needs("wkw")
def test_precomputed_volumes_are_equal(data, own_settings, work, kind):
    for package in (
        "wkw",
        "tensorstore",
        "cloudvolume",
        *(["igneous"] if work == "pyramid" else []),
    ):
        _needs(package)
    found = {}
    for unit in _race(data, f"precomputed/{work}/{kind}").units:
        work_object = create(unit.work, unit.options)
        sample = measure(work_object)
        assert (sample.written > 0) == (work != "read")
        found[unit.work.split("_")[0]] = work_object.digests()
    ours = found.pop("ours")
    assert len(ours) == (4 if work == "pyramid" else 1)
    theirs = found.pop("igneous", None)
    assert all(digests == ours for digests in found.values())
    if theirs is not None:
        # it may make no scale smaller than a chunk; its mean is rounded down, and in the fourth
        # scale its mode has other ties
        assert len(theirs) >= 3
        assert (theirs[:3] == ours[:3]) == kind.startswith("seg")


@pytest.mark.parametrize(
    "name",
    [
        "zarr/view/em/box128",
        "zarr/export/seg",
        "zarr/pyramid/em/zstd",
        "zarr/pyramid/seg/blosc-lz4",
        "zarr/rechunk/em/blosc-lz4",
    ],
)
def test_zarr_is_equal(data, own_settings, name):
    """Slices of both views, exports, pyramids and copies, in this process; webknossos and ngff-zarr
    are left out, since they take long to start."""
    del own_settings
    for package in ("wkw", "zarr", "tensorstore"):
        _needs(package)
    from zarr import config

    with config.set({"async.concurrency": 1, "threading.max_workers": 1}):  # as works do, for good
        units = [
            unit
            for unit in _race(data, name).units
            if unit.work.startswith(("ours", "with_zarr", "tensorstore_zarr"))
        ]
        found = []
        for unit in units:
            work_object = create(
                unit.work,
                unit.options | ({"passes": 1, "count": 3} if "passes" in unit.options else {}),
            )
            assert (measure(work_object).written > 0) == ("view" not in name)
            found.append(work_object.digests())
    assert len(found) == (3 if "view" in name or "pyramid" in name else 2)
    assert found[0]
    assert all(digests == found[0] for digests in found)


@pytest.mark.parametrize("name", ["zarr/pyramid/em/zstd", "zarr/pyramid/seg/blosc-lz4"])
@pytest.mark.needs("wkw", "zarr", "imagecodecs")
def test_the_limit_of_a_zarr_pyramid(data, name):
    race = _race(data, name)
    outcomes = run_units([race.units[0], race.units[-1]], 1)
    assert [outcome.problem for outcome in outcomes] == ["", ""]
    assert outcomes[1].parts().keys() == {"decode", "reduce", "encode", "read", "write"}
    (row,) = OfLimit(0, 1, 0.0, counts_files=True).rows(race.work, outcomes)
    assert row.met is True
    assert "of the limit" in row.note


@pytest.mark.parametrize(
    "name", ["remote/wkw/box", "remote/precomputed-sharded/slices", "remote/zarr/whole"]
)
def test_remote_reads_are_equal_and_counted(data, name):
    """webknossos is left out, since it takes long to start."""
    for package in ("obstore", "tensorstore"):
        _needs(package)
    race = _race(data, name)
    race = dataclasses.replace(race, units=(race.units[0], race.units["wkw" not in name]))
    (row,) = race.run(1, lambda text: None)
    if row.tool.problem == NOT_INSTALLED:
        pytest.skip("nginx is not installed")
    assert (row.tool.problem, row.against.problem) == ("", "")
    assert row.met is not None
    assert row.voxels == "same voxels"
    assert min(row.tool.requests, row.against.requests) > 0
    assert row.tool.received > 0


@pytest.mark.parametrize(
    "name", ["bucket/save/precomputed", "bucket/pyramid/zarr", "bucket/convert/zarr"]
)
def test_volumes_in_buckets_are_equal(data, name):
    cloud_volume = ("cloudvolume", "boto3") if "precomputed" in name else ()
    for package in ("moto", "obstore", "tensorstore", "zarr", *cloud_volume):
        _needs(package)
    rows = _race(data, name).run(1, lambda text: None)
    assert len(rows) == (2 if cloud_volume else 1)
    for row in rows:
        assert (row.tool.problem, row.against.problem) == ("", "")
        assert row.met is not None
        assert row.voxels != VOXELS_DIFFER
        assert min(row.tool.requests, row.against.requests) > 0


@pytest.mark.needs("wkw")
def test_served_chunks_are_counted(data):
    for package in ("wkw", "neuroglancer"):
        _needs(package)
    race = _race(data, "view/seg")
    outcomes = run_units(race.units[:2], 1)
    assert [outcome.problem for outcome in outcomes] == ["", ""]
    assert {outcome.nbytes for outcome in outcomes} == {_SIZE**3 * 4}


@pytest.mark.needs("wkw")
def test_beside_the_disk(data):
    race = _race(data, "rechunk/disk")
    outcomes = run_units(race.units, 1)
    assert [outcome.problem for outcome in outcomes] == ["", ""]
    (row,) = race.conclusions[0].rows(race.work, outcomes)
    assert row.met is not None
    assert "% of the wall speed of copying" in row.note


def test_mode_of_windows():
    from .works.with_coarsen import mode

    values = np.random.default_rng(1).integers(0, 4, (4, 6, 2), dtype=np.uint32)
    windows = values.reshape(2, 2, 3, 2, 1, 2)
    expected = [
        [[np.bincount(windows[x, :, y, :, z].ravel()).argmax() for z in range(1)] for y in range(3)]
        for x in range(2)
    ]
    np.testing.assert_array_equal(mode(windows, axis=(1, 3, 5)), expected)
    assert mode(np.array([[3, 1], [1, 3]])) == 1


@pytest.mark.long
def test_threads_and_parts(data):
    two = _race(data, "threads/em/pyramid-lz4").units[1]
    limit = next(
        unit for unit in _race(data, "pyramid/em/lz4/limit").units if unit.work == "compute.Limit"
    )
    ours, parts = run_units([two, limit], 1)
    assert (ours.problem, parts.problem) == ("", "")
    assert ours.nbytes == parts.nbytes == data.size**3
    seconds = parts.parts()
    assert set(seconds) == {"decode", "reduce", "encode", "read", "write"}
    assert parts.cpu == pytest.approx(seconds["decode"] + seconds["reduce"] + seconds["encode"])
    (row,) = OfLimit(0, 1, 1e9).rows("work", [ours, parts])
    assert "% of the limit, " in row.note
    assert row.met is False


def test_scaling_is_judged_on_idle_cores():
    one, two = Outcome("1", 1, [Sample(2.0, 2.0)]), Outcome("2", 1, [Sample(2.0, 1.0)])
    assert Scaling(0.85).rows("threads", [one, two, one, two])[0].met is True
    assert Scaling(0.85).rows("threads", [one, one, one, two])[0].met is False
    assert Scaling(0.85).rows("threads", [one, two, one, one])[0].met is None  # the cores are busy


@pytest.mark.long
def test_memory_makes_rows(data, monkeypatch):
    if not Path("/proc/self/status").is_file():
        pytest.skip("no /proc here")
    memory = Memory("memory/1", data, 1, (_SIZE, 2 * _SIZE))
    outcome, peak, before = memory._measure(_SIZE, lambda text: None)
    assert (outcome.problem, 0 < before <= peak) == ("", True)
    monkeypatch.setattr(Memory, "_measure", lambda self, size, say: (outcome, 10**6 * size, 10**6))
    rows = memory.run(1, lambda text: None)
    # small enough, but the second takes twice as much
    assert [row.met for row in rows] == [True, False]
    assert "peak 64 MB anonymous, 64 MB per worker" in rows[0].note


@pytest.mark.long
def test_starts_make_rows(data, monkeypatch):
    if not Path("/proc/self/status").is_file():
        pytest.skip("no /proc here")
    processes = Start("start", data).processes()
    chosen = {name: processes[name] for name in ("info", "first read")} | {
        "fails": dataclasses.replace(processes["info"], code="raise ValueError('so')")
    }
    chosen["large"] = dataclasses.replace(
        processes["first read"], code="memory = b'x' * (300 << 20)", peak_mb=200
    )
    monkeypatch.setattr(Start, "processes", lambda self: chosen)
    info, read, fails, large = Start("start", data).run(1, lambda text: None)
    for row in (info, read):
        assert row.tool.problem == ""
        assert len(row.tool.samples) == 1
        assert " s CPU, " in row.note
    assert fails.tool.problem == "FAILED: ValueError: so"
    assert (large.met, large.target) == (False, "<= 0.8 s CPU, <= 200 MB")
    assert format_table([info, read, fails, large])


@pytest.mark.long
def test_tasks_are_run_beside_futures(data):
    lines = []
    (row,) = Tasks("tasks", data, num_tasks=100).run(1, lines.append)
    assert [len(outcome.samples) for outcome in (row.tool, row.against)] == [1, 1]
    assert set(row.tool.parts()) == {"client", "scheduler"}
    assert "x of futures" in row.note


@pytest.mark.long
@pytest.mark.parametrize("verb", ["segment", "connected_components"])
def test_sparse_volumes_are_segmented(data, verb):
    if not Path("/proc/self/status").is_file():
        pytest.skip("no /proc here")
    (row,) = SparseVolume("objects/sparse", data, verb, blocks=2).run(1, lambda text: None)
    assert row.tool.problem == ""
    assert row.met
    assert "objects" in row.note
    assert int(row.tool.digests[0]) > 100


@pytest.mark.parametrize("guarded", [False, True])
def test_objects_of_simulated_blocks_are_numbered(data, guarded):
    options = {"folder": data.fresh("objects"), "blocks": 3, "labels": 40, "guarded": guarded}
    with Worker("ours_objects.Numbering", options) as worker:
        assert "error" not in worker.ask("measure")
        (result,) = worker.ask("digests")["digests"]
    # in each of nine rows of blocks, five labels of forty continue in the next two blocks
    assert "90 pairs of labels joined" in result


def test_components_are_those_of_dask_image(data):
    _needs("dask_image")
    outcomes = _only(_race(data, "components/em"), "ours.Components", "with_dask_image.Components")
    assert [outcome.problem for outcome in outcomes] == ["", ""]
    assert outcomes[0].digests == outcomes[1].digests


def test_missing_tool_is_shown(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert Server().answer({"ask": "setup", "name": "with_tensorstore.Pyramid", "options": {}}) == {
        "missing": True
    }
    ours = Outcome("ours", 1000, [Sample(1.0, 1.0)])
    (row,) = Faster(0, 1, 2.0).rows("work", [ours, Outcome("peer", problem=NOT_INSTALLED)])
    assert row.met is None
    assert "not installed" in format_table([row])


def test_failure_is_shown():
    (outcome,) = run_units([Unit("wkwdask", "ours.Read", {"path": "nowhere", "size": 64})], 1)
    assert outcome.problem.startswith("FAILED: ")
    assert "nowhere" in outcome.problem
    assert (
        "NoSuchWork"
        in Server().answer({"ask": "setup", "name": "ours.NoSuchWork", "options": {}})["error"]
    )


def test_conclusions():
    fast, slow = (
        Outcome(
            "a", 8_000_000, [Sample(1.0, 2.0, 5), Sample(9.0, 9.0, 5), Sample(2.0, 2.0, 5)], ["x"]
        ),
        Outcome("b", 8_000_000, [Sample(4.0, 1.0)], ["y"]),
    )
    (row,) = Faster(0, 1, 2.0).rows("work", [fast, slow])
    assert (row.ratio(), row.met, row.voxels) == (2.0, True, VOXELS_DIFFER)  # medians: 2 s and 4 s
    assert Faster(0, 1, 2.1, "ties").rows("work", [fast, slow])[0].met is False
    lines = format_table([row, Row("a longer name", slow)]).splitlines()
    assert "2.00x" in lines[3]
    assert len(lines) == 5


def test_within_looks_at_time_and_bytes():
    dense, sparse = (
        Outcome("dense", 100, [Sample(1.0, 1.0, 10)]),
        Outcome("sparse", 100, [Sample(2.0, 1.5, 21)]),
    )
    (row,) = Within(0, 1, 2.0).rows("work", [sparse, dense])
    assert (row.met, row.note) == (
        False,
        "CPU 2.00x, wall 1.50x, bytes 2.10x (1.50 s wall beside 1.00 s)",
    )
    assert Within(0, 1, 2.1).rows("work", [sparse, dense])[0].met is True


def test_a_rehearsal_is_followed_by_the_real_work(data):
    unit = next(
        unit for unit in _race(data, "pyramid/em/lz4/limit").units if unit.work == "ours.Pyramid"
    )
    with Worker(unit.work, unit.options | unit.rehearsal | {"nbytes": 5}) as worker:
        assert worker.setup["nbytes"] == 5
        assert worker.set_up(unit.work, unit.options)["nbytes"] == data.size**3


def test_command_chooses_rows(capsys):
    assert command.main(["--list", "--rows", "*"]) == 0
    names = [line.split()[0] for line in capsys.readouterr().out.splitlines()[:-1]]
    assert len(names) == len(set(names))
    assert sum(command.is_chosen(name, "read") for name in names) == 8
    assert sum(command.is_chosen(name, "pyramid/em*") for name in names) == 8
    assert all(command.is_chosen(name, "*") for name in names)
    with pytest.raises(ValueError, match="power of two"):
        command.main(["--list", "--size", "96"])


def test_boxes_and_digests():
    assert boxes(64, 32, 5) == boxes(64, 32, 5)
    assert all(
        a >= 0 and b <= 64 and b - a == 32
        for low, high in boxes(64, 32, 50)
        for a, b in zip(low, high, strict=True)
    )
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    assert digest(array) == digest(np.asfortranarray(array)) == digest(array[None])


@pytest.mark.parametrize("name", ["n5/write/em", "n5/read/seg", "n5/pyramid/em", "n5/convert/seg"])
@pytest.mark.needs("wkw", "tensorstore")
def test_n5_images_are_equal(data, name):
    outcomes = run_units(_race(data, name).units, 1)
    assert [outcome.problem for outcome in outcomes] == ["", ""]
    assert outcomes[0].digests
    assert outcomes[0].digests == outcomes[1].digests
    assert outcomes[0].nbytes == outcomes[1].nbytes


@pytest.mark.parametrize(
    "name",
    [
        "zarr/read/em/zstd/shards/box32",
        "zarr/read/seg/blosc/files/xy",
        "n5/read/seg/blosc/box64",
        "precomputed/boxes/seg/shards/box32",
        "precomputed/boxes/em/files/whole",
        "zarr/public/raw/read",
        "zarr/public/zstd/round-trip",
        "zarr/public/sharded/round-trip",
    ],
)
@pytest.mark.needs("wkw", "tensorstore", "zarr", "zarrs")
def test_parts_are_equal(data, name):
    # few of them: cloud-volume sleeps for 0.1 s in each read of a shard
    units = [
        dataclasses.replace(unit, options=unit.options | {"count": 5})
        if "count" in unit.options
        else unit
        for unit in _race(data, name).units
    ]
    outcomes = run_units(units, 1)
    assert all(outcome.problem in ("", NOT_INSTALLED) for outcome in outcomes)
    done = [outcome for outcome in outcomes if not outcome.problem]
    assert len(done) >= 3
    assert done[0].digests
    assert all(outcome.digests == done[0].digests for outcome in done)
    assert all(outcome.nbytes == done[0].nbytes for outcome in done)


@pytest.mark.parametrize("form", ["wkw", "zarr", "n5", "precomputed"])
@pytest.mark.needs("zarr", "wkw", "tensorstore")
def test_written_boxes_are_equal(data, form):
    race = _race(data, f"region/{form}")
    units = [dataclasses.replace(unit, options=unit.options | {"count": 3}) for unit in race.units]
    outcomes = run_units(units, 1)
    assert [outcome.problem for outcome in outcomes] == ["", ""]
    assert outcomes[0].digests
    assert outcomes[0].digests == outcomes[1].digests


@pytest.mark.parametrize("name", ["copy/wkw", "copy/zarr"])
@pytest.mark.needs("zarr")
def test_copies_have_the_voxels_of_their_source(data, name):
    ours, peer = run_units(_race(data, name).units, 1)
    assert (ours.problem, peer.problem) == ("", "")
    assert ours.digests == [digest(read_mag(data.cube("em").mag, _SIZE))]
    assert ours.written > 0
    assert ours.nbytes == peer.nbytes


@pytest.mark.needs("zarr")
def test_this_tree_beside_another(data):
    races = against_command.races(data, "another", str(Path(command.__file__).parents[2]))
    assert len(races) == len(against_command.ROWS)
    # read, pyramid or copy, and others: each row starts two processes
    rows = [row for race in races[::4] for row in command.run_case(race, 1, data.work)[0]]
    assert len(rows) == len(races[::4])
    assert not [row.cells() for row in rows if "FAILED" in "".join(row.cells())]
    assert all(row.voxels == "same voxels" for row in rows if row.tool.digests)
    assert f"of {len(rows)} rows" in against_command.summary(rows)


def test_levels(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    noise = np.asfortranarray(
        np.random.default_rng(0).integers(0, 256, (_SIZE,) * 3, dtype=np.uint8)
    )
    monkeypatch.setattr(
        levels_command,
        "real_data",
        lambda size: {
            "EM noise": noise[:size, :size, :size],
            "segmentation one": np.ones_like(noise),
        },
    )
    levels_command.main(["--repeat", "1", "--size", str(_SIZE), "--edge", str(_SIZE)])
    encoded, built = [
        [line.split(" | ") for line in part.splitlines() if line.startswith("| ")][2:]
        for part in capsys.readouterr().out.split("Pyramids")
    ]
    assert [row[0].strip("| ") for row in encoded] == [
        "LZ4",
        "`auto`",
        *(f"level {level}" for level in range(1, 13)),
    ]
    assert [row[0].strip("| ") for row in built] == ["LZ4", "`auto`", "level 5"]
    assert encoded[1][1].split()[1] == encoded[0][1].split()[1]  # bytes of noise, auto and LZ4
    # bytes of one label, auto and level 5
    assert encoded[1][2].split()[1] == encoded[6][2].split()[1]
