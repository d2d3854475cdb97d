"""Packages of extras that several threads import at once."""

from __future__ import annotations

import sys
import threading

from wkwdask.model.extras import import_extra

SLOW = "import time\nbegun = True\ntime.sleep(0.3)\nready = True\n"


def test_threads_wait_for_the_import_of_each_other(tmp_path, monkeypatch):
    (tmp_path / "slow_to_import.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    first = threading.Thread(target=import_extra, args=("slow_to_import", "em.zarr"))
    first.start()
    while not hasattr(sys.modules.get("slow_to_import"), "begun"):
        assert first.is_alive()
    assert import_extra("slow_to_import", "em.zarr").ready
    first.join()
    del sys.modules["slow_to_import"]
