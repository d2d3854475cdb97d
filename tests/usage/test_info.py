"""Output of ``info``: colors, damaged mags, narrow terminals, and places on the network."""

from __future__ import annotations

import json
import os
import re
import socket

import numpy as np
import pytest
from support.commands import run_here
from support.inside import limited
from support.range_server import range_server

import wkwdask


@pytest.fixture
def dataset(tmp_path):
    wkwdask.create_dataset(tmp_path / "ds", (4, 4, 4))
    voxels = np.random.default_rng(1).integers(1, 255, (3, 40, 40, 40)).astype(np.uint8)
    wkwdask.to_wkw(voxels, tmp_path / "ds/color/1", block_len=8, file_len=2)
    wkwdask.build_pyramid(tmp_path / "ds", "color", mags=["2", "4"])
    return tmp_path / "ds"


def test_colors_are_bytes_with_channels(dataset):
    opened = wkwdask.open_dataset(dataset)
    texts = [
        run_here("info", dataset).stdout,
        repr(opened),
        repr(opened["color"]),
        opened._repr_html_(),
        opened["color"]._repr_html_(),
    ]
    for text in texts:
        assert "uint8 x 3 channels" in text
        assert "uint24" not in text
    with pytest.raises(
        ValueError, match="the layer stores uint8 x 3 channels, the array is uint8; cast it"
    ):
        wkwdask.to_wkw(np.ones((8, 8, 8), np.uint8), dataset / "color/8")


@pytest.mark.parametrize("damage", ["bytes", "absent", "folder"])
def test_an_unreadable_header_is_reported_in_its_row(dataset, damage):
    header = dataset / "color/2/header.wkw"
    header.unlink()
    if damage == "bytes":
        header.write_bytes(b"junk")
    elif damage == "folder":
        header.mkdir()
    done = run_here("info", dataset)
    assert done.returncode == 0, done.stderr
    assert [line for line in done.stdout.splitlines() if "cannot be opened" in line]
    assert f"problem: {header}" in done.stdout.replace("[Errno 21] Is a directory: '", "")
    mags = json.loads(run_here("info", dataset, "--json").stdout)["layers"][0]["mags"]
    assert [bool(mag["problem"]) for mag in mags] == [False, True, False]


def words_of(command, dataset):
    """Return the words that a command prints, without measured times and rates."""
    return re.sub(r"\S+ (s|[kMG]?B/s)\b", "", run_here(command, dataset).stdout).split()


@pytest.mark.parametrize("command", ["info", "verify"])
def test_narrow_terminals_lose_nothing(dataset, monkeypatch, command):
    monkeypatch.setenv("COLUMNS", "200")
    wide = words_of(command, dataset)
    monkeypatch.setenv("COLUMNS", "60")
    rows = [
        line
        for line in run_here(command, dataset).stdout.splitlines()
        if line.startswith(("layer", "mag", "  "))
    ]
    assert len(rows) > 3
    assert max(map(len, rows)) <= 60
    assert {word for word in wide if word[0].isdigit()} <= set(words_of(command, dataset))


@pytest.mark.needs("obstore")
@pytest.mark.parametrize(
    "write",
    [wkwdask.to_precomputed, wkwdask.to_n5, wkwdask.to_zarr],
    ids=lambda write: write.__name__,
)
def test_a_web_address_without_a_format_opens_as_the_format_of_its_documents(tmp_path, write):
    voxels = np.arange(512, dtype=np.uint16).reshape(1, 8, 8, 8)
    report = write(
        voxels, tmp_path / "em", **({} if write is wkwdask.to_n5 else {"voxel_size": (4, 4, 40)})
    )
    folder = report.mags[0].path if write is wkwdask.to_n5 else tmp_path / "em"
    with range_server(tmp_path) as server:
        url = f"{server.url}/{os.path.relpath(folder, tmp_path)}"
        np.testing.assert_array_equal(wkwdask.read(url), voxels)
        assert wkwdask.info(url).dtype == "uint16"
        done = run_here("info", url)
        assert done.returncode == 0, done.stderr


@pytest.mark.needs("obstore")
def test_a_web_address_without_documents_names_the_prefixes(tmp_path):
    with range_server(tmp_path) as server:
        done = run_here("info", f"{server.url}/none")
        assert (
            f"precomputed://{server.url}/none or n5://{server.url}/none or zarr://{server.url}/none"
            in done.stderr
        )
    assert done.returncode == 1


@pytest.fixture
def silent_server():
    """A server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


@pytest.fixture
def without_credentials(monkeypatch, tmp_path):
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "CLOUDSDK_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")


def check_no_answer(url):
    with limited(answer_seconds=1, pauses=(0.0, 0.0)):
        done = run_here("info", url)
    assert done.returncode == 1
    assert "no answer from" in done.stderr
    assert len(done.stderr.splitlines()) == 1


@pytest.mark.needs("obstore")
@pytest.mark.parametrize("prefix", ["precomputed://", "zarr://", "n5://", ""])
def test_buckets_that_do_not_answer(monkeypatch, silent_server, without_credentials, prefix):
    monkeypatch.setenv("AWS_ENDPOINT_URL", silent_server)
    check_no_answer(f"{prefix}s3://silent/em")


@pytest.mark.needs("obstore")
def test_google_buckets_that_do_not_answer(monkeypatch, silent_server, without_credentials):
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", silent_server)
    check_no_answer("precomputed://gs://silent/em")


@pytest.mark.needs("obstore")
def test_public_buckets_are_read_without_credentials(monkeypatch, without_credentials, tmp_path):
    server_of = pytest.importorskip("moto.server", reason="serves S3")
    boto3 = pytest.importorskip("boto3", reason="writes to S3")
    voxels = np.random.default_rng(1).integers(1, 255, (32, 32, 32)).astype(np.uint8)
    wkwdask.to_precomputed(voxels, tmp_path / "em", voxel_size=(4, 4, 4))
    server = server_of.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    try:
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://{}:{}".format(*server.get_host_and_port()))
        monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
        owner = boto3.client("s3", aws_access_key_id="x", aws_secret_access_key="y")
        owner.create_bucket(Bucket="public-bucket")
        for path in (path for path in (tmp_path / "em").rglob("*") if path.is_file()):
            owner.put_object(
                Bucket="public-bucket",
                Key=str(path.relative_to(tmp_path)),
                Body=path.read_bytes(),
                ACL="public-read",
            )
        np.testing.assert_array_equal(
            wkwdask.read("precomputed://s3://public-bucket/em")[0], voxels
        )
    finally:
        server.stop()


def test_warnings_of_a_conversion_are_printed_once(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    (tmp_path / "sections").mkdir()
    for z in (0, 1, 3):
        tifffile.imwrite(tmp_path / f"sections/s{z:03}.tif", np.full((40, 40), z + 1, np.uint8))
    (tmp_path / "sections/s002.tif").write_text("junk")
    done = run_here(
        "convert",
        tmp_path / "sections",
        tmp_path / "ds",
        "--voxel-size",
        "4,4,4",
        "--on-error",
        "fill",
        "--pyramid",
    )
    assert done.returncode == 0, done.stderr
    assert (done.stdout + done.stderr).count("s002.tif") == 1


@pytest.mark.needs("zarr")
def test_summaries_and_checks_are_cards_in_notebooks(dataset, tmp_path):
    wkwdask.convert(dataset, tmp_path / "em.ome.zarr", layer="color")
    shown = {
        "summary": wkwdask.info(dataset),
        "volume": wkwdask.info(tmp_path / "em.ome.zarr"),
        "verify": wkwdask.verify(dataset),
        "diff": wkwdask.diff(f"{dataset}/color/1", f"{dataset}/color/1"),
    }
    cards = {name: value._repr_html_() for name, value in shown.items()}
    assert all(card.startswith("<div") and "<table>" in card for card in cards.values())
    assert "sound: 0 errors" in cards["verify"]
    assert "<td>color</td>" in cards["summary"]
    assert "equal" in cards["diff"]
    assert "data:image/png" in cards["volume"]


def test_a_dataset_without_layers_states_its_voxel_size(tmp_path):
    wkwdask.create_dataset(tmp_path / "new", (4, 4, 35))
    assert "voxel size 4 x 4 x 35 nm" in run_here("info", tmp_path / "new").stdout
    assert wkwdask.info(tmp_path / "new").voxel_size_nm == (4, 4, 35)


@pytest.mark.parametrize("command", ["info", "verify", "preview", "histogram", "pyramid"])
@pytest.mark.parametrize(("prefix", "array"), [("", ""), ("n5://", ""), ("", ":/raw")])
def test_a_file_is_not_called_an_absent_folder(tmp_path, command, prefix, array):
    np.save(tmp_path / "stack.npy", np.ones((4, 4, 4), np.uint8))
    done = run_here(command, f"{prefix}{tmp_path / 'stack.npy'}{array}")
    assert done.returncode
    assert f"{tmp_path / 'stack.npy'}: is a file, expected the folder of a dataset" in done.stderr
    assert "wkwdask convert" in done.stderr
