"""What a job array asks for: within bounds, enough for the work, and as the user said where they
said it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wkwdask.plans.batch_size import ArraySize, Workload, format_walltime, group_size, propose_size

works = st.builds(Workload, st.integers(1, 10**7), st.integers(0, 10**16), st.integers(0, 10**10))


@given(
    work=works,
    elements=st.none() | st.integers(1, 10**5),
    cpus=st.none() | st.integers(1, 64),
    most=st.integers(1, 10**5),
)
def test_a_proposal_is_possible_and_enough(work, elements, cpus, most):
    size = propose_size(work, ArraySize(elements, cpus), most)
    assert 1 <= size.elements <= min(work.num_tasks, most)
    assert elements is None or size.elements == min(elements, work.num_tasks, most)
    assert size.cpus == (cpus or 1)
    assert size.memory_nbytes >= size.cpus * work.task_nbytes
    # share of all work that one core does
    longest = -(-work.num_tasks // (size.elements * size.cpus)) / work.num_tasks
    assert size.seconds >= longest * work.nbytes / 20e6
    assert size.seconds >= 600
    assert 1 <= group_size(work.num_tasks, size.elements) <= 64


@given(work=works)
def test_what_was_asked_stays(work):
    asked = ArraySize(1, 2, 61.0, 5 << 20)
    assert propose_size(work, asked, 10) == asked


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.2, "00:00:01"), (3599, "00:59:59"), (86400, "1-00:00:00"), (200000, "2-07:33:20")],
)
def test_walltime(seconds, text):
    assert format_walltime(seconds) == text
