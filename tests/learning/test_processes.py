from __future__ import annotations

import pytest

from robustops.errors import ConfigError
from robustops.learning.processes import (
    barrier,
    check_started,
    connected,
    gather_aside,
    gather_objects,
    leads,
    rank,
    total,
    world,
)


def test_a_process_alone_gathers_from_itself():
    with connected("gpu", 0) as here:
        assert here == world() == (0, 1)
        assert gather_objects([1, 2]) == gather_aside([1, 2]) == [[1, 2]]
        assert total([0.1, 2]) == [0.1, 2]
        barrier()


def test_the_environment_tells_who_leads_also_without_a_connection(monkeypatch):
    assert leads() and rank() == 0
    monkeypatch.setenv("RANK", "3")
    assert rank() == 3 and not leads()
    assert world() == (0, 1)


def test_another_number_of_processes_than_the_profile_asks_for_is_refused(monkeypatch):
    check_started(0)
    with pytest.raises(ConfigError, match=r"asks for 2 connected processes, none were started.*torchrun"):
        check_started(2)
    monkeypatch.setenv("WORLD_SIZE", "3")
    with (
        pytest.raises(ConfigError, match=r"asks for 2 connected processes, 3 were started"),
        connected("cpu", 2),
    ):
        pass
