"""The parts of a repair: what is done with the files of one level, and what processes left."""
