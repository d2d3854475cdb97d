"""Edits of datasets in processes of their own, some of which are killed; in a module of its own, so that other processes can import it.

``edit FOLDER NAME COUNT`` makes many edits. ``rename TEMPLATE FOLDER`` renames a layer in copies of a dataset, in processes of which the first ends before
its first change to the file system, the next before its second, and so on; the last one ends by itself. ``leave FOLDER`` ends while it holds the lock.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys

import wkwdask
from wkwdask.formats.webknossos.dataset import update_datasource
from wkwdask.store import locks
from wkwdask.verbs.wkw import dataset_edit

CHANGES = ("symlink", "link", "unlink", "rename", "replace", "mkdir", "rmdir")


def edit(folder, name, count):
    dataset = wkwdask.open_dataset(folder)
    for number in range(int(count)):
        dataset.add_layer(f"{name}-{number}", "color", "uint8", (0, 0, 0, 1, 1, number))
        dataset.set_view_configuration({f"{name}-{number}": number}, "color")
        update_datasource(folder, lambda document, number=number: {**document, f"{name}.{number}": True})
        if number % 2:
            dataset.remove_layer(f"{name}-{number}")


def rename(template, folder):
    for step in range(100):
        target = f"{folder}/{step}"
        shutil.copytree(template, target, symlinks=True)
        child = os.fork()
        if child == 0:
            _rename_until(target, step)
        _, status = os.waitpid(child, 0)
        if os.waitstatus_to_exitcode(status) == 0:
            return
    raise AssertionError("too many steps")


def _rename_until(target, step):
    """Rename a layer, and end like a process that is killed before its change number ``step``."""
    left = [step]

    def counted(before):
        def change(*args, **options):
            if left[0] == 0:
                os._exit(9)
            left[0] -= 1
            return before(*args, **options)

        return change

    for name in CHANGES:
        setattr(os, name, counted(getattr(os, name)))
    dataset_edit.exchange = counted(dataset_edit.exchange) if os.environ.get("EXCHANGE", "1") == "1" else lambda first, second: False
    dataset_edit.rename_layer(target, "color", "em")
    os._exit(0)


def leave(folder):
    with contextlib.ExitStack() as stack:
        stack.enter_context(locks.locked_file(os.path.realpath(f"{folder}/datasource-properties.json"), "an edit"))
        os._exit(9)


if __name__ == "__main__":
    {"edit": edit, "rename": rename, "leave": leave}[sys.argv[1]](*sys.argv[2:])
