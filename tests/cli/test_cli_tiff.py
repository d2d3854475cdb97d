"""The command that prints TIFF headers."""

from __future__ import annotations

import base64
import json

from support.commands import run_here
from support.zarr_proposal import TIFF_PREFIX

import wkwdask


def test_the_prefix_of_the_proposal():
    done = run_here("tiff-prefix", "256,256", "uint16")
    assert (done.returncode, done.stdout) == (0, TIFF_PREFIX + "\n")


def test_options_and_codec():
    done = run_here(
        "tiff-prefix", "8,16,3", "uint16", "--axes", "yxs", "--byteorder", "big", "--codec"
    )
    entry = json.loads(done.stdout)
    prefix = wkwdask.tiff_prefix((8, 16, 3), "uint16", "big", axes="yxs")
    assert entry == {
        "name": "offset",
        "configuration": {"offset": len(prefix), "prefix": base64.b64encode(prefix).decode()},
    }
    stack = run_here("tiff-prefix", "4,8,16", "uint8", "--stack", "imagej")
    assert base64.b64decode(stack.stdout) == wkwdask.tiff_prefix(
        (4, 8, 16), "uint8", stack="imagej"
    )


def test_errors_are_one_line():
    for arguments, message in (
        (("8,16,3,3", "uint8"), "--axes must name its axes"),
        (("8,16", "bool"), "TIFF has no type for bool"),
        (("8;16", "uint8"), "--shape takes numbers with commas"),
        (("8,16", "voxel"), "voxel"),
    ):
        done = run_here("tiff-prefix", *arguments)
        assert done.returncode != 0
        assert message in done.stderr
        assert done.stdout == ""
