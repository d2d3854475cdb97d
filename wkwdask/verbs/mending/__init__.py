"""The parts of checks and repairs: how levels were made, what is done with the files of one level, and what processes left."""
