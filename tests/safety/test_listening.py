"""Addresses of clusters: dashboards listen only on their own machine, and TLS refuses clients
without a certificate."""

from __future__ import annotations

import json
import os
import socket
import ssl
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
import yaml
from safety.listening import listening
from support.commands import run_here

import wkwdask

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/net/tcp").exists(),
    reason="listening sockets are read from /proc/net, which Linux alone has",
)
TESTS = Path(__file__).resolve().parent.parent
CONFIGS = TESTS.parent / "cluster-configs"
JOBQUEUE = sorted(
    path.stem for path in CONFIGS.glob("*.yaml") if "kind: jobqueue" in path.read_text()
)
SRUN = """#!/usr/bin/env bash
while [[ "$1" == --* ]]; do shift; done
SLURM_PROCID=0 exec "$@"
"""
TELL = """
import json, os, sys
from pathlib import Path
import wkwdask
from safety.listening import listening
script = os.getppid()
with wkwdask.cluster() as client:
    client.wait_for_workers(1, timeout=240)
    Path(sys.argv[1]).write_text(json.dumps([sorted(listening(script)), client.scheduler.address, client.dashboard_link]))
"""  # noqa: E501


def hosts(addresses):
    return {host for host, _ in addresses}


def test_the_local_cluster_listens_on_this_machine_only(capfd):
    before = listening()  # a cluster that tests share may run
    with wkwdask.cluster("local", workers=1) as client:
        assert hosts(listening() - before) == {"127.0.0.1"}
        assert urlsplit(client.dashboard_link).hostname == "127.0.0.1"
    pytest.importorskip("bokeh", reason="bokeh is not installed: there is no dashboard")
    assert "; from outside: ssh -L " in capfd.readouterr().err


@pytest.mark.long
def test_a_dashboard_for_all_is_asked_for():
    before = listening()
    with wkwdask.cluster("local", workers=1, dashboard_address=":0"):
        assert hosts(listening() - before) == {"127.0.0.1", "0.0.0.0"}


@pytest.mark.parametrize("name", JOBQUEUE)
def test_dashboards_of_jobs_listen_on_their_machine_only(name):
    """The scheduler's, which is here, and those of the workers."""
    pytest.importorskip("dask_jobqueue", reason="dask-jobqueue is not installed")
    with wkwdask.cluster(name, adaptive={"minimum": 0, "maximum": 1}) as client:
        # no job is submitted
        link = urlsplit(client.dashboard_link)
        assert link.hostname == "127.0.0.1"
        assert {host for host, port in listening() if port == link.port} == {"127.0.0.1"}
    assert " --dashboard-address 127.0.0.1:0 " in run_here("cluster", "render", name).stdout


def run_allocation(name, folder, **environment):
    """Run a batch script without SLURM, and give where its processes listen, the scheduler's
    address and the link to the dashboard."""
    (folder / "bin").mkdir()
    (folder / "bin" / "srun").write_text(SRUN)
    (folder / "bin" / "srun").chmod(0o755)
    (folder / "tell.py").write_text(TELL)
    path = os.pathsep.join(
        (str(folder / "bin"), os.path.dirname(sys.executable), os.environ["PATH"])
    )
    python_path = os.pathsep.join((str(Path(wkwdask.__file__).resolve().parent.parent), str(TESTS)))
    variables = {
        "PATH": path,
        "PYTHONPATH": python_path,
        "SLURM_JOB_ID": "1",
        "WKWDASK_SHARED": str(folder),
        "TMPDIR": str(folder),
        **environment,
    }
    command = [
        "bash",
        str(CONFIGS / name),
        sys.executable,
        str(folder / "tell.py"),
        str(folder / "told.json"),
    ]
    done = subprocess.run(
        command,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        timeout=360,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads((folder / "told.json").read_text())


@pytest.mark.long
def test_an_allocation_listens_where_its_interface_is(tmp_path):
    addresses, scheduler, link = run_allocation(
        "slurm-allocation-preemptible.sbatch", tmp_path, WKWDASK_INTERFACE="lo"
    )
    assert len(addresses) >= 5  # scheduler, nanny, worker, and two dashboards
    assert hosts(addresses) == {"127.0.0.1"}
    assert scheduler.startswith("tcp://127.0.0.1:")
    assert urlsplit(link).hostname == "127.0.0.1"


def make_certificates(folder):
    """Make a certificate authority that is its only certificate, as openssl does it in one line."""
    folder.mkdir(mode=0o700)
    command = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-subj",
        "/CN=dask",
        "-keyout",
        "dask.key",
        "-out",
        "dask.pem",
    ]
    try:
        subprocess.run(command, cwd=folder, capture_output=True, check=True)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    (folder / "ca.pem").write_bytes((folder / "dask.pem").read_bytes())


@pytest.mark.long
def test_an_allocation_with_tls_and_without_interface(tmp_path):
    make_certificates(tmp_path / "private")
    addresses, scheduler, link = run_allocation(
        "slurm-allocation.sbatch", tmp_path, WKWDASK_TLS=str(tmp_path / "private")
    )
    assert scheduler.startswith("tls://")
    assert {host for host, port in addresses if port == urlsplit(link).port} == {"127.0.0.1"}


def test_jobs_with_tls(tmp_path):
    """The lines of the configuration that are switched on by removing their #."""
    pytest.importorskip("dask_jobqueue", reason="dask-jobqueue is not installed")
    make_certificates(tmp_path / "private")
    text = (CONFIGS / "slurm-jobqueue.yaml").read_text()
    end = (
        text[text.index("#     require-encryption") :]
        .replace("\n#", "\n ")
        .replace("#", " ", 1)
        .replace("/shared/private", str(tmp_path / "private"))
    )
    text = text[: text.index("#     require-encryption")].replace("# protocol:", "protocol:") + end
    (tmp_path / "site.yaml").write_text(text.replace("/ca.pem", "/dask.pem"))
    with wkwdask.cluster(
        tmp_path / "site.yaml", adaptive={"minimum": 0, "maximum": 1}, interface="lo"
    ) as client:
        address = client.scheduler.address
        assert address.startswith("tls://127.0.0.1:")
        stranger = ssl.create_default_context()
        stranger.check_hostname, stranger.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection(("127.0.0.1", urlsplit(address).port), timeout=30) as plain,
            pytest.raises(ssl.SSLError, match=r"(?i)certificate"),
            stranger.wrap_socket(plain) as secure,
        ):
            secure.recv(1)
    script = run_here("cluster", "render", str(tmp_path / "site.yaml")).stdout
    assert " --protocol tls://\n" in script
    assert (
        f"export DASK_DISTRIBUTED__COMM__TLS__WORKER__KEY={tmp_path}/private/dask.key\n" in script
    )


def test_kubernetes_keeps_dashboards_in_their_pods():
    documents = list(yaml.safe_load_all((CONFIGS / "kubernetes.yaml").read_text()))
    commands = [
        container["args"]
        for document in documents
        if document["kind"] == "Deployment"
        for container in document["spec"]["template"]["spec"]["containers"]
    ]
    assert [
        arguments[arguments.index("--dashboard-address") + 1].rpartition(":")[0]
        for arguments in commands
    ] == ["127.0.0.1", "127.0.0.1"]
    (service,) = (document for document in documents if document["kind"] == "Service")
    assert [port["port"] for port in service["spec"]["ports"]] == [8786]
    (policy,) = (document for document in documents if document["kind"] == "NetworkPolicy")
    assert policy["spec"]["podSelector"] == policy["spec"]["ingress"][0]["from"][0]["podSelector"]


@pytest.mark.parametrize("path", sorted(CONFIGS.iterdir()), ids=lambda path: path.name)
def test_every_configuration_says_what_it_exposes(path):
    assert "\n# Exposed: " in path.read_text()
