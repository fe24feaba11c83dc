"""What missing beacons mean and what is done about it, by pure rules."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import product

import pytest

from chaos.workload.reference.beacons import BEAT_S, NVLINK, PCIE, SILENT_S, UNHEARD_S, Report, partners
from chaos.workload.reference.config import Place
from chaos.workload.reference.launcher.paths import (
    FLAP_S,
    FRESH_S,
    HOLD_S,
    LONGEST_HOLD_S,
    Choice,
    Link,
    Paths,
)

# Processes 1 and 2 on node 0, 3 and 4 on node 1, 5 and 6 on node 2, the spare one.
WORLD = {1: Place(0, 0), 2: Place(0, 1), 3: Place(1, 0), 4: Place(1, 1)}
SPARE_NODE = {5: Place(2, 0), 6: Place(2, 1)}
MEMBERS = list(WORLD)
NODE_0 = [1, 2]


def link(one: int, other: int, path: str) -> Link:
    return Link(frozenset((one, other)), path)


class Cluster:
    """Processes that beat, send beacons, hear and report as real ones do, and a launcher, in steps of a beat.

    Attributes:
        dead: what is dropped: sender, receiver, path.
        stopped: processes whose watcher does not run.
        late: processes whose watcher skips beats without being stopped: they hear later.
    """

    def __init__(self, places: dict[int, Place]) -> None:
        self.now = 100.0
        self.paths = Paths()
        self.places = places
        self.dead: set[tuple[int, int, str]] = set()
        self.stopped: set[int] = set()
        self.late: set[int] = set()
        self._heard: dict[tuple[int, int, str], float] = {}
        self._silent: set[tuple[int, int, str]] = set()
        self.watch(places)
        self.run(UNHEARD_S + 2 * SILENT_S)

    def watch(self, places: dict[int, Place]) -> None:
        self.places = places
        self.paths.watch(places, self.now)
        for receiver, others in partners(places).items():
            for sender, paths in others.items():
                for path in paths:
                    self._heard.setdefault((receiver, sender, path), self.now)

    def beat(self) -> None:
        """One beat: the watchers in the order that is worst for the stopped (senders first), then the launcher."""
        self.now += BEAT_S
        running = [process for process in self.places if process not in self.stopped]
        for process in running:
            self.paths.beat(process, self.now)
        self.paths.look(self.now)
        for receiver, sender, path in self._heard:
            if receiver in running and receiver not in self.late and sender in self.places:
                alive = sender in running and (sender, receiver, path) not in self.dead
                self._judge(receiver, sender, path, alive)
        self.paths.look(self.now)

    def _judge(self, receiver: int, sender: int, path: str, alive: bool) -> None:
        key = receiver, sender, path
        if alive:
            self._heard[key] = self.now
            if key in self._silent:
                self._silent.remove(key)
                self.paths.hear(receiver, Report(sender, path, None), self.now)
        elif key not in self._silent and self.now - self._heard[key] > SILENT_S:
            self._silent.add(key)
            self.paths.hear(receiver, Report(sender, path, self._heard[key]), self.now)

    def run(self, seconds: float) -> None:
        for _ in range(round(seconds / BEAT_S)):
            self.beat()

    def until(self, happens: Callable[[], bool], within: float) -> float:
        """Beats until something happens; returns after how many seconds."""
        started = self.now
        while not happens():
            assert self.now - started < within, "it does not happen"
            self.beat()
        return self.now - started

    def drop(self, pairs: Iterable[tuple[int, int]], path: str) -> None:
        """Both ways."""
        for one, other in pairs:
            self.dead |= {(one, other, path), (other, one, path)}

    def choose(self, medium: str, members: list[int] = NODE_0) -> Choice | None:
        return self.paths.choose(0, members, medium, self.now)

    def moves(self, medium: str) -> None:
        self.paths.moved(0, medium, self.now)


@pytest.fixture
def cluster() -> Cluster:
    return Cluster(WORLD)


@pytest.fixture
def with_spares() -> Cluster:
    return Cluster(WORLD | SPARE_NODE)


# -- who watches whom --------------------------------------------------------------------------------------------------


def test_neighbours_watch_each_other_on_both_paths_and_equal_gpus_of_other_nodes_on_pcie() -> None:
    both, slow = (NVLINK, PCIE), (PCIE,)
    found = partners(WORLD | SPARE_NODE)
    assert found[1] == {2: both, 3: slow, 5: slow}
    assert found[4] == {3: both, 2: slow, 6: slow}
    assert all(found[other][one] == paths for one, others in found.items() for other, paths in others.items())


def test_the_number_of_partners_grows_with_gpus_plus_nodes() -> None:
    big = {number: Place(*place) for number, place in enumerate(product(range(10), range(8)))}
    assert {len(others) for others in partners(big).values()} == {7 + 9}


def test_nodes_that_share_no_gpu_index_watch_each_other_all_the_same() -> None:
    assert partners({1: Place(0, 1), 2: Place(1, 2), 3: Place(1, 3)}) == {
        1: {2: (PCIE,)},
        2: {1: (PCIE,), 3: (NVLINK, PCIE)},
        3: {2: (NVLINK, PCIE)},
    }


def test_a_lone_process_has_no_partner() -> None:
    assert partners({7: Place(0, 0)}) == {7: {}}


# -- whose fault a silence is ------------------------------------------------------------------------------------------


def test_nothing_is_sick_where_nothing_is_dropped(with_spares: Cluster) -> None:
    with_spares.run(2.0)
    assert with_spares.paths.sick == {}
    assert with_spares.choose(NVLINK) is None
    assert with_spares.paths.cut_off(MEMBERS) == {}


def test_a_black_hole_is_believed_as_soon_as_it_is_reported(cluster: Cluster) -> None:
    last = cluster.now
    cluster.drop([(1, 2)], NVLINK)
    took = cluster.until(lambda: bool(cluster.paths.sick), within=1.0)
    assert took <= SILENT_S + 2 * BEAT_S
    assert cluster.paths.sick == {link(1, 2, NVLINK): pytest.approx(last + BEAT_S)}


def test_one_way_is_enough_and_the_link_is_clean_only_when_both_ways_are_heard(cluster: Cluster) -> None:
    cluster.dead = {(1, 2, NVLINK)}
    cluster.run(0.3)
    assert set(cluster.paths.sick) == {link(1, 2, NVLINK)}
    cluster.dead = {(2, 1, NVLINK)}  # the other way instead; both are silent for a moment
    cluster.run(0.3)
    assert set(cluster.paths.sick) == {link(1, 2, NVLINK)}
    cluster.dead = set()
    cluster.run(2 * BEAT_S)
    assert cluster.paths.sick == {}


def test_of_two_silences_one_that_ends_leaves_the_link_sick(cluster: Cluster) -> None:
    cluster.drop([(1, 2)], NVLINK)
    cluster.run(0.3)
    cluster.dead = {(1, 2, NVLINK)}
    cluster.run(0.3)
    assert set(cluster.paths.sick) == {link(1, 2, NVLINK)}


def test_a_sick_link_does_not_get_well_because_its_sender_is_stopped(cluster: Cluster) -> None:
    cluster.drop([(1, 2)], NVLINK)
    cluster.run(0.3)
    cluster.dead, cluster.stopped = set(), {1}
    cluster.run(0.2)
    cluster.paths.hear(1, Report(2, NVLINK, None), cluster.now)
    cluster.beat()
    assert set(cluster.paths.sick) == {link(1, 2, NVLINK)}, "2 has not heard it again"


@pytest.mark.control
def test_a_stopped_process_is_no_paths_fault_not_even_when_it_wakes(with_spares: Cluster) -> None:
    with_spares.stopped = {1}
    for _ in range(100):
        with_spares.beat()
        assert with_spares.paths.sick == {}
    with_spares.stopped = set()
    for _ in range(20):  # its first heartbeat is read before anybody says that it is heard again
        with_spares.beat()
        assert with_spares.paths.sick == {}


@pytest.mark.parametrize("stalled", ["stopped", "late"])
def test_a_receiver_that_wakes_later_than_the_sender_accuses_nobody(cluster: Cluster, stalled: str) -> None:
    cluster.stopped = {1}
    cluster.run(0.3)
    getattr(cluster, stalled).add(2)
    if stalled == "late":  # beats that it sent before it could read do not say that it heard nothing
        cluster.paths._beats[2].clear()
    cluster.stopped.discard(1)
    for _ in range(10):
        cluster.now += BEAT_S
        cluster.paths.beat(1, cluster.now)
        cluster.paths.look(cluster.now)
        assert cluster.paths.sick == {}
    cluster.stopped, cluster.late = set(), set()
    for _ in range(20):
        cluster.beat()
        assert cluster.paths.sick == {}


def judged(sent: Iterable[float], received: Iterable[float], now: float) -> bool:
    """Whether 2 is believed that it has heard nothing from 1 since instant 0, by the heartbeats of both."""
    paths = Paths()
    paths.watch(WORLD, -10.0)
    for process, beats in ((1, sent), (2, received)):
        for at in beats:
            paths.beat(process, at)
    paths.hear(2, Report(1, NVLINK, 0.0), now)
    paths.look(now)
    return bool(paths.sick)


def test_three_heartbeats_of_the_sender_since_the_first_missed_beacon_make_a_silence_believed() -> None:
    assert judged([-0.01, 0.01, 0.03, 0.05, 0.07], [0.11], now=0.12)
    assert not judged([-0.01, 0.01, 0.05, 0.07], [0.11], now=0.12)
    assert not judged([0.03, 0.05, 0.07], [0.06], now=0.12), "the receiver has not said anything after the third"
    assert not judged([], [0.11], now=0.12)
    assert not judged([0.03, 0.05, 0.07], [], now=0.12)


def test_several_heartbeats_at_once_prove_no_more_than_one() -> None:
    waking = [0.2, 0.2001, 0.201, 0.205, 0.21]  # its status changes while it takes in what it has missed
    assert not judged(waking, [0.212], now=0.212)
    assert not judged([*waking, 0.22], [0.225], now=0.225)
    assert judged([*waking, 0.22, 0.24], [0.245], now=0.245)
    assert not judged([0.03, 0.05, 0.07], [0.06, 0.0701], now=0.08), "its next look at the sockets is still to come"


def test_a_sender_whose_newest_heartbeat_is_old_may_have_been_stopped_since() -> None:
    sent, received = [0.03, 0.05, 0.07], [0.11, 0.13]
    assert judged(sent, received, now=0.07 + FRESH_S - 0.001)
    assert not judged(sent, received, now=0.07 + FRESH_S + 0.001)


def test_heartbeats_that_a_late_launcher_reads_at_once_count_when_they_were_sent(cluster: Cluster) -> None:
    """The sender is stopped after ``since``; its last heartbeats are read long afterwards, with the report."""
    since = cluster.now
    for beat in range(3):
        cluster.paths.beat(1, since - 2 * BEAT_S + beat * BEAT_S)
    cluster.paths.beat(2, since + 0.2)
    cluster.paths.hear(2, Report(1, NVLINK, since), since + 0.2)
    cluster.paths.look(since + 0.2)
    assert cluster.paths.sick == {}


def test_what_was_pending_is_believed_when_the_sender_lives_and_the_path_stays_dead(cluster: Cluster) -> None:
    cluster.stopped = {1}
    cluster.run(0.1)
    cluster.drop([(1, 2)], NVLINK)
    cluster.run(0.5)
    assert cluster.paths.sick == {}
    cluster.stopped = set()
    cluster.run(4 * BEAT_S)
    assert set(cluster.paths.sick) == {link(1, 2, NVLINK)}


def test_the_dead_and_those_no_longer_watched_leave_nothing_sick(cluster: Cluster) -> None:
    cluster.drop([(1, 2), (1, 3)], PCIE)
    cluster.run(0.3)
    assert set(cluster.paths.sick) == {link(1, 2, PCIE), link(1, 3, PCIE)}
    others = {number: place for number, place in WORLD.items() if number != 1}
    cluster.watch(others)
    assert cluster.paths.sick == {}
    cluster.watch(WORLD)
    cluster.paths.look(cluster.now)
    assert set(cluster.paths.sick) == {link(1, 2, PCIE), link(1, 3, PCIE)}, "it lives, and so do the silences"
    cluster.paths.forget(1)
    cluster.watch(others)
    cluster.watch(WORLD)
    cluster.run(0.1)
    assert cluster.paths.sick == {}, "nor are the silences of the dead kept"


# -- which medium a node uses ------------------------------------------------------------------------------------------


def test_a_sick_nvlink_makes_the_node_use_pcie_at_once_and_its_end_brings_it_back_without_a_gap(
    cluster: Cluster,
) -> None:
    last = cluster.now
    cluster.drop([(1, 2)], NVLINK)
    cluster.until(lambda: cluster.choose(NVLINK) is not None, within=0.2)
    choice = cluster.choose(NVLINK)
    assert choice == Choice(PCIE, True, pytest.approx(last + BEAT_S), "nvlink between processes 1 and 2: silent")
    assert cluster.paths.choose(1, [3, 4], NVLINK, cluster.now) is None, "the other node is well"
    cluster.moves(PCIE)
    cluster.run(3.0)
    assert cluster.choose(PCIE) is None, "as long as it lasts"
    cluster.dead = set()
    cluster.run(BEAT_S)
    healed = cluster.now
    took = cluster.until(lambda: cluster.choose(PCIE) is not None, within=2.0)
    assert took == pytest.approx(HOLD_S, abs=1.5 * BEAT_S)
    choice = cluster.choose(PCIE)
    assert choice is not None
    assert (choice.medium, choice.at_once, choice.since) == (NVLINK, False, pytest.approx(healed))


def test_a_relapse_within_the_hold_time_starts_it_anew(cluster: Cluster) -> None:
    cluster.drop([(1, 2)], NVLINK)
    cluster.run(0.3)
    cluster.moves(PCIE)
    for _ in range(5):
        cluster.dead = set()
        cluster.run(0.8)
        assert cluster.choose(PCIE) is None
        cluster.drop([(1, 2)], NVLINK)
        cluster.run(0.3)
    cluster.dead = set()
    cluster.run(HOLD_S + 2 * BEAT_S)
    assert cluster.choose(PCIE) is not None


def test_nobody_returns_while_a_member_is_stopped(cluster: Cluster) -> None:
    cluster.drop([(1, 2)], NVLINK)
    cluster.run(0.3)
    cluster.moves(PCIE)
    cluster.dead, cluster.stopped = set(), {1}
    cluster.run(3.0)
    assert cluster.choose(PCIE) is None
    cluster.stopped = set()
    cluster.run(HOLD_S / 2)
    assert cluster.choose(PCIE) is None
    cluster.run(HOLD_S)
    assert cluster.choose(PCIE) is not None


def test_a_link_of_a_new_process_is_not_clean_before_its_silence_would_have_shown(cluster: Cluster) -> None:
    cluster.drop([(1, 2)], NVLINK)
    cluster.run(0.3)
    cluster.moves(PCIE)
    cluster.run(5.0)
    cluster.paths.forget(1)
    cluster.watch({7: Place(0, 0), 2: Place(0, 1)})
    cluster.run(UNHEARD_S + HOLD_S)
    assert cluster.choose(PCIE, [7, 2]) is None
    cluster.run(2 * SILENT_S)
    assert cluster.choose(PCIE, [7, 2]) is not None


def test_links_that_stay_watched_do_not_wait_anew(cluster: Cluster) -> None:
    cluster.drop([(1, 2)], NVLINK)
    cluster.run(0.3)
    cluster.moves(PCIE)
    cluster.dead = set()
    cluster.run(HOLD_S - 0.1)
    cluster.watch(WORLD | SPARE_NODE)
    assert cluster.choose(PCIE) is None
    cluster.run(0.2)
    assert cluster.choose(PCIE) is not None


def test_a_node_with_one_member_left_returns_after_the_hold_time(cluster: Cluster) -> None:
    cluster.moves(PCIE)
    cluster.run(HOLD_S - 0.1)
    assert cluster.choose(PCIE, [1]) is None
    cluster.run(0.2)
    assert cluster.choose(PCIE, [1]) is not None


def test_where_both_media_are_sick_nothing_helps(cluster: Cluster) -> None:
    cluster.drop([(1, 2)], NVLINK)
    cluster.drop([(1, 2)], PCIE)
    cluster.run(0.3)
    assert cluster.choose(NVLINK) is None
    assert cluster.choose(PCIE) is None


def test_a_sick_pcie_path_makes_the_node_use_nvlink_at_once_whatever_the_hold_time(cluster: Cluster) -> None:
    cluster.drop([(1, 2)], NVLINK)
    cluster.run(0.3)
    cluster.moves(PCIE)
    cluster.dead = set()
    cluster.run(0.1)
    last = cluster.now
    cluster.drop([(1, 2)], PCIE)
    cluster.run(0.2)
    choice = cluster.choose(PCIE)
    assert choice == Choice(NVLINK, True, pytest.approx(last + BEAT_S), "pcie between processes 1 and 2: silent")
    assert cluster.choose(NVLINK) is None, "on NVLink a sick PCIe path is not in the way"


def test_only_links_among_the_members_of_the_node_count() -> None:
    cluster = Cluster({1: Place(0, 0), 2: Place(0, 1), 3: Place(0, 2), 4: Place(1, 0)})
    cluster.drop([(1, 3), (2, 3)], NVLINK)
    cluster.drop([(1, 4)], PCIE)
    cluster.run(0.3)
    assert cluster.choose(NVLINK, [1, 2]) is None
    choice = cluster.choose(NVLINK, [1, 2, 3])
    assert choice is not None
    assert choice.why == "nvlink between processes 1 and 3 and 1 more: silent"


# -- flapping ----------------------------------------------------------------------------------------------------------


def hold_time(cluster: Cluster) -> float:
    """Lets the path fail and heal once, follows the choices, and returns how long the node stayed away."""
    cluster.drop([(1, 2)], NVLINK)
    cluster.until(lambda: cluster.choose(NVLINK) is not None, within=0.2)
    cluster.moves(PCIE)
    cluster.dead = set()
    cluster.run(BEAT_S)
    took = cluster.until(lambda: cluster.choose(PCIE) is not None, within=60.0)
    cluster.moves(NVLINK)
    return took


def test_flapping_doubles_the_hold_time_up_to_a_bound_and_calm_brings_it_back(cluster: Cluster) -> None:
    expected = [1.0, 2.0, 4.0, 8.0, 16.0, LONGEST_HOLD_S, LONGEST_HOLD_S]
    assert [hold_time(cluster) for _ in expected] == [pytest.approx(hold, abs=2 * BEAT_S) for hold in expected]
    cluster.run(FLAP_S + 0.1)
    assert hold_time(cluster) == pytest.approx(HOLD_S, abs=2 * BEAT_S)


def test_another_nodes_flapping_is_its_own(cluster: Cluster) -> None:
    for _ in range(4):
        for medium in (PCIE, NVLINK):
            cluster.paths.moved(1, medium, cluster.now)
    assert hold_time(cluster) == pytest.approx(HOLD_S, abs=2 * BEAT_S)


# -- who is cut off ----------------------------------------------------------------------------------------------------


def of_gpu(process: int, places: dict[int, Place]) -> list[tuple[int, int]]:
    """What a dead PCIe link of one GPU drops."""
    return [(process, other) for other in places if other != process]


def of_rail(node: int, places: dict[int, Place]) -> list[tuple[int, int]]:
    """What a dead rail of a node drops."""
    inside = {process for process, place in places.items() if place.node == node}
    return [(one, other) for one in inside for other in places if other not in inside]


@pytest.mark.parametrize("spares", [{}, SPARE_NODE])
@pytest.mark.parametrize("process", MEMBERS)
def test_a_gpu_with_a_dead_pcie_link_is_cut_off(process: int, spares: dict[int, Place]) -> None:
    cluster = Cluster(WORLD | spares)
    last = cluster.now
    cluster.drop(of_gpu(process, cluster.places), PCIE)
    cluster.run(0.3)
    assert cluster.paths.cut_off(MEMBERS) == {process: pytest.approx(last + BEAT_S)}


def test_the_instant_of_being_cut_off_is_that_of_the_pcie_path(cluster: Cluster) -> None:
    cluster.drop([(1, 2)], NVLINK)
    cluster.run(1.0)
    last = cluster.now
    cluster.drop(of_gpu(1, cluster.places), PCIE)
    cluster.run(0.3)
    assert cluster.paths.cut_off(MEMBERS) == {1: pytest.approx(last + BEAT_S)}


@pytest.mark.parametrize("node", [0, 1])
def test_a_node_with_a_dead_rail_is_cut_off_where_spares_tell_the_sides_apart(with_spares: Cluster, node: int) -> None:
    last = with_spares.now
    with_spares.drop(of_rail(node, with_spares.places), PCIE)
    with_spares.run(0.3)
    side = [process for process, place in WORLD.items() if place.node == node]
    assert with_spares.paths.cut_off(MEMBERS) == dict.fromkeys(side, pytest.approx(last + BEAT_S))


def test_nobody_is_cut_off_before_every_way_round_is_known_to_be_dead(with_spares: Cluster) -> None:
    with_spares.drop([(1, 3), (1, 5), (2, 4)], PCIE)  # 2 to 6 still passes
    with_spares.run(0.3)
    assert with_spares.paths.cut_off(MEMBERS) == {}


def test_one_way_is_enough_to_be_cut_off(with_spares: Cluster) -> None:
    with_spares.dead = {(1, other, PCIE) for other in with_spares.places}
    with_spares.run(0.3)
    assert set(with_spares.paths.cut_off(MEMBERS)) == {1}


def test_without_a_spare_node_two_equal_sides_tell_nothing(cluster: Cluster) -> None:
    cluster.drop(of_rail(0, cluster.places), PCIE)
    cluster.run(0.3)
    assert len(cluster.paths.sick) == 2
    assert cluster.paths.cut_off(MEMBERS) == {}


def test_two_nodes_of_one_gpu_each_tell_nothing() -> None:
    cluster = Cluster({1: Place(0, 0), 2: Place(1, 0)})
    cluster.drop([(1, 2)], PCIE)
    cluster.run(0.3)
    assert len(cluster.paths.sick) == 1
    assert cluster.paths.cut_off([1, 2]) == {}


def test_a_dead_spine_cuts_nobody_off(with_spares: Cluster) -> None:
    for node in range(3):
        with_spares.drop(of_rail(node, with_spares.places), PCIE)
    with_spares.run(0.3)
    assert len(with_spares.paths.sick) == 6
    assert with_spares.paths.cut_off(MEMBERS) == {}


def test_of_a_spare_node_that_is_cut_off_no_spare_can_be_used(with_spares: Cluster) -> None:
    with_spares.drop(of_rail(2, with_spares.places), PCIE)
    with_spares.run(0.3)
    assert set(with_spares.paths.cut_off(MEMBERS)) == {5, 6}


def test_within_one_node_pcie_is_not_needed(with_spares: Cluster) -> None:
    with_spares.drop(of_gpu(1, with_spares.places), PCIE)
    with_spares.run(0.3)
    assert with_spares.paths.cut_off([1, 2]) == {}


def test_a_sick_nvlink_cuts_nobody_off(with_spares: Cluster) -> None:
    with_spares.drop([(1, 2), (3, 4)], NVLINK)
    with_spares.run(0.3)
    assert with_spares.paths.cut_off(MEMBERS) == {}


def test_a_stopped_node_is_not_cut_off(with_spares: Cluster) -> None:
    with_spares.stopped = {1, 2}
    with_spares.run(1.0)
    assert with_spares.paths.cut_off(MEMBERS) == {}
    with_spares.stopped = set()
    for _ in range(20):
        with_spares.beat()
        assert with_spares.paths.cut_off(MEMBERS) == {}


def test_after_the_replacement_the_old_place_is_outside_and_nobody_else_is(with_spares: Cluster) -> None:
    with_spares.drop(of_gpu(1, with_spares.places), PCIE)
    with_spares.run(0.3)
    assert set(with_spares.paths.cut_off([5, 2, 3, 4])) == {1}


def test_more_members_weigh_more_than_more_processes() -> None:
    places = {1: Place(0, 0), 2: Place(0, 1), 3: Place(1, 0), 4: Place(1, 1), 5: Place(1, 2), 6: Place(1, 3)}
    cluster = Cluster(places)
    cluster.drop(of_rail(0, places), PCIE)
    cluster.run(0.3)
    assert set(cluster.paths.cut_off([1, 2, 3])) == {3, 4, 5, 6}


def test_members_on_one_node_know_whom_they_could_not_take_in(with_spares: Cluster) -> None:
    """They do not need the rail among themselves, but whoever is to join them does."""
    with_spares.drop(of_rail(2, with_spares.places), PCIE)
    with_spares.run(0.3)
    assert set(with_spares.paths.cut_off([1, 2])) == {5, 6}


def test_who_was_never_heard_is_not_proven_and_who_is_heard_is_after_a_while() -> None:
    cluster = Cluster({1: Place(0, 0), 2: Place(0, 1)})
    cluster.dead = {(3, 1, PCIE)}  # one way is enough
    cluster.watch(cluster.places | {3: Place(1, 0)})
    assert cluster.paths.proven([1, 2], cluster.now) == {1, 2}
    cluster.run(UNHEARD_S + 2 * SILENT_S)
    assert cluster.paths.proven([1, 2], cluster.now) == {1, 2}
    cluster.dead = set()
    cluster.run(0.2)
    assert cluster.paths.proven([1, 2], cluster.now) == {1, 2, 3}


def test_members_apart_are_told_from_members_with_a_way_round(cluster: Cluster) -> None:
    cluster.drop([(1, 2)], NVLINK)
    cluster.run(0.3)
    assert not cluster.paths.apart([1, 2, 3, 4]), "they have PCIe"
    cluster.drop(of_rail(0, cluster.places), PCIE)
    cluster.run(0.3)
    assert cluster.paths.apart([1, 2, 3, 4])
    assert not cluster.paths.apart([1, 2]), "the others are no members"
