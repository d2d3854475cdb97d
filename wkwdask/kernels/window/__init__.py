"""Windows of voxels: reduce them for pyramids, and repeat voxels for upsampling. Start in
``reduce``."""
