"""Edits of datasets in processes of their own, some of which are killed; in a module of its own, so that other processes can import it.

``edit FOLDER NAME COUNT`` makes many edits. ``rename TEMPLATE FOLDER`` renames a layer in copies of a dataset, in processes of which the first ends before
its first change to the file system, the next before its second, and so on; the last one ends by itself. ``leave FOLDER`` ends while it holds the lock.
"""

from __future__ import annotations

import os
import shutil
import sys

from support.inside import exchanging, without_exchange

import wkwdask

LINKED = []
CHANGES = ("symlink", "link", "unlink", "rename", "replace", "mkdir", "rmdir")


def edit(folder, name, count):
    dataset = wkwdask.open_dataset(folder)
    for number in range(int(count)):
        dataset.add_layer(f"{name}-{number}", "color", "uint8", (0, 0, 0, 1, 1, number))
        dataset.set_view_configuration({f"{name}-{number}": number}, "color")
        dataset.set_view_configuration({f"{name}.{number}": True})
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
    with exchanging(counted) if os.environ.get("EXCHANGE", "1") == "1" else without_exchange():
        wkwdask.open_dataset(target).rename_layer("color", "em")
    os._exit(0)


def leave(folder):
    sys.addaudithook(_end_with_the_lock)
    wkwdask.open_dataset(folder).set_voxel_size((9, 9, 9))


def _end_with_the_lock(event, arguments):
    """End like a process that is killed when it has the lock and reads the JSON."""
    if event == "os.link":
        LINKED.append(arguments)
    if event == "open" and LINKED and str(arguments[0]).endswith("/datasource-properties.json"):
        os._exit(9)


if __name__ == "__main__":
    {"edit": edit, "rename": rename, "leave": leave}[sys.argv[1]](*sys.argv[2:])
