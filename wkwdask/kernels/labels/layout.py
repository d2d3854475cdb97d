"""The columns of the tables of labels."""

from __future__ import annotations

LIMB_BITS = 32
"""Sums are exact: they are kept as a lower limb of so many bits and an upper one with a sign."""

COUNT, LOW, HIGH, SUM, UPPER_SUM, NUM_PLACES = 0, 1, 4, 7, 10, 13
"""Voxels; lowest voxel along x, y, z; the one beyond the highest; sums of x, y, z of all voxels (lower limbs, then upper ones); how many columns."""
