"""What is done with the ids of segmentations."""
