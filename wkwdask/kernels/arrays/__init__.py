"""Whole arrays: extremes, folds, copies in another order."""
