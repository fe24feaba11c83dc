"""``container.*`` on a real Docker engine."""

from __future__ import annotations

import http.server
import json
import os
import queue
import signal
import socketserver
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from docker_engine import INSIDE_PYTHON, PYTHON, Engine, docker_engine, engine  # noqa: F401 - fixtures
from lab_help import eventually, in_effect, until

from chaos.transport import local
from chaos.transport.pipe import AgentClient, AgentError
from injectors import _containers, kernel
from injectors._engine import EngineGone, Refused
from injectors.container import (
    Disconnect,
    DisconnectParams,
    Pause,
    PauseParams,
    Signal,
    SignalParams,
    Stop,
    StopParams,
)
from injectors.contract import InjectorError, Order, Target, UndoRecord

ROOT = Path(__file__).resolve().parents[2]
BUSY = ("/bin/sh", "-c", "while true; do :; done")
DEAF = ("/bin/sh", "-c", "trap '' TERM; echo ready; while true; do sleep 1000 & wait $!; done")
BARE = ("/bin/sh", "-c", "echo ready; exec sleep 1000")  # without a handler of any signal


@pytest.fixture
def there(docker_engine: Engine) -> Engine:  # noqa: F811
    return docker_engine


def ordered(params: Any, duration: float | None = None) -> Order:
    return Order("f1", params, Target(node=0), duration)


def planned(injector: Any, params: Any, duration: float | None = 60.0) -> UndoRecord:
    """A record as the agent writes it, ready to be injected."""
    record: UndoRecord = injector.plan(ordered(params, duration))
    record.boot = kernel.boot_id()
    injector.prepare(record)
    return UndoRecord.from_dict(json.loads(json.dumps(record.as_dict())))


def paused(there: Engine, name: str) -> bool:
    return bool(there.state(name)["Paused"])


def restarted(there: Engine, name: str, pid: int) -> bool:
    state = there.state(name)
    return bool(state["Running"] and not state["Restarting"] and state["Pid"] not in (0, pid))


# -- which container -------------------------------------------------------------------------------------------------


def test_a_name_is_matched_exactly_and_never_in_part(there: Engine) -> None:
    """CASES 61: a part of a name must not kill too many."""
    web, _ = there.run("web"), there.run("web2")
    with pytest.raises(InjectorError, match=r"no container 'we' \(exact name, .*running are .*web2? \(.*running\)"):
        Pause().plan(ordered(PauseParams("we", socket=there.socket), 1.0))
    record = planned(Pause(), PauseParams("web", socket=there.socket))
    assert record.before["id"] == web
    Pause().inject(record)
    assert paused(there, "web") and not paused(there, "web2")


def test_an_id_is_given_in_full_or_by_twelve_characters(there: Engine) -> None:
    made = there.run("one")
    for given in (made, made[:12], made[:30]):
        assert Pause().plan(ordered(PauseParams(given, socket=there.socket), 1.0)).before["id"] == made
    with pytest.raises(InjectorError, match="there is no container"):
        Pause().plan(ordered(PauseParams(made[:11], socket=there.socket), 1.0))


def test_a_label_that_several_bear_is_refused_with_their_names(there: Engine) -> None:
    there.run("one", labels={"job": "a", "role": "x"})
    there.run("two", labels={"job": "a", "role": "y"})
    with pytest.raises(InjectorError, match=r"2 containers have the label 'job=a': (one|two) .*, (one|two) .*; aim at"):
        Pause().plan(ordered(PauseParams(label="job=a", socket=there.socket), 1.0))
    for label, name in (("role=x", "one"), ("role=y", "two")):
        assert Pause().plan(ordered(PauseParams(label=label, socket=there.socket), 1.0)).before["name"] == name
    with pytest.raises(InjectorError, match="no container has the label 'job=b'"):
        Pause().plan(ordered(PauseParams(label="job=b", socket=there.socket), 1.0))
    there.api.stop("two", timeout=0)
    found = Pause().plan(ordered(PauseParams(label="job", socket=there.socket), 1.0))
    assert found.before["name"] == "one", "one that has ended is not meant"


def test_a_name_that_looks_like_an_id_is_a_name_and_what_is_both_is_refused() -> None:
    def listed(container: str, name: str) -> dict[str, Any]:
        return {"Id": container, "Names": [f"/{name}", f"/other/{name}2"], "State": "running", "Labels": None}

    one, two = listed("a" * 64, "abcdefabcdef"), listed("abcdefabcdef" + "0" * 52, "two")
    three = listed("abcdefabcdef" + "1" * 52, "three")
    assert _containers.choose([one, two], "abcdefabcdef", None) == one["Id"]
    assert _containers.choose([two], "abcdefabcdef", None) == two["Id"]
    with pytest.raises(InjectorError, match=r"is the name or the id of 2 containers: two .*, three"):
        _containers.choose([two, three], "abcdefabcdef", None)
    with pytest.raises(InjectorError, match="there is no container 'two2'"):  # what a third one calls it
        _containers.choose([two], "two2", None)


@pytest.mark.parametrize("given", [{}, {"container": "a", "label": "b"}, {"container": ""}, {"label": ""}])
def test_one_of_container_and_label_is_given(given: dict[str, str]) -> None:
    for params, more in (
        (PauseParams, {}),
        (StopParams, {}),
        (DisconnectParams, {}),
        (SignalParams, {"signal": "KILL"}),
    ):
        with pytest.raises(ValueError, match=r"found (neither|both) of|found nothing in it"):
            params(**given, **more)


def test_only_a_running_container_can_be_hit(there: Engine) -> None:
    there.run("one")
    there.api.pause("one")
    with pytest.raises(InjectorError, match=r"container one \(.*\) is paused already, by somebody else"):
        Stop().plan(ordered(StopParams("one", socket=there.socket), 1.0))
    there.api.unpause("one")
    record = planned(Pause(), PauseParams("one", socket=there.socket))
    there.api.stop("one", timeout=0)
    for injector, params in ((Pause(), PauseParams), (Stop(), StopParams), (Disconnect(), DisconnectParams)):
        with pytest.raises(InjectorError, match=r"is exited: only a running container can be hit"):
            injector.plan(ordered(params("one", socket=there.socket), 1.0))
    with pytest.raises(InjectorError, match="has ended, or was started again"):
        Pause().prepare(record)


def test_the_agents_own_container_is_never_hit(there: Engine) -> None:
    """In a container that shares the node's PID namespace and has the engine's socket, as agents are often run."""
    script = f"""
import sys; sys.path.insert(0, {str(ROOT)!r})
from injectors.container import *
from injectors.contract import *
for name in ("agent", "other"):
    try:
        print(Pause().plan(Order("f1", PauseParams(name, socket={there.socket!r}), Target(node=0), 1.0)).before["name"])
    except InjectorError as error:
        print(error)
"""
    there.run("other")
    binds = [f"{ROOT}:{ROOT}:ro", f"{there.folder}:{there.folder}"]
    for hostname in (None, "a-name-of-its-own"):
        made = there.run("agent", image=PYTHON, host={"binds": binds, "pid_mode": "host"}, hostname=hostname)
        told = there.api.exec_start(there.api.exec_create(made, [INSIDE_PYTHON, "-c", script])["Id"]).decode()
        assert told.splitlines() == [
            f"container agent ({made[:12]}) is the one that this agent runs in: it is never hit",
            "other",
        ]
        there.api.remove_container(made, force=True)


def test_without_a_view_of_its_processes_a_container_is_refused(there: Engine) -> None:
    there.run("one")
    command = [sys.executable, "-c", "from injectors.container import *; from injectors.contract import *\n"]
    command[-1] += f"Pause().plan(Order('f1', PauseParams('one', socket={there.socket!r}), Target(), 1.0))"
    told = subprocess.run(
        ["unshare", "--pid", "--fork", "--mount-proc", *command], cwd=ROOT, stderr=subprocess.PIPE, check=False
    )
    assert b"cannot be seen from here: run the agent on the node itself" in told.stderr


# -- support ---------------------------------------------------------------------------------------------------------


def missing(path: object, target: Target = Target()) -> str:  # noqa: B008 - frozen
    return "; ".join(Pause().support(PauseParams("one", socket=str(path)), target).missing)


def test_what_is_missing_is_said_with_its_remedy(there: Engine, tmp_path: Path) -> None:
    assert missing(there.socket) == ""
    assert missing(tmp_path / "none") == (
        f"no container engine: there is no {tmp_path}/none; start one, or name its socket with `socket`"
    )
    assert missing(there.socket, Target(node=0, namespaces={"gpu0": "/proc/1/fd/5"})) == (
        "a container engine: a node of the lab has none, and the machine's own containers are no part of it; "
        "write `cluster: FILE`, an inventory of nodes with an engine"
    )


def test_what_answers_must_be_an_engine(tmp_path: Path) -> None:
    class Server(socketserver.UnixStreamServer):
        def get_request(self) -> Any:
            return self.socket.accept()[0], ("somebody", 0)

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    path = str(tmp_path / "s")
    with Server(path, Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        assert missing(path) == f"what listens at {path} is no container engine: it answers with 404"
        server.shutdown()
    assert missing(path) == (
        f"the container engine is down: nobody listens at {path}; start it (systemctl start docker)"
    )


def test_an_ordinary_user_cannot_tell_and_says_so(there: Engine) -> None:
    """CASES 16: an unprivileged undo reports no success while the effect stays."""
    there.run("one")
    record = planned(Pause(), PauseParams("one", socket=there.socket))
    Pause().inject(record)
    script = (
        "import sys, json, os\n"
        "from injectors.container import *; from injectors.contract import *\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "record = UndoRecord.from_dict(json.load(sys.stdin))\n"
        "for what in (Pause().undo, Pause().residue, lambda r: Pause().witness(r, 'after', 0.1)):\n"
        "    try:\n        print('told', what(record))\n    except InjectorError as error:\n        print(error)\n"
    )
    told = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        input=json.dumps(record.as_dict()),
        text=True,
        stdout=subprocess.PIPE,
        check=True,
    )
    assert told.stdout.splitlines() == [f"{there.socket} may not be used by user 65534: run the agent as root"] * 3
    assert paused(there, "one")


# -- signal ----------------------------------------------------------------------------------------------------------


def test_a_kill_is_a_crash_that_the_engine_sees(there: Engine) -> None:
    there.run("one")
    injector = Signal()
    record = injector.plan(ordered(SignalParams("KILL", "one", socket=there.socket)))
    record.boot = kernel.boot_id()
    injector.prepare(record)
    assert injector.witness(record, "before", 0.1).effective is False
    injector.inject(record)
    during = injector.witness(record, "during", 20)
    assert during.effective is True
    assert "it is exited with exit code 137 (restart policy no)" in during.text
    injector.undo(record)
    assert injector.residue(record) == []
    assert injector.witness(record, "after", 1).effective is False
    assert there.state("one")["ExitCode"] == 137


def test_a_container_that_its_restart_policy_brings_back_is_told_as_such(there: Engine) -> None:
    there.run("one", host={"restart_policy": {"Name": "always"}})
    injector = Signal()
    record = injector.plan(ordered(SignalParams("KILL", "one", socket=there.socket)))
    injector.prepare(record)
    injector.inject(record)
    during = injector.witness(record, "during", 20)
    assert during.effective is True
    assert "it is back by itself (restart policy always): running, process " in during.text
    assert (during.numbers["back"], during.numbers["restarts"]) == (True, 1)
    after = injector.witness(record, "after", 20)
    assert (after.effective, after.numbers["back"]) == (False, True)


@pytest.mark.parametrize(
    ("command", "effective", "text"),
    [
        ((), True, "has ended"),
        (DEAF, False, "ignores it"),
        (BARE, False, "does not handle it, and to a container's first process it then means nothing"),
    ],
    ids=["handles", "ignores", "nothing"],
)
def test_a_term_is_witnessed_by_what_the_container_does_with_it(
    there: Engine, command: tuple[str, ...], effective: bool, text: str
) -> None:
    there.run("one", *command)
    there.ready("one")
    injector = Signal()
    record = injector.plan(ordered(SignalParams("TERM", "one", socket=there.socket)))
    injector.prepare(record)
    injector.inject(record)
    during = injector.witness(record, "during", 20 if effective else 0.2)
    assert during.effective is effective, during
    assert text in during.text


def test_a_stopped_main_process_is_continued(there: Engine) -> None:
    there.run("one", *BUSY)
    injector = Signal()
    record = injector.plan(ordered(SignalParams("STOP", "one", socket=there.socket), 60.0))
    record.boot = kernel.boot_id()
    injector.prepare(record)
    assert injector.witness(record, "during", 0.1).effective is False, "nothing was done yet"
    injector.inject(record)
    pid = record.before["pid"]
    eventually(lambda: kernel.stat_fields(pid)[0] == "T", "the stopped process")
    assert injector.witness(record, "during", 0.1).effective is True
    assert injector.residue(record) == [f"process {pid} of container one ({record.before['id'][:12]}) is still stopped"]
    stranger = Signal()
    stranger.undo(record)
    stranger.undo(record)
    eventually(lambda: stranger.residue(record) == [], "the running process")
    assert stranger.witness(record, "after", 0.1).effective is False


def test_what_fits_to_a_signal() -> None:
    assert "needs `for:`" in str(SignalParams("STOP", "one").problem(None))
    assert SignalParams("STOP", "one").problem(1.0) is None
    assert "belongs to STOP alone" in str(SignalParams("KILL", "one").problem(1.0))
    assert SignalParams("KILL", "one").problem(None) is None


# -- pause -----------------------------------------------------------------------------------------------------------


def test_a_pause_stops_everything_and_is_undone_exactly(there: Engine) -> None:
    there.run("one", *BUSY)
    injector = Pause()
    record = planned(injector, PauseParams("one", socket=there.socket))
    before = injector.witness(record, "before", 0.1)
    assert (before.effective, before.numbers["frozen"]) == (False, False)
    assert injector.residue(record) == []
    injector.inject(record)
    during = injector.witness(record, "during", 0.1)
    assert during.effective is True, during
    assert during.numbers == {"paused": True, "frozen": True, "processes": 1, "cpu_ticks": 0}
    assert injector.residue(record) == [f"container one ({record.before['id'][:12]}) is still paused"]
    stranger = Pause()
    stranger.undo(record)
    stranger.undo(record)
    assert stranger.residue(record) == []
    after = stranger.witness(record, "after", 0.1)
    assert (after.effective, after.numbers["frozen"]) == (False, False)
    state = there.state("one")
    assert (state["Running"], state["Paused"], state["Pid"]) == (True, False, record.before["pid"])


@pytest.mark.control
def test_an_engine_that_calls_a_running_container_paused_is_not_believed(there: Engine) -> None:
    there.run("one", *BUSY)
    injector = Pause()
    record = planned(injector, PauseParams("one", socket=there.socket))
    injector.inject(record)
    assert injector.witness(record, "during", 0.1).effective is True
    [freezer] = [path for path in _containers._freezers(record.before["pid"]) if "unified" not in path]
    Path(freezer, "freezer.state").write_text("THAWED")
    eventually(lambda: _containers.frozen(record.before["pid"]) is False, "the open freezer")
    during = injector.witness(record, "during", 0.5)
    assert during.effective is False
    assert (during.numbers["paused"], during.numbers["frozen"]) == (True, False)


def test_the_freezer_of_the_second_version_is_seen_as_well() -> None:
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        mounts = [line.split()[4] for line in file if " - cgroup2 " in line]
    if os.geteuid() != 0 or not mounts:
        pytest.skip("NOT RUN: needs root and a cgroup2 mount")
    group = Path(mounts[0], f"chaos-test-{os.getpid()}")
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"NOT RUN: no cgroup can be made in {mounts[0]}: {error}")
    with subprocess.Popen(["sleep", "1000"]) as child:
        try:
            (group / "cgroup.procs").write_text(str(child.pid))
            assert _containers.frozen(child.pid) is False
            (group / "cgroup.freeze").write_text("1")
            eventually(lambda: _containers.frozen(child.pid), "the frozen process")
            (group / "cgroup.freeze").write_text("0")
            eventually(lambda: not _containers.frozen(child.pid), "the open freezer")
        finally:
            child.kill()
            child.wait()
            group.rmdir()


def test_of_two_paused_containers_only_the_own_one_is_continued(there: Engine) -> None:
    """CASES 17: undoing A does not undo B."""
    there.run("one")
    there.run("two")
    first, second = (planned(Pause(), PauseParams(name, socket=there.socket)) for name in ("one", "two"))
    Pause().inject(first)
    Pause().inject(second)
    Pause().undo(first)
    assert (paused(there, "one"), paused(there, "two")) == (False, True)
    assert Pause().residue(second) != []


def test_a_pause_that_somebody_else_made_of_a_later_start_is_left_alone(there: Engine) -> None:
    there.run("one")
    record = planned(Pause(), PauseParams("one", socket=there.socket))
    Pause().inject(record)
    there.api.restart("one", timeout=0)
    there.api.pause("one")
    Pause().undo(record)
    assert Pause().residue(record) == []
    assert paused(there, "one")


def test_a_container_made_anew_under_the_same_name_is_another_one(there: Engine) -> None:
    """CASES 14: the target is replaced during the fault, the undo looks up the one that was hit."""
    former = there.run("one")
    injector = Pause()
    record = planned(injector, PauseParams("one", socket=there.socket))
    injector.inject(record)
    there.api.remove_container(former, force=True)
    successor = there.run("one")
    there.api.pause(successor)  # by somebody else: it must stay so
    injector.undo(record)
    assert injector.residue(record) == []
    after = injector.witness(record, "after", 0.1)
    assert after.effective is False
    assert after.text == (
        f"container one ({former[:12]}) has gone; one ({successor[:12]}, paused) has its name now, and is left alone"
    )
    assert paused(there, successor)
    assert injector.witness(record, "during", 0.1).effective is None


# -- stop ------------------------------------------------------------------------------------------------------------


def test_a_stopped_container_is_started_again(there: Engine) -> None:
    made = there.run("one")
    injector = Stop()
    record = planned(injector, StopParams("one", socket=there.socket))
    assert injector.witness(record, "before", 0.1).effective is False
    assert injector.residue(record) == []
    injector.inject(record)
    during = injector.witness(record, "during", 0.1)
    assert during.effective is True, during
    assert during.numbers == {"running": False, "processes": 0}
    [left] = injector.residue(record)
    assert left.startswith(f"container one ({made[:12]}) is exited with exit code ")
    assert left.endswith(", and was not started again")
    stranger = Stop()
    stranger.undo(record)
    pid = there.state(made)["Pid"]
    stranger.undo(record)
    assert there.state(made)["Pid"] == pid, "an undo that comes twice starts it once"
    assert stranger.residue(record) == []
    after = stranger.witness(record, "after", 0.1)
    assert after.effective is False
    assert "it was started again at " in after.text


def test_one_that_does_not_heed_sigterm_is_killed_after_the_grace(there: Engine) -> None:
    there.run("one", *DEAF)
    there.ready("one")
    injector = Stop()
    record = planned(injector, StopParams("one", socket=there.socket, grace=0.0))
    injector.inject(record)
    assert injector.witness(record, "during", 0.1).effective is True
    assert there.state("one")["ExitCode"] == 137
    for grace in (-1.0, 0.5, 5.0):
        with pytest.raises(ValueError, match=r"a grace of .* s: 0s, 1s, 2s, 3s and 4s are possible"):
            StopParams("one", grace=grace)


def test_a_stop_that_is_still_on_its_way_is_waited_for_and_undone(there: Engine) -> None:
    """Whoever ordered it has died: the engine goes on with it, and at first the container still runs."""
    made = there.run("one", *DEAF)
    there.ready("one")
    record = planned(Stop(), StopParams("one", socket=there.socket, grace=2.0))
    stopping = threading.Thread(target=lambda: there.api.stop("one", timeout=2))
    stopping.start()
    stranger = Stop()
    stranger.undo(record)
    stopping.join()
    assert stranger.residue(record) == []
    state = there.state(made)
    assert state["Running"] and state["Pid"] != record.before["pid"]


def test_a_stop_that_was_planned_and_never_ordered_is_not_waited_for(there: Engine, monkeypatch: Any) -> None:
    there.run("one")
    injector = Stop()
    record = planned(injector, StopParams("one", socket=there.socket, grace=4.0))
    monkeypatch.setattr("injectors.container.time.sleep", lambda _: pytest.fail("it waits"))
    injector.undo(record)
    assert there.state("one")["Pid"] == record.before["pid"]


def test_what_could_not_be_started_again_is_refused(there: Engine) -> None:
    there.run("passing", host={"auto_remove": True})
    with pytest.raises(InjectorError, match=r"container passing is removed when it ends \(--rm\)"):
        Stop().plan(ordered(StopParams("passing", socket=there.socket), 1.0))


def test_whoever_shares_the_containers_network_is_no_target_by_the_way(there: Engine) -> None:
    there.run("one")
    there.run("beside", host={"network_mode": "container:one"})
    refused = r"container one shares its network namespace with beside \(.*\), which would lose the network as well"
    for injector, params in (
        (Stop(), StopParams("one", socket=there.socket)),
        (Disconnect(), DisconnectParams("one", socket=there.socket)),
        (Signal(), SignalParams("KILL", "one", socket=there.socket)),
    ):
        with pytest.raises(InjectorError, match=refused):
            injector.plan(ordered(params, 1.0))
    Pause().plan(ordered(PauseParams("one", socket=there.socket), 1.0))


def test_what_the_engines_restart_brings_back_is_told_and_left_as_it_is(there: Engine) -> None:
    there.run("one", host={"restart_policy": {"Name": "always"}})
    injector = Stop()
    record = planned(injector, StopParams("one", socket=there.socket))
    injector.inject(record)
    assert injector.witness(record, "during", 0.1).effective is True, "its policy is at rest after a stop"
    there.end(signal.SIGTERM)
    there.start()
    eventually(lambda: restarted(there, "one", record.before["pid"]), "the container that is back")
    during = injector.witness(record, "during", 0.1)
    assert during.effective is False
    assert "it came back by itself, or by somebody else" in during.text
    assert "(restart policy always)" in during.text
    pid = there.state("one")["Pid"]
    injector.undo(record)
    assert injector.residue(record) == []
    assert there.state("one")["Pid"] == pid


# -- disconnect ------------------------------------------------------------------------------------------------------


def network(there: Engine, name: str, subnet: str | None, subnet6: str | None = None) -> str:
    pools = [docker.types.IPAMPool(subnet=each) for each in (subnet, subnet6) if each]
    ipam = docker.types.IPAMConfig(pool_configs=pools) if pools else None
    return str(there.api.create_network(name, ipam=ipam, enable_ipv6=subnet6 is not None)["Id"])


def end_of(there: Engine, container: str, name: str) -> dict[str, Any] | None:
    found = there.api.inspect_container(container)["NetworkSettings"]["Networks"].get(name)
    return None if found is None else dict(found)


def shown(end: dict[str, Any] | None) -> dict[str, Any]:
    """What must be the same again."""
    assert end is not None
    same = (
        "NetworkID",
        "IPAddress",
        "IPPrefixLen",
        "Gateway",
        "GlobalIPv6Address",
        "MacAddress",
        "Links",
        "IPAMConfig",
    )
    return {key: end[key] for key in same} | {"Aliases": sorted(set(end["Aliases"] or []))}


def test_a_network_comes_back_with_aliases_links_and_addresses(there: Engine) -> None:
    rail = network(there, "rail", "10.77.0.0/24", "fd00:77::/64")
    there.run("peer")
    there.api.connect_container_to_network("peer", rail)
    made = there.run("one")
    there.api.connect_container_to_network(
        made, rail, ipv4_address="10.77.0.77", ipv6_address="fd00:77::77", aliases=["trainer"], links=[("peer", "p")]
    )
    former = end_of(there, made, "rail")
    injector = Disconnect()
    record = planned(injector, DisconnectParams("one", network="rail", socket=there.socket))
    before = injector.witness(record, "before", 0.1)
    assert (before.effective, before.numbers["address"], before.numbers["interface"]) == (False, "10.77.0.77", "eth1")
    assert injector.residue(record) == []
    injector.inject(record)
    during = injector.witness(record, "during", 0.1)
    assert during.effective is True, during
    assert "is not on network rail; its interfaces are eth0, lo" in during.text
    assert injector.residue(record) == [f"container one ({made[:12]}) is not on network rail"]
    stranger = Disconnect()
    stranger.undo(record)
    stranger.undo(record)
    assert stranger.residue(record) == []
    assert shown(end_of(there, made, "rail")) == shown(former)
    after = stranger.witness(record, "after", 0.1)
    assert after.effective is False
    renamed = {"interface": after.numbers["interface"]}  # the engine's to choose: it counts on
    assert after.numbers == before.numbers | renamed
    assert after.numbers["interface"] is not None
    assert f"its interface is {after.numbers['interface']}" in after.text


@pytest.mark.control
def test_a_network_that_comes_back_otherwise_is_residue(there: Engine) -> None:
    rail = network(there, "rail", "10.77.0.0/24")
    there.run("peer")
    there.api.connect_container_to_network("peer", rail)
    made = there.run("one")
    there.api.connect_container_to_network(
        made, rail, ipv4_address="10.77.0.77", aliases=["trainer"], links=[("peer", "p")]
    )
    record = planned(Disconnect(), DisconnectParams("one", network="rail", socket=there.socket))
    Disconnect().inject(record)
    there.api.connect_container_to_network(made, rail, ipv4_address="10.77.0.78")
    words = f"container one ({made[:12]})"
    assert Disconnect().residue(record) == [
        f"{words} lacks its alias trainer on network rail",
        f"{words} lacks its link peer:p on network rail",
        f"{words} has address 10.77.0.78 on network rail, and had 10.77.0.77",
    ]


@pytest.mark.control
def test_a_network_that_was_not_cut_is_no_effect(there: Engine) -> None:
    network(there, "rail", "10.77.0.0/24")
    there.run("one", host={"network_mode": "rail"})
    record = planned(Disconnect(), DisconnectParams("one", socket=there.socket))
    assert Disconnect().witness(record, "during", 0.1).effective is False


def test_an_address_of_the_engines_choice_is_asked_for_again_where_the_subnet_is_the_users(there: Engine) -> None:
    network(there, "rail", "10.77.0.0/24")
    there.run("one", host={"network_mode": "rail"})
    former = end_of(there, "one", "rail")
    record = planned(Disconnect(), DisconnectParams("one", socket=there.socket))
    Disconnect().inject(record)
    Disconnect().undo(record)
    now = end_of(there, "one", "rail")
    assert former is not None and now is not None
    assert now["IPAddress"] == former["IPAddress"]
    assert Disconnect().residue(record) == []


def test_a_subnet_of_the_engines_choice_is_refused_unless_another_address_will_do(there: Engine) -> None:
    network(there, "auto", None)
    there.run("one", host={"network_mode": "auto"})
    for name in ("auto", "bridge"):
        if name == "bridge":
            there.run("two")
        with pytest.raises(InjectorError, match=f"network {name} has a subnet of the engine's choice .*address: any"):
            Disconnect().plan(ordered(DisconnectParams("one" if name == "auto" else "two", socket=there.socket), 1.0))
    for name, container in (("auto", "one"), ("bridge", "two")):
        injector = Disconnect()
        record = planned(injector, DisconnectParams(container, address="any", socket=there.socket))
        injector.inject(record)
        assert injector.witness(record, "during", 0.1).effective is True
        injector.undo(record)
        assert injector.residue(record) == []
        assert end_of(there, container, name) is not None
        assert injector.witness(record, "after", 0.1).effective is False


def test_an_address_that_was_given_away_keeps_the_fault_open_until_it_is_free(there: Engine) -> None:
    rail = network(there, "rail", "10.77.0.0/24")
    there.run("one")
    there.api.connect_container_to_network("one", rail, ipv4_address="10.77.0.77")
    record = planned(Disconnect(), DisconnectParams("one", network="rail", socket=there.socket))
    Disconnect().inject(record)
    there.run("thief")
    there.api.connect_container_to_network("thief", rail, ipv4_address="10.77.0.77")
    with pytest.raises(Refused, match="Address already in use"):
        Disconnect().undo(record)
    assert Disconnect().residue(record) != []
    there.api.remove_container("thief", force=True)
    Disconnect().undo(record)
    assert Disconnect().residue(record) == []


def test_a_network_that_was_removed_meanwhile_is_not_made_anew(there: Engine) -> None:
    rail = network(there, "rail", "10.77.0.0/24")
    there.run("one", host={"network_mode": "rail"})
    record = planned(Disconnect(), DisconnectParams("one", socket=there.socket))
    Disconnect().inject(record)
    there.api.remove_network(rail)
    network(there, "rail", "10.77.0.0/24")  # of the same name, and another one
    Disconnect().undo(record)
    assert Disconnect().residue(record) == []
    assert end_of(there, "one", "rail") is None
    assert Disconnect().witness(record, "after", 0.1).text.endswith("the network has gone")


def test_which_network_is_said_where_there_are_several(there: Engine) -> None:
    rail = network(there, "rail", "10.77.0.0/24")
    made = there.run("one")
    there.api.connect_container_to_network("one", rail)
    with pytest.raises(InjectorError, match=r"several networks: write one as `network` \(it has bridge, rail\)"):
        Disconnect().plan(ordered(DisconnectParams("one", socket=there.socket), 1.0))
    with pytest.raises(InjectorError, match=r"no network 'rai' \(it has bridge, rail\)"):
        Disconnect().plan(ordered(DisconnectParams("one", network="rai", socket=there.socket), 1.0))
    for name in ("rail", rail):
        order = ordered(DisconnectParams("one", network=name, socket=there.socket), 1.0)
        assert Disconnect().devices(order) == (f"container:{made}:network:{rail}",)
    there.run("naked", host={"network_mode": "none"})
    with pytest.raises(InjectorError, match="container naked has no network of its own"):
        Disconnect().plan(ordered(DisconnectParams("naked", socket=there.socket), 1.0))


# -- an engine that is down ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["pause", "stop", "disconnect"])
def test_an_engine_that_is_down_is_never_taken_for_clean(there: Engine, kind: str) -> None:
    """CASES 10: what cannot be asked is unknown."""
    network(there, "rail", "10.77.0.0/24")
    there.run("one", host={"network_mode": "rail"})
    injector, params = {
        "pause": (Pause(), PauseParams("one", socket=there.socket)),
        "stop": (Stop(), StopParams("one", socket=there.socket, grace=0.0)),
        "disconnect": (Disconnect(), DisconnectParams("one", socket=there.socket)),
    }[kind]
    record = planned(injector, params)
    injector.inject(record)
    there.end(signal.SIGKILL)
    for ask in (injector.undo, injector.residue, lambda it: injector.witness(it, "after", 0.1)):
        with pytest.raises(EngineGone, match="the container engine is down: nobody listens at"):
            ask(record)
    there.start()
    assert injector.residue(record) != []
    injector.undo(record)
    assert injector.residue(record) == []
    state = there.state("one")
    assert state["Running"] and not state["Paused"]


# -- held by an agent ------------------------------------------------------------------------------------------------

Start = Callable[[], tuple[AgentClient, Any]]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Starts an agent on this machine, all with the same folders."""
    monkeypatch.setenv("CHAOS_RUNTIME", str(tmp_path / "run"))
    agents: list[AgentClient] = []

    def run() -> tuple[AgentClient, Any]:
        events: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        agents.append(local.start(tmp_path / "state", tmp_path / "log", events.put))
        return agents[-1], events

    yield run
    for agent in agents:
        if not agent.gone:
            agent.close()


def records(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "state" / "faults").glob("*.json"))


def pause(agent: AgentClient, there: Engine, fault: str, name: str, duration: float) -> None:
    params = {"container": name, "socket": there.socket}
    in_effect(agent, fault, "injectors.container:Pause", params, {"node": 0}, duration)


def test_one_of_several_containers_that_vanishes_keeps_no_other_from_being_undone(
    there: Engine, start: Start, tmp_path: Path
) -> None:
    """CASES 15."""
    agent, events = start()
    for name in ("one", "two", "three"):
        there.run(name)
        pause(agent, there, f"f-{name}", name, 60.0)
        until(events, "witness", fault=f"f-{name}", phase="during", effective=True)
    there.api.remove_container("two", force=True)
    agent.say_goodbye()
    told = {}
    gone = None
    while len(told) < 3:
        event = events.get(timeout=30)
        if event["event"] == "undone":
            told[event["fault"]] = event["residue"]
        elif event["event"] == "witness" and (event["fault"], event["phase"]) == ("f-two", "after"):
            gone = event["text"]
    agent.close()
    assert told == {"f-one": [], "f-two": [], "f-three": []}
    assert gone is not None and gone.startswith("container two (") and gone.endswith(") has gone")
    assert not paused(there, "one") and not paused(there, "three")
    assert records(tmp_path) == []


def test_an_agent_that_is_killed_leaves_no_container_paused(there: Engine, start: Start, tmp_path: Path) -> None:
    """CASES 13: its guardian continues it."""
    there.run("one")
    agent, events = start()
    pause(agent, there, "f1", "one", 60.0)
    until(events, "witness", fault="f1", phase="during", effective=True)
    os.kill(agent.hello["pid"], signal.SIGKILL)
    eventually(lambda: not paused(there, "one"), "the container that goes on")
    eventually(lambda: records(tmp_path) == [], "the record's end")


def test_an_engine_that_comes_back_late_still_undoes_the_fault(there: Engine, start: Start, tmp_path: Path) -> None:
    """Agent and engine are killed at once: the guardian tries until the engine answers again."""
    there.run("one")
    agent, events = start()
    pause(agent, there, "f1", "one", 60.0)
    until(events, "witness", fault="f1", phase="during", effective=True)
    there.end(signal.SIGKILL)
    os.kill(agent.hello["pid"], signal.SIGKILL)
    log = tmp_path / "state" / "guardian.log"
    eventually(lambda: log.exists() and "the container engine is down" in log.read_text(), "a try that fails")
    assert records(tmp_path) == ["f1.json"]
    there.start()
    eventually(lambda: not paused(there, "one"), "the container that goes on")
    eventually(lambda: records(tmp_path) == [], "the record's end")


def test_a_later_fault_of_the_same_run_waits_for_the_container(there: Engine, start: Start) -> None:
    there.run("one")
    agent, events = start()
    pause(agent, there, "f1", "one", 0.4)
    target = {"node": 0}
    at = agent.clock.theirs(time.monotonic_ns() + 3_000_000_000)
    params = {"signal": "KILL", "container": "one", "socket": there.socket}
    order = {"implementation": "injectors.container:Signal", "params": params, "target": target, "duration": None}
    with pytest.raises(AgentError, match="is taken by fault f1 of run a-run"):
        agent.request("arm", fault="f0", at=at, owner="another-run", **order)
    agent.request("arm", fault="f2", at=at, owner="a-run", **order)
    agent.request("fire", fault="f2", at=0)
    assert until(events, "witness", fault="f2", phase="during")["effective"] is True
    assert until(events, "undone", fault="f2")["residue"] == []
