"""The corpus of each parser and decoder: every file of it is decoded, or refused by our errors."""

from __future__ import annotations

import json

import pytest
from safety.memory_room import memory_room
from safety.mutations import mutated

from wkwdask.formats.record_paths import RecordPaths

from .door import use
from .doors import DOORS
from .record_doors import OutsideError

_ROOM_NBYTES = 1 << 30
_MUTATIONS = 20


def _doors():
    return [
        pytest.param(
            door, id=door.name, marks=[pytest.mark.needs(*door.needs)] if door.needs else []
        )
        for door in DOORS.values()
    ]


@pytest.mark.parametrize("door", _doors())
def test_any_bytes_are_decoded_or_refused(door):
    samples = [path.read_bytes() for path in door.samples]
    with memory_room(_ROOM_NBYTES):
        accepted = [use(door, sample) for sample in samples]
        assert any(accepted), "no sample is accepted"
        for sample in samples:
            for seed in range(_MUTATIONS):
                use(door, mutated(sample, seed))


def test_a_job_that_leaves_its_dataset_is_noticed(monkeypatch):
    """Without the check of paths in records, a job follows one that leads outside."""
    door = DOORS["publish.json that is followed"]
    record = json.loads(door.samples[0].read_bytes())
    record["mags"][0]["folder"] = "../../outside"
    data = json.dumps(record).encode()
    use(door, data)
    monkeypatch.setattr(RecordPaths, "_raise_outside", lambda *_: None)
    with pytest.raises(OutsideError, match="outside"):
        use(door, data)
