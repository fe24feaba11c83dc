"""The controller's end of an agent's pipe: against real agents here and on a node, and against broken ones."""

from __future__ import annotations

import json
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from lab_help import eventually

from chaos.agent import protocol
from chaos.lab.cluster import Lab
from chaos.lab.topology import LabSpec
from chaos.transport import lab as lab_transport
from chaos.transport import local
from chaos.transport.pipe import AgentClient, AgentError, Clock, ClockKeeper

Events = queue.SimpleQueue[dict[str, Any]]


@pytest.fixture
def events() -> Events:
    return queue.SimpleQueue()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with Lab.up(LabSpec(nodes=2, gpus=1), tmp_path_factory.mktemp("transport") / "lab") as it:
        yield it


def local_agent(lab: Lab, tmp_path: Path, events: Events) -> AgentClient:
    return local.start(tmp_path / "state", tmp_path / "log", events.put)


def lab_agent(lab: Lab, tmp_path: Path, events: Events) -> AgentClient:
    return lab_transport.start(lab, 0, tmp_path / "log", events.put)


BOTH = pytest.mark.parametrize("start", [local_agent, lab_agent])
Start = Callable[[Lab, Path, Events], AgentClient]

pytestmark = pytest.mark.lab


@BOTH
def test_hello_requests_and_goodbye(start: Start, lab: Lab, tmp_path: Path, events: Events) -> None:
    agent = start(lab, tmp_path, events)
    assert agent.hello["protocol"] == protocol.VERSION
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    assert agent.hello["boot"] == (lab.show()["nodes"][0]["boot_id"] if start is lab_agent else boot)
    assert agent.request("ping")["t"] > 0
    with pytest.raises(AgentError, match="does not know the request 'dance'"):
        agent.request("dance")
    assert not agent.gone
    agent.close()
    assert agent.gone
    agent.close()  # idempotent
    with pytest.raises(AgentError, match=r"the agent of .* has gone"):
        agent.request("ping")


@BOTH
def test_of_the_same_clock_the_offset_is_within_its_uncertainty(
    start: Start, lab: Lab, tmp_path: Path, events: Events
) -> None:
    agent = start(lab, tmp_path, events)
    assert abs(agent.clock.offset_ns) <= agent.clock.uncertainty_ns
    assert agent.clock.ours(agent.clock.theirs(5)) == 5
    agent.close()


def test_another_clock() -> None:
    clock = Clock(offset_ns=1_000, uncertainty_ns=10)
    assert clock.theirs(5) == 1_005
    assert clock.ours(1_005) == 5


@BOTH
@pytest.mark.parametrize("waiting", [True, False], ids=["asked", "idle"])
def test_an_agent_that_is_killed_is_an_error_and_no_hang(
    start: Start, waiting: bool, lab: Lab, tmp_path: Path, events: Events
) -> None:
    agent = start(lab, tmp_path, events)
    errors: list[str] = []
    pid = agent.hello["pid"]

    def send(number: int) -> None:
        if start is lab_agent:
            lab.run(["/bin/kill", f"-{number}", str(pid)], node=0)
        else:
            os.kill(pid, number)

    def ask() -> None:
        try:
            agent.request("ping")
        except AgentError as error:
            errors.append(str(error))

    asker = threading.Thread(target=ask)
    if waiting:  # stopped, it cannot answer any more
        send(signal.SIGSTOP)
        asker.start()
        eventually(lambda: agent._open, "the request")
    send(signal.SIGKILL)
    eventually(lambda: agent.gone, "the agent's end")
    if waiting:
        asker.join()
        assert errors == [f"the agent of {agent.name} has gone"]
    with pytest.raises(AgentError, match="has gone"):
        agent.request("ping")
    agent.close()


def test_a_node_that_loses_its_power_takes_its_agent_along(lab: Lab, tmp_path: Path, events: Events) -> None:
    agent = lab_transport.start(lab, 1, tmp_path / "log", events.put)
    lab.power(1, "off")
    eventually(lambda: agent.gone, "the agent's end")
    agent.close()
    lab.wait_power(1, "off")
    with pytest.raises(AgentError, match="no agent starts on node 1: node 1 is off"):
        lab_transport.start(lab, 1, tmp_path / "log", events.put)
    lab.power(1, "on")
    again = lab_transport.start(lab, 1, tmp_path / "log", events.put)
    assert again.hello["boot"] != agent.hello["boot"]
    again.close()


def test_an_agent_that_cannot_work_says_why(tmp_path: Path, events: Events) -> None:
    (tmp_path / "state").write_text("a file is in the way")
    with pytest.raises(AgentError, match=r"the agent of the controller cannot work: .*Not a directory"):
        local.start(tmp_path / "state", tmp_path / "log", events.put)


def test_an_agent_that_does_not_start_says_so(tmp_path: Path, events: Events, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "AGENT", "no.such.agent")
    with pytest.raises(AgentError, match="the agent of the controller does not start"):
        local.start(tmp_path / "state", tmp_path / "log", events.put)


def test_the_shortest_round_trip_tells_the_clock_until_drift_may_have_made_it_worse() -> None:
    keeper = ClockKeeper()
    keeper.add(0, 1_000_050_000, 100_000)  # 0.1 ms
    assert keeper.clock == Clock(1_000_000_000, 50_000)
    keeper.add(0, 1_002_000_000, 2_000_000)  # 2 ms: says less
    assert keeper.clock.uncertainty_ns == 50_000
    keeper.add(1_000_000_000, 2_000_110_000, 1_000_200_000)  # 0.2 ms, a second later: at 100 ppm the old one may be off
    assert keeper.clock == Clock(1_000_010_000, 100_000)
    keeper.add(1_000_200_000, 2_000_240_000, 1_000_260_000)
    assert keeper.clock.uncertainty_ns == 30_000, "a shorter one is always better"


# -- an agent made of two pipes ---------------------------------------------------------------------------------------


class Fake:
    """An agent that answers pings, or says what the test wants it to say."""

    def __init__(self, *first: bytes) -> None:
        self.requests, self.stdin = os.pipe()
        self.stdout, self.answers = os.pipe()
        self.say(*first)
        self._thread = threading.Thread(target=self._serve, daemon=True)
        self._thread.start()
        self.mute = False
        self.asked: list[dict[str, Any]] = []

    def say(self, *lines: bytes) -> None:
        for line in lines:
            os.write(self.answers, line)

    def _serve(self) -> None:
        lines = protocol.Lines()
        while data := os.read(self.requests, 65536):
            for message in lines.feed(data):
                self.asked.append(message)
                if not self.mute:
                    self.say(protocol.encode({"re": message["id"], "t": time.monotonic_ns()}))
        self.end()

    def end(self) -> None:
        if self.answers >= 0:
            os.close(self.answers)
            self.answers = -1

    def wait(self, timeout: float | None = None) -> int | None:
        return 0

    def signal(self, number: int) -> None:
        self.end()


HELLO = protocol.encode({"event": "hello"})


def client(fake: Fake, on_event: Callable[[dict[str, Any]], None] = lambda _: None) -> AgentClient:
    return AgentClient("fake", fake.stdin, fake.stdout, fake, on_event)


def test_lines_that_come_in_pieces_are_put_together(events: Events) -> None:
    fake = Fake(HELLO[:5], HELLO[5:])
    agent = client(fake, events.put)
    whole = json.dumps({"event": "fired", "fault": "ü"}, ensure_ascii=False).encode() + b"\n"
    for k in range(len(whole)):
        fake.say(whole[k : k + 1])
    assert events.get(timeout=30) == {"event": "fired", "fault": "ü"}
    agent.close()


@pytest.mark.parametrize("line", [b"Welcome to node 7!\n", b"[]\n", b"\xff\n", b'{"neither": 1}\n', b'{"re": \n'])
@pytest.mark.parametrize("when", ["before the hello", "later"])
def test_what_is_no_message_ends_the_connection_and_is_shown(line: bytes, when: str) -> None:
    message = "the agent of fake .*is not understood: (a line of the agent's pipe is no JSON object|neither an answer)"
    if when == "before the hello":
        with pytest.raises(AgentError, match=message):
            client(Fake(line))
        return
    fake = Fake(HELLO)
    agent = client(fake)
    fake.mute = True
    fake.say(line)
    eventually(lambda: agent.gone, "the end of the connection")
    with pytest.raises(AgentError, match=message):
        agent.request("ping")
    agent.kill()


def test_a_torn_last_line_is_no_message(events: Events) -> None:
    fake = Fake(HELLO)
    agent = client(fake, events.put)
    fake.say(b'{"event": "fired", "fau')
    fake.end()
    assert events.get(timeout=30) == {"event": "gone"}
    assert agent.gone
    assert events.empty()
    agent.kill()


def test_an_answer_that_does_not_come_is_an_error() -> None:
    fake = Fake(HELLO)
    agent = client(fake)
    fake.mute = True
    with pytest.raises(AgentError, match=r"the agent of fake does not answer within 0\.01 s"):
        agent.request("ping", timeout=0.01)
    fake.mute = False
    assert "t" in agent.request("ping"), "a late answer to the one is no answer to the other"
    fake.say(protocol.encode({"re": 999}))
    assert "t" in agent.request("ping")
    agent.close()


def test_an_agent_that_dies_after_its_hello_is_an_error(events: Events) -> None:
    reader, stdin = os.pipe()
    stdout, answers = os.pipe()
    os.write(answers, HELLO)
    os.close(answers)
    os.close(reader)

    class Dead:
        def wait(self, timeout: float | None = None) -> int | None:
            return -9

        def signal(self, number: int) -> None:
            raise AssertionError("it is dead already")

    with pytest.raises(AgentError, match="the agent of fake has gone"):
        AgentClient("fake", stdin, stdout, Dead(), events.put)


def test_the_lease_is_renewed_until_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "RENEW_EVERY", 0.01)
    fake = Fake(HELLO)
    agent = client(fake)
    eventually(lambda: [m["op"] for m in fake.asked].count("renew") >= 3, "renewals")
    agent.close()
    assert fake.asked[-1]["op"] in ("bye", "renew")


def test_an_agent_that_does_not_say_goodbye_is_killed() -> None:
    fake = Fake(HELLO)
    agent = client(fake)
    fake.mute = True
    with pytest.raises(AgentError, match=r"does not answer within 0\.05 s"):
        agent.close(0.05)
    assert agent.gone
