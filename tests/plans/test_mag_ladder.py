"""WEBKNOSSOS's rule for the mags of a pyramid, as webknossos 4.3.3 gives them, with two stated
deviations.

Lengths are compared with a relative tolerance of 1e-3 in place of exact float equality, and a
coarsest mag that the rule cannot reach is a ValueError in place of a RuntimeError.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.strategies import mags

from wkwdask.geometry.bounding_box import BoundingBox
from wkwdask.geometry.mag import Mag
from wkwdask.plans.mag_ladder import SAMPLINGS, default_coarsest, mag_ladder

LADDERS = [
    # voxel size, finest, coarsest, mags
    # all double once that makes voxels more cubic
    ((11.24, 11.24, 28), "1", "32", "2-2-1 4-4-2 8-8-4 16-16-8 32-32-16"),
    ((11.24, 11.24, 25), "1", "32", "2-2-1 4-4-2 8-8-4 16-16-8 32-32-16"),
    ((10.5, 10.5, 35), "1", "16", "2-2-1 4-4-1 8-8-2 16-16-4"),  # z waits for two steps
    ((4, 4, 40), "1", "32", "2-2-1 4-4-1 8-8-1 16-16-2 32-32-4"),  # and for three
    ((8, 8, 30), "1", "32", "2-2-1 4-4-1 8-8-2 16-16-4 32-32-8"),
    ((10, 20, 40), "1", "32", "2-1-1 4-2-1 8-4-2 16-8-4 32-16-8"),  # three different axes
    # more cubic or not: only the shortest double in a tie
    ((1, 1, 1.5), "1", "32", "2-2-1 4-4-2 8-8-4 16-16-8 32-32-16"),
    ((1, 1, 2), "2-2-2", "16-16-8", "4-4-2 8-8-4 16-16-8"),  # the ladder starts anywhere
    ((1, 1, 4), "1", "16-16-2", "2-2-1 4-4-1 8-8-2 16-16-2"),  # clipped to the coarsest
    ((10.5, 10.5, 24), "1", "16-16-4", "2-2-1 4-4-2 8-8-4 16-16-4"),
    ((10.5, 10.5, 10.5), "1", "8-8-16", "2 4 8 8-8-16"),  # goes on along the one axis that is left
    # z catches up in one step of 16, since mags on the way do not grow
    ((8, 8, 8), "8-8-1", "32", "16 32"),
    # deviation: 4 and 4.0001 are the same length
    ((4, 4.0001, 40), "1", "16", "2-2-1 4-4-1 8-8-1 16-16-2"),
    # isotropic doubling stops at the maximum, short of 8 in z
    (None, "2-2-1", "8-8-8", "4-4-2 8-8-4"),
    (None, "1", "8", "2 4 8"),
    ((4, 4, 40), "1", "1", ""),  # nothing above the finest
    ((4, 4, 40), "4", "2", ""),  # a coarsest below it
]


@pytest.mark.parametrize(("voxel_size", "finest", "coarsest", "expected"), LADDERS)
def test_anisotropic(voxel_size, finest, coarsest, expected):
    found = mag_ladder(Mag.parse(finest), Mag.parse(coarsest), voxel_size)
    assert [mag.name for mag in found] == expected.split()


@pytest.mark.parametrize(
    ("finest", "coarsest", "message"),
    [
        # x and y are to double first
        (
            "1",
            "1-1-2",
            "the mags from 1 do not reach 1-1-2: after 1 comes .*choose another coarsest mag",
        ),
        ("1", "4-4-16", "do not reach 4-4-16"),
        ("2", "16-16-2", "do not reach 16-16-2"),
    ],
)
def test_coarsest_that_is_not_reached(finest, coarsest, message):
    """Deviation: webknossos raises RuntimeError."""
    with pytest.raises(ValueError, match=message):
        mag_ladder(Mag.parse(finest), Mag.parse(coarsest), (10.5, 10.5, 24))


@pytest.mark.parametrize(
    ("sampling", "finest", "coarsest", "expected"),
    [
        ("isotropic", "1", "8", "2 4 8"),
        ("isotropic", "2-2-1", "16", "4-4-2 8-8-4 16-16-8"),
        ("isotropic", "1", "8-8-4", "2 4 8-8-4"),  # clipped
        ("constant_z", "1", "16", "2-2-1 4-4-1 8-8-1 16-16-1"),
        ("constant_z", "2", "8", "4-4-2 8-8-2"),
    ],
)
@pytest.mark.parametrize("voxel_size", [None, (4, 4, 40)])
def test_other_samplings(sampling, finest, coarsest, expected, voxel_size):
    """The voxel size does not matter where it is not asked for."""
    assert [
        mag.name for mag in mag_ladder(Mag.parse(finest), Mag.parse(coarsest), voxel_size, sampling)
    ] == expected.split()


@pytest.mark.parametrize(
    ("others", "expected"),
    [
        (["2-2-1"], "2-2-1 4-4-2 8-8-4 16-16-8"),  # the rule goes on from what was followed
        (["2-2-1", "4-4-1"], "2-2-1 4-4-1 8-8-2 16-16-4"),
        (["2-2-1", "4-4-1", "8-8-1", "16-16-2"], "2-2-1 4-4-1 8-8-1 16-16-2"),
        (["1"], "2 4 8 16"),  # what has no mag of twice the maximum is not followed
        (["4-4-1"], "2 4 8 16"),  # finer in z than mag 2: not a step
        (["8-8-4"], "2 4 8-8-4 16-16-8"),
    ],
)
def test_mags_of_other_layers(others, expected):
    found = mag_ladder(
        Mag(1, 1, 1), Mag.parse(16), None, others=[Mag.parse(name) for name in others]
    )
    assert [mag.name for mag in found] == expected.split()


def test_unknown_sampling():
    with pytest.raises(
        ValueError, match="sampling must be one of anisotropic, isotropic, constant_z, got 'cubic'"
    ):
        mag_ladder(Mag(1, 1, 1), Mag.parse(8), None, "cubic")


@pytest.mark.parametrize(
    ("size", "expected"),
    [
        ((1000, 1000, 1000), "16"),
        ((65536, 65536, 65536), "1024"),
        ((256, 256, 256), "4"),
        ((1, 1, 1), "4"),  # never less than 4
        ((400, 1, 1), "4"),
        ((401, 1, 1), "8"),
        ((1, 801, 1), "16"),
        ((100, 100, 100_000), "4"),  # z does not count
        ((0, 0, 0), "4"),
        ((100 << 10, 1, 1), "1024"),  # a power of two exactly
    ],
)
def test_default_coarsest(size, expected):
    assert default_coarsest(BoundingBox((5, 6, 7), size)) == Mag.parse(expected)


@given(
    mags(4),
    st.integers(0, 6),
    st.tuples(*[st.sampled_from([1, 4, 4.0001, 10.5, 11.24, 28, 40])] * 3),
    st.sampled_from(SAMPLINGS),
    st.lists(mags(), max_size=4),
)
def test_every_ladder_is_a_pyramid(finest, power, voxel_size, sampling, others):
    """Each mag is coarser on every axis, its maximum grows, and the last has the maximum that was
    asked for."""
    coarsest = Mag.parse(finest.maximum << power)
    if sampling == "constant_z":
        # another layer's mag that is coarser in z contradicts the sampling, and need not lead to
        # the coarsest
        others = []
    found = mag_ladder(finest, coarsest, voxel_size, sampling, others)
    for before, after in zip([finest, *found], found, strict=False):
        assert max(before.step_to(after)) >= 2
        assert after.maximum > before.maximum
    if sampling != "constant_z":
        assert (found[-1] if found else finest).maximum == coarsest.maximum
