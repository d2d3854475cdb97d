"""Where machine code is kept, and that kernels work where it cannot be kept anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from wkwdask.kernels import compiler

NOWHERE = "/dev/null/nowhere"  # below a regular file: no user, root neither, can make a folder here


def _folder():
    return compiler.cache_folder.__wrapped__()


@pytest.fixture
def places(tmp_path, monkeypatch):
    """A home, an XDG cache and a scratch folder of their own."""
    for name in ("home", "xdg", "scratch", "chosen"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv(compiler.CACHE_VARIABLE, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    return tmp_path


def test_order_of_the_candidates(places, monkeypatch):
    """The user's choice, the XDG cache, the home, node-local scratch: each is taken where those before it cannot be written."""
    monkeypatch.setenv(compiler.CACHE_VARIABLE, str(places / "chosen" / "deep" / "folder"))
    assert _folder().parent == places / "chosen" / "deep" / "folder"
    monkeypatch.setenv(compiler.CACHE_VARIABLE, NOWHERE)
    assert _folder().parent == places / "xdg" / "wkwdask"
    monkeypatch.delenv(compiler.CACHE_VARIABLE)
    assert _folder().parent == places / "xdg" / "wkwdask"
    monkeypatch.setenv("XDG_CACHE_HOME", NOWHERE)
    assert _folder().parent == places / "home" / ".cache" / "wkwdask"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert _folder().parent == places / "home" / ".cache" / "wkwdask"
    monkeypatch.setenv("HOME", NOWHERE)
    assert _folder().parent == places / "scratch" / f"wkwdask-{os.getuid()}"
    monkeypatch.setattr(tempfile, "tempdir", NOWHERE)
    assert _folder() is None


def test_no_usable_scratch_folder(places, monkeypatch):
    """Python raises FileNotFoundError where it finds no temporary folder at all: a read-only container without one."""
    monkeypatch.setenv("XDG_CACHE_HOME", NOWHERE)
    monkeypatch.setenv("HOME", NOWHERE)

    def refuse():
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", refuse)
    assert _folder() is None


def test_no_home(places, monkeypatch):
    """A user without an entry in the password database has no home."""
    monkeypatch.delenv("XDG_CACHE_HOME")

    def refuse():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", refuse)
    assert _folder().parent == places / "scratch" / f"wkwdask-{os.getuid()}"


def test_folder_is_private(places):
    folder = _folder()
    assert folder.is_dir()
    assert folder.stat().st_mode & 0o077 == 0
    assert folder.stat().st_uid == os.getuid()


def test_folder_that_others_may_write(places):
    """Machine code that anybody can replace is not loaded."""
    folder = places / "xdg" / "wkwdask"
    folder.mkdir()
    folder.chmod(0o777)
    assert _folder().parent == places / "home" / ".cache" / "wkwdask"


def test_folder_names_the_sources(places, monkeypatch):
    """Other sources or other versions of numba and lz4 are another folder."""
    before = _folder()
    assert before == _folder()
    monkeypatch.setattr(compiler, "version", lambda package: f"{package} 0")
    assert _folder() != before
    monkeypatch.undo()
    sources = places / "kernels"
    sources.mkdir()
    for source in Path(compiler.__file__).parent.glob("*.py"):
        (sources / source.name).write_bytes(source.read_bytes())
    monkeypatch.setattr(compiler, "__file__", str(sources / "compiler.py"))
    monkeypatch.setenv(compiler.CACHE_VARIABLE, str(places / "chosen"))
    copied = _folder()
    with (sources / "window_compiled.py").open("a") as file:
        file.write("# changed\n")
    assert _folder() != copied


# Few kernels, since most of these tests compile them anew: one that calls LZ4, and one that does not.
WORK = """
import numpy as np
from wkwdask.formats.wkw.file import decode_block
from wkwdask.formats.wkw.header import BlockType, make_header
from wkwdask.kernels import compiler
from wkwdask.kernels.blocks import batch as blocks
from wkwdask.kernels.window.reduce import reduce_windows
source = np.arange(8, dtype=np.uint8).reshape(2, 2, 2, order="F")
out = np.zeros((1, 1, 1), np.uint8, order="F")
reduce_windows(source, (2, 2, 2), "mean", out)
assert out.item() == 4, out
memory = np.zeros(1000, np.uint8)
found = blocks.encode_from(source[None], np.zeros((1, 3), np.int64), memory, block_len=2, block_type=2, level=5, store_zero=True)
header = make_header("uint8", 1, block_len=2, file_len=1, block_type=BlockType.LZ4)
assert (decode_block(memory[: found.nbytes].tobytes(), header, "memory", 0, 0)[0] == source).all()
"""


def _run(code, tmp_path, **environment):
    base = {name: value for name, value in os.environ.items() if name not in (compiler.CACHE_VARIABLE, "XDG_CACHE_HOME", "WKWDASK_LZ4", "NUMBA_CACHE_DIR")}
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], env={**base, **environment}, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_nothing_is_writable(tmp_path):
    """Kernels compile in memory: an unwritable home, cache and scratch make them slow, and nothing else."""
    nowhere = {"HOME": NOWHERE, "XDG_CACHE_HOME": NOWHERE, "TMPDIR": NOWHERE}
    _run("import tempfile\ntempfile.tempdir = " + repr(NOWHERE) + WORK + "assert compiler.cache_folder() is None", tmp_path, **nowhere)


def test_only_the_environment_is_unwritable(tmp_path):
    """The same without a word to Python: it finds another scratch folder, or none."""
    _run(WORK, tmp_path, HOME=NOWHERE, XDG_CACHE_HOME=NOWHERE, TMPDIR=NOWHERE)


def test_cached_code_serves_a_second_process(tmp_path):
    """A second process loads machine code in place of compiling it, and nothing is kept anywhere but in the chosen folder."""
    cache = tmp_path / "cache"
    _run(WORK, tmp_path, WKWDASK_CACHE_DIR=str(cache))
    kept = {file: file.stat().st_mtime_ns for file in cache.rglob("*.nbc")}
    assert kept
    hits = "from wkwdask.kernels.blocks import batch_compiled\ncell = batch_compiled.encode_from.__closure__\n"
    hits += "stats = [c.cell_contents.stats for c in cell if hasattr(c.cell_contents, 'stats')][0]\nassert stats.cache_hits and not stats.cache_misses, stats\n"
    _run(WORK + hits, tmp_path, WKWDASK_CACHE_DIR=str(cache))
    assert {file: file.stat().st_mtime_ns for file in cache.rglob("*.nbc")} == kept
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


def test_full_disk(tmp_path):
    """A cache folder that can be found, but not written any more when the machine code is there."""
    full = """
import errno
import numba.core.caching as caching
def refuse(self, *arguments):
    raise OSError(errno.ENOSPC, "No space left on device")
caching.IndexDataCacheFile.save = refuse
"""
    _run(full + WORK, tmp_path, WKWDASK_CACHE_DIR=str(tmp_path / "cache"))


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("cause", [KeyboardInterrupt(), None])
def test_interrupted(monkeypatch, cause, calls):
    """Ctrl-C may leave machine code in disguise, and in one more for each call on its way."""
    disguised = cause
    for _ in range(calls):
        error = SystemError("returned a result with an exception set")
        error.__cause__, disguised = disguised, error

    def fails():
        raise error

    monkeypatch.setattr(compiler, "_njit", lambda function, keep: function)
    with pytest.raises(SystemError if cause is None else KeyboardInterrupt):
        compiler.kernel(fails)()


def test_others_keep_their_cache_folder():
    """Numba's own setting is as it was after the kernels are loaded."""
    import numba

    from wkwdask.kernels.window import reduce_compiled as window_compiled

    assert window_compiled.mode is not None
    assert str(compiler.cache_folder()) != numba.config.CACHE_DIR


def test_python_lz4_on_request(tmp_path):
    """The fallback never imports the compiled blocks: their cached code crashes where LZ4's functions are not registered."""
    check = "import sys\nassert blocks._compiled() is None\nassert 'wkwdask.kernels.blocks.batch_compiled' not in sys.modules\n"
    _run(WORK + check, tmp_path, WKWDASK_LZ4="python", WKWDASK_CACHE_DIR=str(compiler.cache_folder() or ""))


def test_python_lz4_without_the_symbols(tmp_path):
    """The same where the extension module does not export them."""
    hide = "import ctypes\nclass Library:\n    def __init__(self, *arguments): pass\nctypes.CDLL = Library\n"
    check = "import sys\nassert blocks._compiled() is None\nassert 'wkwdask.kernels.blocks.batch_compiled' not in sys.modules\n"
    _run("from wkwdask.kernels.blocks import lz4_symbols\n" + hide + WORK + check, tmp_path, WKWDASK_CACHE_DIR=str(tmp_path / "cache"))
