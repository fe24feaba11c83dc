"""The launcher's configuration: strict, and one clear line for each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from chaos.cli.run import run
from chaos.experiment.model import Workload
from chaos.workload.reference.config import ConfigError, JobConfig, ModelShape, Place, RecoveryName
from chaos.workload.reference.elastic import count_up, enter_gpu_network, place
from chaos.workload.reference.placement import HostPlacement, LabPlacement, PlaceUnavailable, ends, placement_for

GOOD: dict[str, Any] = {
    **{"events_dir": "/e", "logs_dir": "/l", "checkpoint_dir": "/c", "seed": 1, "recovery": "checkpoint"},
    "world": [{"node": 0, "gpu": 0}, {"node": 0, "gpu": 1}],
}


def test_what_is_not_said_has_its_default() -> None:
    config = JobConfig.parse(GOOD | {"model": None, "lab_socket": None, "step_s": None, "max_steps": None})
    assert config.world == (Place(0, 0), Place(0, 1))
    assert (config.spares, config.step_s, config.max_steps, config.lab_socket) == ((), None, None, None)
    assert (config.checkpoint_every, config.hash_every, config.model) == (50, 1, ModelShape())


def test_paths_are_absolute_because_ranks_may_run_elsewhere() -> None:
    assert JobConfig.parse(GOOD | {"events_dir": "e"}).events_dir == Path.cwd() / "e"


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"colour": 1}, "unknown key 'colour'"),
        ({"recovery": "peers"}, "one of none, checkpoint, restart, peer is needed"),
        ({"world": []}, "world is empty"),
        ({"world": [{"node": 0}]}, "lacks gpu"),
        ({"world": [{"node": "0", "gpu": 0}]}, "node is '0': a whole number is needed"),
        ({"world": {"node": 0, "gpu": 0}}, "a list of places is needed"),
        ({"spares": [{"node": 0, "gpu": 1}]}, "listed twice"),
        ({"seed": 1.5}, "seed is 1.5: a whole number is needed"),
        ({"seed": True}, "seed is True: a whole number is needed"),
        ({"step_s": 0}, "step_s is 0: seconds above 0 are needed"),
        ({"step_s": "20ms"}, "step_s is '20ms': seconds above 0 are needed"),
        ({"hang_timeout_s": None}, "hang_timeout_s is null"),
        ({"checkpoint_every": 0}, "checkpoint_every is 0: 1 or more is needed"),
        ({"hash_every": None}, "hash_every is null"),
        ({"model": {"dim": 50}}, "model.dim is 50: it must be a multiple"),
        ({"model": {"layers": 0}}, "model.layers is 0"),
        ({"model": {"width": 3}}, "model has an unknown key 'width'"),
        ({"events_dir": 3}, "events_dir is 3: a string is needed"),
    ],
)
def test_a_mistake_is_named_with_what_would_be_right(change: dict[str, Any], complaint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        JobConfig.parse(GOOD | change)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_on_one_host_every_place_has_a_loopback_address_of_its_own() -> None:
    config = JobConfig.parse(GOOD | {"spares": [{"node": 1, "gpu": 0}]})
    placement = placement_for(config)
    assert isinstance(placement, HostPlacement)
    own = [ends(config, each) for each in (Place(0, 0), Place(0, 1), Place(1, 0))]
    assert [list(each.values()) for each in own] == [[("lo", f"127.0.0.{10 + index}")] for index in range(3)]
    assert placement.namespaces(Place(0, 0)) == {}


def test_a_lab_that_has_gone_makes_its_places_unavailable(tmp_path: Path) -> None:
    placement = LabPlacement(tmp_path)
    with pytest.raises(PlaceUnavailable, match="no lab answers"):
        placement.namespaces(Place(1, 0))


def test_in_a_lab_a_place_has_two_paths_and_prefers_nvlink(tmp_path: Path) -> None:
    own = ends(JobConfig.parse(GOOD | {"lab_socket": str(tmp_path)}), Place(1, 0))
    assert list(own.items()) == [("nvlink", ("nvl0", "10.77.1.10")), ("pcie", ("pcie0", "10.78.1.10"))]


def test_outside_a_lab_torchrun_s_ranks_stay_where_they_are() -> None:
    environment = {"LOCAL_RANK": "1", "GROUP_RANK": "2"}
    assert not enter_gpu_network(environment)
    assert "GLOO_SOCKET_IFNAME" not in environment
    assert place(environment) == (2, 1)
    assert place(environment | {"CHAOS_NODE": "5"}) == (5, 1)


def test_a_local_rank_without_a_gpu_is_told_so() -> None:
    with pytest.raises(ConfigError, match="no gpu3"):
        enter_gpu_network({"LOCAL_RANK": "3", "CHAOS_LAB_NETNS": '{"gpu0": "/proc/1/fd/5"}'})


def test_generations_are_counted_in_a_file_that_outlives_restarts(tmp_path: Path) -> None:
    file = tmp_path / "checkpoints" / "generation"
    assert [count_up(file) for _ in range(3)] == [1, 2, 3]
    assert [path.name for path in file.parent.iterdir()] == ["generation"]


def test_the_document_and_the_command_know_the_recoveries_that_the_trainer_has() -> None:
    """Three packages name them that may not import one another."""
    option = get_type_hints(run)["recovery"]
    commanded = get_args(next(part for part in get_args(option) if part is not type(None)))
    assert set(get_args(Workload.model_fields["recovery"].annotation)) == set(commanded) == set(get_args(RecoveryName))
