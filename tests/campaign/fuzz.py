"""A process that fuzzes doors one after another, guided by coverage: ``python -m campaign.fuzz``.

Each door is fuzzed in a fork, because libFuzzer ends its process. What a door raises and should not
is written to a file beside the log of libFuzzer.
"""

from __future__ import annotations

import base64
import json
import os
import resource
import signal
import sys
import traceback
from pathlib import Path
from typing import Any

import atheris

with atheris.instrument_imports(
    include=["wkwdask"],
    # numba compiles no function that atheris has changed
    exclude=[] if os.environ.get("NUMBA_DISABLE_JIT") == "1" else ["wkwdask.kernels"],
):
    from campaign.door import Door, use
    from campaign.doors import DOORS

from safety.memory_room import memory_room
from safety.mutations import mutated

_ROOM_NBYTES = 1 << 30
_SECONDS = 5.0
"""CPU time of one input."""
_LARGEST_NBYTES = 4096
_MOST_FOUND = 20
_WAIT_SECONDS = 300
"""Wall time of one input, after which libFuzzer ends the process: for C code that loops."""


class HangError(BaseException):
    """An input takes too long."""


def _hangs(*_: Any) -> None:
    raise HangError(f"takes more than {_SECONDS:.0f} s of CPU time")


class Inputs:
    """What libFuzzer calls with each input."""

    def __init__(self, door: Door, log: Path) -> None:
        self._door, self._log = door, log
        self._places: set[tuple[str, str]] = set()
        self.runs = 0

    def try_one(self, data: bytes) -> None:
        self.runs += 1
        signal.setitimer(signal.ITIMER_VIRTUAL, _SECONDS)
        try:
            use(self._door, data)
        except BaseException as error:
            self._record(error, data)
        finally:
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)

    def _record(self, error: BaseException, data: bytes) -> None:
        """Write an error once for each place that raises it."""
        frames = [
            f"{Path(frame.filename).name}:{frame.lineno}"
            for frame in traceback.extract_tb(error.__traceback__)
            if "wkwdask" in frame.filename
        ]
        place = type(error).__name__, frames[-1] if frames else ""
        if place in self._places or len(self._places) >= _MOST_FOUND:
            return
        self._places.add(place)
        found = {
            "error": f"{place[0]}: {error}"[:300],
            "frames": frames[-4:],
            "data": base64.b64encode(data).decode(),
        }
        with self._log.with_suffix(".found").open("a") as file:
            file.write(json.dumps(found) + "\n")


def _mutate(data: bytes, max_nbytes: int, seed: int) -> bytes:
    """Change values of texts in every fourth mutation, else bytes."""
    if seed % 4 or not data:
        return atheris.Mutate(data, max_nbytes)
    return mutated(data, seed)[:max_nbytes]


def _fuzz(door: Door, folder: Path, runs: int, seconds: int, seed: int) -> None:
    """Fuzz a door in this process, which ends."""
    signal.signal(signal.SIGVTALRM, _hangs)
    new, inputs = folder / "new", Inputs(door, folder / "log")
    new.mkdir()
    samples = folder / "samples"
    samples.mkdir()
    for path in door.samples:
        (samples / path.name).write_bytes(path.read_bytes())
        use(door, path.read_bytes())  # compiles kernels
    longest = max(_LARGEST_NBYTES, *(path.stat().st_size for path in door.samples))
    options = (
        f"-runs={runs}", f"-max_total_time={seconds}", f"-seed={seed}",
        f"-max_len={longest}", f"-timeout={_WAIT_SECONDS}", "-rss_limit_mb=0",
        "-print_final_stats=1", f"-artifact_prefix={folder}/ended-",
    )  # fmt: skip
    arguments = ["fuzz", *options, str(new), str(samples)]
    atheris.Setup(arguments, inputs.try_one, custom_mutator=_mutate)
    with memory_room(_ROOM_NBYTES):
        atheris.Fuzz()


def main(top: str, runs: str, seconds: str, seed: str) -> None:
    """Fuzz doors with so many inputs each, in a folder for each; print how each process ended."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    for name, number in json.loads(runs).items():
        folder = Path(top) / name.replace(" ", "-")
        folder.mkdir()
        if (pid := os.fork()) == 0:
            log = os.open(folder / "log", os.O_CREAT | os.O_WRONLY)
            os.dup2(log, 1)
            os.dup2(log, 2)
            _fuzz(DOORS[name], folder, number, int(seconds), int(seed))
            os._exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        print(json.dumps([name, code]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
