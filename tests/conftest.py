"""What all tests share: hypothesis profiles, quiet progress, and the folder of real data."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from pathlib import Path

import pytest
from _pytest.doctest import DoctestModule
from hypothesis import HealthCheck, settings
from support import sampled_tests
from support.missing_packages import REAL_DATA, leave_out_tests
from support.passed_tests import PassedTests
from support.private_slurm import missing_programs, private_slurm

import wkwdask

REPOSITORY = Path(__file__).resolve().parent.parent

# No deadline: a first call compiles its kernel, and machines are shared. ``ci`` draws the same
# examples in every run.
settings.register_profile(
    "ci",
    max_examples=8,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
# other versions of others' software under the same code
settings.register_profile("few", settings.get_profile("ci"), max_examples=5)
settings.register_profile(
    "nightly", max_examples=1000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Hypothesis also draws constants of the modules that are loaded: examples would depend on the tests
# that ran before in the same process. not part of its interface: older versions have none
providers = sys.modules.get("hypothesis.internal.conjecture.providers")
if settings.default.derandomize and hasattr(providers, "_get_local_constants"):
    providers._get_local_constants = providers.Constants

# Tests start hundreds of processes. Without bytecode each of them would compile the package again.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

MEMORY_FOLDER = Path("/dev/shm")
MEMORY_NBYTES = 4 << 30  # several times what the tests of all workers write

# Tests write many small files and sync them. In memory this takes a sixth less time; --basetemp
# chooses another folder.
if (
    MEMORY_FOLDER.is_dir()
    and os.access(MEMORY_FOLDER, os.W_OK)
    and shutil.disk_usage(MEMORY_FOLDER).free >= MEMORY_NBYTES
):
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(MEMORY_FOLDER))


@pytest.hookimpl(wrapper=True)
def pytest_collect_file():
    """Search no doctests in tests: with --doctest-ignore-import-errors, the tests of a module that
    cannot be imported would be missing in silence."""
    return [collector for collector in (yield) if not isinstance(collector, DoctestModule)]


def pytest_addoption(parser):
    parser.addoption(
        "--passed",
        type=Path,
        metavar="FILE",
        help="leave out the tests that a file lists, and add those that pass; write --passed=FILE",
    )


def pytest_configure(config):
    config.pluginmanager.register(sampled_tests)
    if config.option.passed is not None:
        # with pytest-xdist, all processes choose, and the one that has started the others writes
        config.pluginmanager.register(
            PassedTests(config.option.passed, adds=not hasattr(config, "workerinput"))
        )
    # pytest-xdist hands out files in the order below, not by their number of tests
    config.option.loadscopereorder = False


@pytest.hookimpl(trylast=True)  # after -m has chosen
def pytest_collection_modifyitems(config, items):
    """Leave out tests that need missing packages or data, and order the others.

    Files whose tests wait for clusters and killed processes come first, so that others run
    meanwhile and none of them is left for the end.
    """
    leave_out_tests(config, items)
    folders = ("slurm", "faults", "usage", "api")
    items.sort(
        key=lambda item: (
            folders.index(item.path.parent.name)
            if item.path.parent.name in folders
            else len(folders)
        )
    )


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers():
    if "PYTEST_XDIST_AUTO_NUM_WORKERS" in os.environ:
        return None
    # tests that wait leave a core idle
    return len(os.sched_getaffinity(0)) + 3 if hasattr(os, "sched_getaffinity") else None


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """Let one worker run all tests of the private SLURM, which is started once."""
    from xdist.scheduler import LoadFileScheduling

    class OneSlurm(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return (
                "tests/slurm" if nodeid.startswith("tests/slurm/") else super()._split_scope(nodeid)
            )

    return OneSlurm(config, log) if config.getoption("dist") == "loadfile" else None


@pytest.fixture(autouse=True, scope="session")
def _own_surroundings(tmp_path_factory):
    """Keep progress bars, the width of a terminal and the user's state folder out of the tests, and
    of the processes that they start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WKWDASK_PROGRESS", "off")
        patch.delenv("COLUMNS", raising=False)
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def _no_client_stays():
    """A client of dask that a test leaves is every later test's, and hangs them once its cluster is
    gone: the test that leaves it fails."""
    before = _connected()
    yield
    left = [client for client in _connected() if client not in before]
    for client in left:
        client.close()
    assert not left, f"the test leaves {left}"


def _connected():
    module = sys.modules.get("distributed.client")
    return (
        []
        if module is None
        else [client for client in module._global_clients.values() if client.status != "closed"]
    )


@pytest.fixture(scope="session")
def shared_data():
    """The folder of real data; where it is absent, no test that asks for it runs."""
    return REAL_DATA


@pytest.fixture(scope="session")
def cluster():
    """Two worker processes of dask, for all tests that do not kill or configure them."""
    pytest.importorskip("distributed")
    from support.local_cluster import local_cluster

    with local_cluster(silence_logs="ERROR") as running:
        yield running


@pytest.fixture
def client(cluster):
    """A client of the shared cluster, which dask uses until the end of the test."""
    import distributed

    with distributed.Client(cluster) as connected:
        yield connected


@pytest.fixture(scope="session")
def slurm_cluster():
    """A private SLURM of three virtual nodes, where SLURM is installed; tests that use it carry the
    marker ``slurm``."""
    missing = missing_programs()
    if missing:
        pytest.skip(f"SLURM is absent: no {', '.join(missing)}; apt-get install slurm-wlm munge")
    # a short path, for the socket
    folder = Path(tempfile.mkdtemp(prefix="wkwdask-slurm-", dir="/tmp"))
    try:
        with private_slurm(folder) as cluster:
            yield cluster
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture
def slurm(slurm_cluster, monkeypatch):
    """The private SLURM with no job in it, reached by this process and those that it starts; jobs
    find the package and what the tests import."""
    for name, value in slurm_cluster.environment.items():
        monkeypatch.setenv(name, value)
    package = Path(wkwdask.__file__).resolve().parent.parent
    # scripts call dask by its name
    monkeypatch.setenv(
        "PATH", os.pathsep.join((os.path.dirname(sys.executable), os.environ["PATH"]))
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(package), str(REPOSITORY / "tests"))))
    slurm_cluster.end_jobs()
    slurm_cluster.make_idle()
    yield slurm_cluster
    slurm_cluster.end_jobs()
