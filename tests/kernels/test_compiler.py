"""Cache folder of compiled kernels, and kernels without a cache."""

from __future__ import annotations

import os
import shutil
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
    for name in ("home", "xdg", "scratch", "chosen"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.delenv(compiler.CACHE_VARIABLE, raising=False)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "scratch"))
    return tmp_path


def test_first_writable_candidate_is_used(places, monkeypatch):
    """Candidates in order: the user's choice, the XDG cache, the home, node-local scratch."""
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
    """Python raises FileNotFoundError in a read-only container without a temporary folder."""
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


def test_others_can_read_the_folder_and_not_write(places):
    folder = _folder()
    assert folder.is_dir()
    assert folder.stat().st_mode & 0o777 == 0o755
    assert folder.stat().st_uid == os.getuid()


def test_folder_writable_by_others_is_not_used(places):
    folder = places / "xdg" / "wkwdask"
    folder.mkdir()
    folder.chmod(0o777)
    assert _folder().parent == places / "home" / ".cache" / "wkwdask"


def test_folder_depends_on_sources_and_versions(places, monkeypatch):
    before = _folder()
    assert before == _folder()
    monkeypatch.setattr(compiler.lz4, "__version__", "0")
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


# Few kernels, since most of these tests compile them: one that calls LZ4, and one that does not.
WITH_LZ4 = """
import numpy as np
from wkwdask.formats.wkw.file import decode_block
from wkwdask.formats.wkw.header import BlockType, make_header
from wkwdask.kernels import compiler
from wkwdask.kernels.blocks import batch as blocks
source = np.arange(8, dtype=np.uint8).reshape(2, 2, 2, order="F")
memory = np.zeros(1000, np.uint8)
found = blocks.encode_from(source[None], np.zeros((1, 3), np.int64), memory, block_len=2, block_type=2, level=5, store_zero=True)
header = make_header("uint8", 1, block_len=2, file_len=1, block_type=BlockType.LZ4)
assert (decode_block(memory[: found.nbytes].tobytes(), header, "memory", 0, 0)[0] == source).all()
"""  # noqa: E501
WITHOUT_LZ4 = """
import numpy as np
from wkwdask.kernels import compiler
from wkwdask.kernels.window.reduce import reduce_windows
source = np.arange(8, dtype=np.uint8).reshape(2, 2, 2, order="F")
out = np.zeros((1, 1, 1), np.uint8, order="F")
reduce_windows(source, (2, 2, 2), "mean", out)
assert out.item() == 4, out
"""


def _run(code, tmp_path, **environment):
    base = {
        name: value
        for name, value in os.environ.items()
        if name not in (compiler.CACHE_VARIABLE, "XDG_CACHE_HOME", "WKWDASK_LZ4", "NUMBA_CACHE_DIR")
    }
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**base, **environment},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


SAID = (
    "import io, sys\nsys.stderr = io.StringIO()\n" + WITHOUT_LZ4 + "print(sys.stderr.getvalue())\n"
)


@pytest.fixture(scope="module")
def first_run(tmp_path_factory):
    """Folder that a process has filled, and what this process has said."""
    folder = tmp_path_factory.mktemp("first") / "cache"
    return folder, _run(SAID, folder.parent, WKWDASK_CACHE_DIR=str(folder), WKWDASK_PROGRESS="on")


@pytest.fixture
def cache(first_run, tmp_path):
    return shutil.copytree(first_run[0], tmp_path / "cache")


@pytest.mark.long
def test_kernels_compile_in_memory_without_a_cache_folder(tmp_path):
    nowhere = {"HOME": NOWHERE, "XDG_CACHE_HOME": NOWHERE, "TMPDIR": NOWHERE}
    _run(
        "import tempfile\ntempfile.tempdir = "
        + repr(NOWHERE)
        + WITHOUT_LZ4
        + "assert compiler.cache_folder() is None",
        tmp_path,
        **nowhere,
    )


NOTHING_COMPILED = "assert not compiler._say_that_it_compiles.cache_info().currsize\n"


def _files(folder):
    return {file: file.stat().st_mtime_ns for file in folder.rglob("*") if file.is_file()}


@pytest.mark.long
def test_second_process_loads_cached_code_from_the_chosen_folder(tmp_path):
    cache = tmp_path / "cache"
    _run(WITH_LZ4, tmp_path, WKWDASK_CACHE_DIR=str(cache))
    kept = _files(cache)
    assert kept
    _run(WITH_LZ4 + NOTHING_COMPILED, tmp_path, WKWDASK_CACHE_DIR=str(cache))
    assert _files(cache) == kept
    assert [path.name for path in tmp_path.iterdir()] == ["cache"]


@pytest.mark.long
def test_cached_code_loads_without_the_rest_of_numba(tmp_path, cache):
    """Numba imports what it can compile, SciPy too, once something is compiled: by the same kernel
    for another type, or by a user's function."""
    alone = (
        "import sys\nassert not {'scipy.linalg', 'numba.np.linalg'} & set(sys.modules)\n"
        + NOTHING_COMPILED
    )
    after = """
source, out = source.astype(np.float64), out.astype(np.float64)
reduce_windows(source, (2, 2, 2), "mean", out)
assert out.item() == 3.5, out
import numba
assert numba.njit(lambda a: np.linalg.norm(a) + a.sum())(np.ones(4)) == 6
assert 'numba.np.linalg' in sys.modules
"""
    _run(WITHOUT_LZ4 + alone + after, tmp_path, WKWDASK_CACHE_DIR=str(cache))


@pytest.mark.long
def test_folder_that_somebody_else_filled_is_read(tmp_path, cache):
    """A cache in an image or of a cluster: machine code is loaded from it, and what it lacks is
    saved in the user's own folder."""
    shared, own = cache, tmp_path / "xdg"
    kept = _files(shared)
    assert kept
    # also for root
    read_only = (
        f"import os\nallowed = os.access\nos.access = lambda path, mode: {str(shared)!r} not in "
        "str(path) and allowed(path, mode)\n"
    )
    environment = {"WKWDASK_CACHE_DIR": str(shared), "XDG_CACHE_HOME": str(own)}
    another_type = (
        'reduce_windows(source.astype(np.float64), (2, 2, 2), "mean", out.astype(np.float64))\n'
    )
    _run(read_only + WITHOUT_LZ4 + NOTHING_COMPILED + another_type, tmp_path, **environment)
    assert _files(shared) == kept
    assert len(_files(own)) == 1
    shared.chmod(0o777)  # everybody can put files into it
    _run(read_only + WITHOUT_LZ4, tmp_path, **environment)
    assert len(_files(own)) == 2


@pytest.mark.long
@pytest.mark.parametrize("content", [b"", b"damaged"])
def test_damaged_machine_code_is_compiled_again(tmp_path, cache, content):
    """A power cut can leave an empty file."""
    (file,) = _files(cache)
    code = file.read_bytes()
    file.write_bytes(content)
    _run(WITHOUT_LZ4, tmp_path, WKWDASK_CACHE_DIR=str(cache))
    assert len(file.read_bytes()) == len(code)


@pytest.mark.long
def test_full_disk_while_machine_code_is_saved(tmp_path):
    full = """
import errno, pathlib
def refuse(self, *arguments):
    raise OSError(errno.ENOSPC, "No space left on device")
pathlib.Path.write_bytes = refuse
"""
    _run(full + WITHOUT_LZ4, tmp_path, WKWDASK_CACHE_DIR=str(tmp_path / "cache"))
    assert not _files(tmp_path / "cache")


@pytest.mark.long
def test_first_compilation_says_why_it_takes_long(tmp_path, first_run, cache):
    """One line in the first process; later ones are silent, also when they compile a kernel."""
    folder, said = first_run
    (line,) = said.strip().splitlines()
    assert line.startswith("wkwdask: compiling kernels")
    assert str(folder) in line
    another_type = SAID.replace("np.uint8", "np.uint16")
    assert (
        _run(another_type, tmp_path, WKWDASK_CACHE_DIR=str(cache), WKWDASK_PROGRESS="on").strip()
        == ""
    )


@pytest.mark.parametrize("calls", [1, 2])
@pytest.mark.parametrize("cause", [KeyboardInterrupt(), None])
def test_ctrl_c_stays_a_keyboard_interrupt(monkeypatch, cause, calls):
    """Compiled code turns Ctrl-C into a SystemError, and each call on its way wraps another one."""
    disguised = cause
    for _ in range(calls):
        error = SystemError("returned a result with an exception set")
        error.__cause__, disguised = disguised, error

    def fails():
        raise error

    monkeypatch.setattr(compiler, "_njit", lambda function: function)
    with pytest.raises(SystemError if cause is None else KeyboardInterrupt):
        compiler.kernel(fails)()


def test_python_lz4_on_request(tmp_path):
    """The fallback never imports the compiled blocks: their cached code crashes without the
    registered functions of LZ4."""
    check = (
        "import sys\nassert blocks._compiled() is None\nassert "
        "'wkwdask.kernels.blocks.batch_compiled' not in sys.modules\n"
    )
    _run(
        WITH_LZ4 + check,
        tmp_path,
        WKWDASK_LZ4="python",
        WKWDASK_CACHE_DIR=str(compiler.cache_folder() or ""),
    )


def test_python_lz4_if_the_module_exports_no_symbols(tmp_path):
    hide = (
        "import ctypes\nclass Library:\n    def __init__(self, *arguments): pass\nctypes.CDLL = "
        "Library\n"
    )
    check = (
        "import sys\nassert blocks._compiled() is None\nassert "
        "'wkwdask.kernels.blocks.batch_compiled' not in sys.modules\n"
    )
    _run(
        "from wkwdask.kernels.blocks import lz4_symbols\n" + hide + WITH_LZ4 + check,
        tmp_path,
        WKWDASK_CACHE_DIR=str(tmp_path / "cache"),
    )
