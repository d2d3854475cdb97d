"""Columns of the tables of labels."""

from __future__ import annotations

LIMB_BITS = 32
"""Bits of the lower limb of a sum. The upper limb has 64 bits and the sign, so sums are exact."""

COUNT, LOW, HIGH, SUM, UPPER_SUM, NUM_COLUMNS = 0, 1, 4, 7, 10, 13
"""Number of voxels; lowest voxel along x, y, z; highest voxel + 1; sums of x, y, z over all voxels
(lower limbs, then upper limbs); number of columns."""
