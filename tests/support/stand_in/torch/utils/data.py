"""Data loader with worker processes that are forked or spawned, as PyTorch's."""

from __future__ import annotations

import multiprocessing
import random

import torch

_datasets = []


class Dataset:
    """Base class of datasets."""


class DataLoader:
    """Batches of a dataset, in order, from worker processes."""

    def __init__(self, dataset, batch_size, shuffle, num_workers, multiprocessing_context):
        self._dataset, self._num_workers, self._context = (
            dataset,
            num_workers,
            multiprocessing.get_context(multiprocessing_context),
        )
        numbers = list(range(len(dataset)))
        if shuffle:
            random.shuffle(numbers)
        self._batches = [numbers[at : at + batch_size] for at in range(0, len(numbers), batch_size)]

    def __iter__(self):
        with self._context.Pool(self._num_workers, _receive, (self._dataset,)) as pool:
            yield from pool.imap(_fetch, self._batches)


def _receive(dataset):
    _datasets.append(dataset)


def _fetch(numbers):
    samples = _datasets[0].__getitems__(numbers)
    return [torch.stack(part) for part in zip(*samples, strict=True)]
