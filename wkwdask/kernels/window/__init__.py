"""Windows of voxels: the reducers of pyramids."""
