"""``wkwdask view``: the bytes that its server sends, as tensorstore and zarr-python read them over
http, and the requests that it refuses."""

from __future__ import annotations

import http.client
import json
import re
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import lz4.block
import numpy as np
import pytest

import wkwdask
from wkwdask.viewer import server as viewer_server
from wkwdask.viewer.layers import layers_of
from wkwdask.viewer.server import ViewerServer, parse_range

CLIENT = {"index.html": __file__}


@contextmanager
def serving(sources, **options):
    """Serve sources."""
    server = ViewerServer(sources, lambda: b"page", CLIENT, **options)
    try:
        yield server
    finally:
        server.close()


def ask(server, path, method="GET", **headers):
    """Send a request without the checks of a client library."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=10)
    try:
        connection.putrequest(method, path, skip_host="Host" in headers)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders()
        answer = connection.getresponse()
        return answer.status, answer.read(), dict(answer.getheaders())
    finally:
        connection.close()


def _voxels(dtype, channels, shape):
    random = np.random.default_rng(1)
    voxels = random.integers(0, 9, (channels, *shape)).astype(dtype).repeat(1, 1)
    voxels[:, :16, :16, :16] = 0
    return voxels


@pytest.mark.parametrize(
    ("dtype", "channels", "compression", "block_len"),
    [
        ("uint8", 1, "lz4hc", 16),
        ("uint8", 3, "lz4", 8),
        ("uint64", 1, "lz4", 16),
        ("float32", 2, "raw", 8),
        ("uint8", 1, "raw", 1),
        ("int16", 1, "lz4", 1),
    ],
)
@pytest.mark.needs("tensorstore")
def test_other_software_reads_served_wkw(tmp_path, dtype, channels, compression, block_len):
    tensorstore = pytest.importorskip("tensorstore")
    voxels = _voxels(dtype, channels, (70, 37, 50) if block_len > 1 else (9, 7, 5))
    topleft = (300, 130, 259)
    wkwdask.to_wkw(
        voxels,
        tmp_path / "1",
        offset=topleft,
        block_len=block_len,
        file_len=4 if block_len > 1 else 32,
        compression=compression,
    )
    (layer,) = layers_of(tmp_path / "1", (), None)
    assert not layer.is_decoded
    (array,) = layer.source.arrays.values()
    with serving([layer.source]) as server:
        base = f"http://127.0.0.1:{server.port}/{server.token}/data/0/1/"
        opened = tensorstore.open(
            {"driver": "zarr3", "kvstore": base}, read=True, open=True
        ).result()
        low = np.subtract(topleft, array.topleft)[::-1]
        inside = tuple(slice(a, None) for a in low)
        found = np.asarray(
            opened[(slice(None), *inside) if channels > 1 else inside].read().result()
        )
        np.testing.assert_array_equal(
            found.reshape(channels, *found.shape[-3:]).transpose(0, 3, 2, 1), voxels
        )


def test_zarr_python_reads_served_wkw(tmp_path):
    zarr = pytest.importorskip(
        "zarr", minversion="3.1.4", reason="zarr, of the extra zarr, is not installed"
    )
    pytest.importorskip("aiohttp")
    voxels = _voxels("uint16", 2, (40, 33, 20))
    wkwdask.to_wkw(
        voxels, tmp_path / "1", offset=(0, 0, 0), block_len=8, file_len=2, compression="lz4"
    )
    (layer,) = layers_of(tmp_path / "1", (), None)
    with serving([layer.source]) as server:
        found = zarr.open_array(
            f"http://127.0.0.1:{server.port}/{server.token}/data/0/1", mode="r", zarr_format=3
        )[...]
    np.testing.assert_array_equal(found.transpose(0, 3, 2, 1), voxels)


@pytest.mark.needs("tensorstore")
def test_types_that_no_viewer_knows_are_decoded(tmp_path):
    tensorstore = pytest.importorskip("tensorstore")
    voxels = _voxels("float64", 1, (20, 30, 10))
    wkwdask.to_wkw(voxels, tmp_path / "1", offset=(5, 6, 7))
    (layer,) = layers_of(tmp_path / "1", (), None)
    assert layer.is_decoded
    with serving([layer.source]) as server:
        base = f"http://127.0.0.1:{server.port}/{server.token}/data/0/1/"
        found = (
            tensorstore.open({"driver": "zarr3", "kvstore": base}, read=True, open=True)
            .result()
            .read()
            .result()
        )
    assert found.dtype == np.float32
    np.testing.assert_array_equal(found.T, voxels[0])


@pytest.mark.parametrize(
    ("sharded", "compression"), [(False, "gzip"), (True, None)], ids=["gz files", "shards"]
)
@pytest.mark.needs("tensorstore")
def test_precomputed_passes_through(tmp_path, sharded, compression):
    tensorstore = pytest.importorskip("tensorstore")
    voxels = _voxels("uint32", 1, (40, 30, 20))
    wkwdask.to_precomputed(
        voxels,
        tmp_path / "v",
        voxel_size=(8, 8, 8),
        shard_shape=sharded,
        compression=compression,
        chunk_shape=(16, 16, 16),
        offset=(1, 2, 3),
    )
    (layer,) = layers_of(f"precomputed://{tmp_path}/v", (), None)
    assert (layer.scheme, layer.is_decoded) == ("precomputed", False)
    with serving([layer.source]) as server:
        base = f"http://127.0.0.1:{server.port}/{server.token}/data/0/"
        found = (
            tensorstore.open(
                {"driver": "neuroglancer_precomputed", "kvstore": base}, read=True, open=True
            )
            .result()
            .read()
            .result()
        )
    np.testing.assert_array_equal(np.asarray(found)[..., 0], voxels[0])


@pytest.mark.parametrize("version", ["0.4", "0.5"])
@pytest.mark.needs("tensorstore")
def test_zarr_passes_through(tmp_path, version):
    tensorstore = pytest.importorskip("tensorstore")
    voxels = _voxels("uint8", 3, (40, 30, 20))
    wkwdask.to_zarr(
        voxels,
        tmp_path / "v.ome.zarr",
        ngff=version,
        voxel_size=(4, 4, 40),
        chunk_shape=(16, 16, 16),
    )
    (layer,) = layers_of(f"zarr://{tmp_path}/v.ome.zarr", (), None)
    scheme = "zarr" if version == "0.4" else "zarr3"
    assert (layer.scheme, layer.is_decoded, layer.is_rgb) == (
        "zarr2" if version == "0.4" else "zarr3",
        False,
        True,
    )
    with serving([layer.source]) as server:
        base = f"http://127.0.0.1:{server.port}/{server.token}/data/0/"
        found = (
            tensorstore.open({"driver": scheme, "kvstore": f"{base}1/"}, read=True, open=True)
            .result()
            .read()
            .result()
        )
        attributes = json.loads(
            ask(server, f"/{server.token}/data/0/{'.zattrs' if version == '0.4' else 'zarr.json'}")[
                1
            ]
        )
    np.testing.assert_array_equal(found.transpose(0, 3, 2, 1), voxels)
    image = (
        attributes["multiscales"][0]
        if version == "0.4"
        else attributes["attributes"]["ome"]["multiscales"][0]
    )
    assert image["coordinateTransformations"] == [
        {"type": "translation", "translation": [0.5, 20.0, 2.0, 2.0]}
    ]
    assert image["axes"][0] == {"name": "c^"}


def test_zarr_python_reads_an_image_that_passes_through(tmp_path):
    zarr = pytest.importorskip(
        "zarr", minversion="3.1.4", reason="zarr, of the extra zarr, is not installed"
    )
    pytest.importorskip("aiohttp")
    voxels = _voxels("uint16", 1, (40, 30, 20))
    wkwdask.to_zarr(voxels, tmp_path / "v.ome.zarr", voxel_size=(4, 4, 40))
    (layer,) = layers_of(f"zarr://{tmp_path}/v.ome.zarr", (), None)
    with serving([layer.source]) as server:
        group = zarr.open_group(
            f"http://127.0.0.1:{server.port}/{server.token}/data/0", mode="r", zarr_format=3
        )
        np.testing.assert_array_equal(group["1"][...].T, voxels[0])


@pytest.mark.parametrize("kind", ["gz files", "shards", "zarr"])
@pytest.mark.needs("tensorstore")
def test_remote_volumes_pass_through(tmp_path, kind):
    """The remote server is another one of ours, which sends stored gzip files with their
    encoding."""
    tensorstore = pytest.importorskip("tensorstore")
    pytest.importorskip("obstore")
    voxels, prefix, path = _voxels("uint32", 1, (40, 30, 20)), "precomputed", ""
    if kind == "zarr":
        wkwdask.to_zarr(voxels, tmp_path / "v.zarr", voxel_size=(8, 8, 8))
        prefix, path = "zarr", "1/"
    else:
        wkwdask.to_precomputed(
            voxels,
            tmp_path / "v.zarr",
            voxel_size=(8, 8, 8),
            shard_shape=kind == "shards",
            chunk_shape=(16, 16, 16),
        )
    (layer,) = layers_of(f"{prefix}://{tmp_path}/v.zarr", (), None)
    with serving([layer.source]) as remote:
        (layer,) = layers_of(
            f"{prefix}://http://127.0.0.1:{remote.port}/{remote.token}/data/0", (), None
        )
        assert (layer.scheme, layer.is_decoded) == ("zarr3" if kind == "zarr" else prefix, False)
        with serving([layer.source]) as server:
            base = f"http://127.0.0.1:{server.port}/{server.token}/data/0/{path}"
            driver = "zarr3" if kind == "zarr" else "neuroglancer_precomputed"
            found = np.asarray(
                tensorstore.open({"driver": driver, "kvstore": base}, read=True, open=True)
                .result()
                .read()
                .result()
            )
            assert ask(server, f"/{server.token}/data/0/absent")[0] == 404
    np.testing.assert_array_equal(found.T if kind == "zarr" else found[..., 0], voxels[0])


@pytest.mark.needs("tensorstore")
def test_blocks_whose_compressed_size_is_that_of_their_voxels_are_read(tmp_path):
    """Such a frame would be taken for one of voxels that are not compressed."""
    tensorstore = pytest.importorskip("tensorstore")
    noise = np.random.default_rng(3).integers(0, 256, 8**3, np.uint8)
    repeated = (np.concatenate([noise[:n], noise[:-n]]) for n in range(8**3 - 1, 0, -1))
    block = next(
        data
        for data in repeated
        if len(lz4.block.compress(data.tobytes(), store_size=False)) == data.size
    )
    voxels = np.zeros((16, 8, 8), np.uint8)
    voxels[:8], voxels[8:] = block.reshape((8, 8, 8), order="F"), 7
    wkwdask.to_wkw(voxels, tmp_path / "1", block_len=8, file_len=2, compression="lz4")
    (layer,) = layers_of(tmp_path / "1", (), None)
    with serving([layer.source]) as server:
        base = f"http://127.0.0.1:{server.port}/{server.token}/data/0/1/"
        found = (
            tensorstore.open({"driver": "zarr3", "kvstore": base}, read=True, open=True)
            .result()
            .read()
            .result()
        )
        index = np.frombuffer(
            ask(server, f"/{server.token}/data/0/1/c/0/0/0", Range=f"bytes=-{8 * 16}")[1], "<u8"
        ).reshape(8, 2)
    assert index[0, 1] == 16 + 8**3  # not compressed
    np.testing.assert_array_equal(found.T, voxels)


@pytest.fixture(scope="module")
def volume(tmp_path_factory):
    """An N5 volume with a link out of its folder, beside a secret."""
    folder = tmp_path_factory.mktemp("outside")
    wkwdask.to_n5(
        np.ones((20, 20, 20), np.uint8),
        folder / "v.n5" / "em" / "s0",
        compression="raw",
        voxel_size=(8, 8, 8),
    )
    (folder / "secret").write_text("secret")
    (folder / "v.n5" / "em" / "link").symlink_to(folder / "secret")
    (folder / "v.n5" / "em" / "s0" / "9").symlink_to(folder)
    return folder


@pytest.fixture(scope="module")
def server(volume):
    (layer,) = layers_of(f"n5://{volume}/v.n5/em", (), None)
    assert (layer.scheme, layer.is_decoded) == ("n5", False)
    with serving([layer.source]) as running:
        yield running


def test_files_and_their_ranges_are_sent(server, volume):
    path, whole = f"/{server.token}/data/0/s0/0/0/0", (volume / "v.n5/em/s0/0/0/0").read_bytes()
    assert ask(server, path)[:2] == (200, whole)
    assert ask(server, path, "HEAD")[:2] == (200, b"")
    status, body, headers = ask(server, path, Range="bytes=3-9")
    assert (status, body, headers["Content-Range"]) == (206, whole[3:10], f"bytes 3-9/{len(whole)}")
    assert ask(server, path, Range="bytes=-5")[:2] == (206, whole[-5:])
    assert ask(server, path, Range=f"bytes=2-{10**18}")[:2] == (206, whole[2:])
    assert ask(server, path, Range="bytes=0-1,5-6")[0] == 416
    assert ask(server, path, Range=f"bytes={len(whole)}-")[0] == 416
    assert "Access-Control-Allow-Origin" not in headers
    assert ask(server, f"/{server.token}/v/0/")[0] == 200
    assert ask(server, f"/{server.token}/events/0", "HEAD")[:2] == (200, b"")


@pytest.mark.parametrize(
    "path",
    [
        "/",
        "/TOKEN_/",
        "/wrong/data/0/attributes.json",
        "/TOKEN",
        "/TOKEN/data/0/",
        "/TOKEN/data/1/attributes.json",
        "/TOKEN/data/0/link",
        "/TOKEN/data/0/s0/9/secret",
        "/TOKEN/data/0/../../secret",
        "/TOKEN/data/0/..%2f..%2fsecret",
        "/TOKEN/data/0/%2e%2e/%2e%2e/secret",
        "/TOKEN/data/0/%252e%252e/secret",
        "/TOKEN/data/0/..\\..\\secret",
        "/TOKEN/data/0//etc/passwd",
        "/TOKEN/data/0/%2fetc%2fpasswd",
        "/TOKEN/data/0/s0",
        "/TOKEN/data/0/s0/./0/0/0",
        "/TOKEN/data/0/attributes.json%00",
        "/TOKEN/v/0/../../data",
        "/TOKEN/v/0/%2e%2e%2fserver.py",
        "/TOKEN/v/0/main.map",
        "/TOKEN/v/0//etc/passwd",
        "/TOKEN/state/0",
        "/TOKEN/data/00000000000000000000000/attributes.json",
        f"/TOKEN/data/0/{'a' * 3000}",
    ],
)
def test_nothing_else_is_found(server, path):
    status, body, _ = ask(server, path.replace("TOKEN", server.token))
    assert status == 404
    assert b"root:" not in body
    assert body != b"secret"


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "",
        "0.0.0.0",
        "[::2]",
        "[",
        "]",
        "[::1",
        "[x]",
    ],
)
def test_other_host_names_are_refused(server, host):
    assert ask(server, f"/{server.token}/data/0/attributes.json", Host=host)[0] in (400, 403)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:99", "[::1]:80"])
def test_names_of_the_loopback_interface_are_answered(server, host):
    assert ask(server, f"/{server.token}/", Host=host)[:2] == (200, b"page")


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH", "TRACE"])
def test_other_methods_are_refused(server, method):
    assert ask(server, f"/{server.token}/data/0/attributes.json", method)[0] == 405


def test_only_a_named_origin_may_read(volume):
    (layer,) = layers_of(f"n5://{volume}/v.n5/em", (), None)
    with serving([layer.source], cors="https://viewer.example") as running:
        headers = ask(
            running, f"/{running.token}/data/0/attributes.json", Origin="https://evil.example"
        )[2]
        preflight = ask(
            running,
            f"/{running.token}/data/0/attributes.json",
            "OPTIONS",
            Origin="https://viewer.example",
        )
    assert (
        headers["Access-Control-Allow-Origin"]
        == preflight[2]["Access-Control-Allow-Origin"]
        == "https://viewer.example"
    )
    assert preflight[0] == 204
    assert preflight[2]["Access-Control-Allow-Headers"] == "Range"


def test_clients_that_send_nothing_keep_nobody_waiting(server):
    slow = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(50)]
    try:
        for each in slow:
            each.sendall(f"GET /{server.token}/ HTTP/1.1\r\nHost: local".encode())
        assert ask(server, f"/{server.token}/data/0/attributes.json")[0] == 200
    finally:
        for each in slow:
            each.close()


def test_a_client_that_reads_slowly_is_disconnected(volume, monkeypatch):
    given_up, detach = threading.Event(), viewer_server._Handler.detach

    def give_up(handler):
        given_up.set()
        return detach(handler)

    monkeypatch.setattr(viewer_server, "_SEND_SECONDS", 0.1)
    monkeypatch.setattr(viewer_server._Handler, "detach", give_up)
    (volume / "v.n5" / "em" / "s0" / "large").write_bytes(bytes(16 << 20))
    (layer,) = layers_of(f"n5://{volume}/v.n5/em", (), None)
    with (
        serving([layer.source]) as running,
        socket.create_connection(("127.0.0.1", running.port)) as slow,
    ):
        slow.sendall(
            f"GET /{running.token}/data/0/s0/large HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
        )
        assert ask(running, f"/{running.token}/data/0/attributes.json")[0] == 200
        assert given_up.wait(60)
        received = 0
        while data := slow.recv(1 << 20):
            received += len(data)
        assert received < 16 << 20


def test_many_requests_at_once_are_answered(server, volume):
    whole = (volume / "v.n5/em/s0/0/0/0").read_bytes()
    path = f"/{server.token}/data/0/s0/0/0/0"
    with ThreadPoolExecutor(200) as threads:
        assert {answer[:2] for answer in threads.map(lambda _: ask(server, path), range(400))} == {
            (200, whole)
        }


def test_it_listens_on_loopback_only(server):
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", server.port))


@pytest.mark.parametrize(
    "header",
    [
        "bytes=5-2",
        "bytes=--5",
        "bytes=-",
        "bytes=-0",
        "bytes=x-3",
        "items=0-3",
        "bytes=99999999999999999999999999999-",
    ],
)
def test_invalid_ranges(header):
    assert parse_range(header, 10) is None


@pytest.mark.parametrize(
    "head",
    [
        b"GET /x HTTP/1.1\r\nHost: localhost\r\nHost: localhost",
        b"GET /x HTTP/1.1\r\nHost : localhost",
        b"GET /x HTTP/2.0\r\nHost: localhost",
        b"GET /x HTTP/1.1",
        b"GET http://localhost/x HTTP/1.1\r\nHost: localhost",
        b"GET  /x HTTP/1.1\r\nHost: localhost",
        b"",
        b"POST /x HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5",
    ],
)
def test_malformed_requests_are_refused(server, head):
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head + b"\r\n\r\n")
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(1000)
    assert not answer or re.match(b"HTTP/1.1 4[0-9][0-9] ", answer)


@pytest.mark.parametrize("field", [b"Content-Length: 5", b"Transfer-Encoding: chunked"])
def test_requests_have_no_body(server, field):
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(
            f"GET /{server.token}/ HTTP/1.1\r\nHost: localhost\r\n".encode()
            + field
            + b"\r\n\r\n5\r\nabcde\r\n0\r\n\r\n"
        )
        answer = connection.recv(1000)
    assert not answer or answer.startswith(b"HTTP/1.1 400 ")


def test_long_headers_are_refused(server):
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(
            f"GET /{server.token}/ HTTP/1.1\r\nHost: localhost\r\nX: ".encode() + b"y" * (17 << 10)
        )
        answer = connection.recv(1000)
    assert not answer or answer.startswith(b"HTTP/1.1 4")
