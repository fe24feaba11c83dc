"""The agent holds faults: promised on the disk before they are made, undone whatever happens to it or its controller.

Each test runs a real agent over its pipe; the fault is a file, made by an injector that writes down its calls.
"""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_process import PLANTED, AgentProcess
from lab_help import eventually

from chaos import __version__


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    with AgentProcess(tmp_path) as it:
        yield it


def test_a_fault_lives_in_the_order_of_the_contract(agent: AgentProcess) -> None:
    assert agent.hello["left"] == []
    at = time.monotonic_ns() + 500_000_000
    armed = agent.arm(duration=0.05, at=at)
    assert armed["evidence"] == {"effective": False, "text": "there is no file", "numbers": {"there": False}}
    assert json.loads(agent.record().read_text()) == armed["record"]
    assert agent.fire(at=at)["effective"] is True
    ended = agent.event("ended")
    undone = agent.event("undone")
    assert undone["residue"] == []
    fired = next(message for message in agent.seen if message.get("event") == "fired")
    assert fired["scheduled_ns"] == at <= fired["effect_ns"]
    assert ended["scheduled_ns"] == fired["effect_ns"] + 50_000_000 <= ended["ended_ns"], "it lasts from its effect on"
    assert not ended["early"]
    assert agent.names() == [
        *("plan", "prepare", "witness before", "inject", "witness during", "undo", "undo", "witness after")
    ]
    assert not agent.effect()
    assert not agent.record().exists()
    assert agent.ask("bye").keys() == {"re"}
    assert agent.end() == 0


def test_the_promise_is_on_the_disk_and_locked_before_the_first_change_and_to_the_end(agent: AgentProcess) -> None:
    agent.arm(duration=0.05)
    agent.fire()
    agent.event("undone")
    plan, *rest = agent.calls()
    assert not plan["on_disk"]
    assert rest
    assert all(call["on_disk"] and call["locked"] for call in rest), rest


def test_the_record_says_until_when_whose_and_by_whom(agent: AgentProcess) -> None:
    at = time.monotonic_ns()
    record = agent.arm(at=at, duration=2.0)["record"]
    assert record["deadline_ns"] == at + 7_000_000_000
    assert (record["owner"], record["boot"], record["agent"]) == ("a-run", agent.hello["boot"], __version__)
    assert record["devices"] == [f"file:{agent.folder}/f1"]


def test_a_later_instant_than_it_was_armed_for_is_refused(agent: AgentProcess) -> None:
    """The deadline on the disk follows from the instant that it was armed for."""
    at = time.monotonic_ns()
    agent.arm(at=at)
    assert "was armed for an earlier instant" in agent.ask("fire", fault="f1", at=at + 1)["error"]
    assert agent.fire(at=at)["effective"] is True


def test_an_order_that_comes_too_late_to_end_by_the_deadline_makes_nothing(agent: AgentProcess) -> None:
    agent.arm(at=time.monotonic_ns() - 4_100_000_000)
    agent.ask("fire", fault="f1", at=0)
    assert "its instant had passed 4." in agent.event("failed")["error"]
    assert agent.event("undone")["residue"] == []
    assert "inject" not in agent.names()


def test_without_a_record_nothing_is_made(agent: AgentProcess) -> None:
    agent.record().with_suffix(".json.new").mkdir()  # the disk refuses
    assert "Is a directory" in agent.arm()["error"]
    assert agent.names() == ["plan"]
    eventually(lambda: "error" in agent.ask("fire", fault="f1", at=0), "a refusal to fire what is not armed")


def test_a_plan_that_refuses_leaves_nothing(agent: AgentProcess) -> None:
    assert agent.arm(fail={"plan": 1})["error"] == "planted"
    assert not agent.record().exists()
    assert "record" in agent.arm(), "the same fault may be asked for again"


def test_a_preparation_that_fails_is_undone(agent: AgentProcess) -> None:
    assert "planted" in agent.arm(fail={"prepare": 1})["error"]
    assert agent.event("undone")["residue"] == []
    assert agent.names() == ["plan", "prepare", "undo", "witness after"]
    assert not agent.record().exists()


def test_an_injection_that_fails_is_told_and_undone(agent: AgentProcess) -> None:
    agent.arm(fail={"inject": 1})
    agent.ask("fire", fault="f1", at=0)
    assert agent.event("failed")["error"] == "OSError: [Errno 5] planted"
    assert agent.event("undone")["residue"] == []
    assert not any(message.get("event") == "fired" for message in agent.seen)
    assert not agent.record().exists()


def test_a_witness_that_fails_has_seen_nothing(agent: AgentProcess) -> None:
    agent.arm(duration=0.02, fail={"witness during": 1})
    assert agent.fire()["effective"] is None
    assert agent.event("undone")["residue"] == []


def test_a_fault_without_an_end_is_undone_when_it_has_been_witnessed(agent: AgentProcess) -> None:
    agent.arm(duration=None)
    assert agent.fire()["effective"] is True
    assert agent.event("witness", phase="after")["effective"] is False
    agent.event("undone")
    assert not any(message.get("event") == "ended" for message in agent.seen)


def test_an_undo_that_fails_is_tried_again(agent: AgentProcess) -> None:
    agent.arm(duration=0.02, fail={"undo": 2})
    agent.fire()
    assert agent.event("failed")["error"] == "OSError: [Errno 5] planted"
    assert agent.event("undone")["residue"] == []
    assert agent.names().count("undo") == 3
    assert not agent.effect()
    assert not agent.record().exists()


def test_the_record_stays_while_anything_is_left_and_others_try_again(agent: AgentProcess) -> None:
    agent.arm(duration=0.02, left=99)
    agent.fire()
    assert agent.event("undone")["residue"] == ["a planted rest"]
    assert agent.record().exists()
    assert "is held here already" in agent.arm()["error"], "its record would be lost"
    assert "is taken by fault f1 of run a-run" in agent.arm("f2", device=f"file:{agent.folder}/f1")["error"]
    agent.orphan()
    with AgentProcess(agent.folder) as following:
        assert following.hello["left"] == ["fault f1: a planted rest"]
        assert following.hello["swept"] == [
            {"fault": "f1", "kind": "test.planted", "owner": "a-run", "residue": ["fault f1: a planted rest"]}
        ]
        assert following.record().exists()
        error = following.arm("f2")["error"]
        assert error == "this node still has a former fault: fault f1: a planted rest; chaos sweep clears it"
        following.ask("bye")
        following.end()
    record = json.loads(agent.record().read_text())
    record["params"]["left"] = 0
    agent.record().write_text(json.dumps(record))
    with AgentProcess(agent.folder) as last:
        assert last.hello["left"] == []
        assert [each["fault"] for each in last.hello["swept"]] == ["f1"]
        assert not last.record().exists()


def test_an_undo_that_never_works_is_told_and_kept(agent: AgentProcess) -> None:
    agent.arm(duration=0.02, fail={"undo": 99})
    agent.fire()
    assert agent.event("undone")["residue"] == ["the undo failed: OSError: [Errno 5] planted"]
    assert agent.effect()
    assert agent.record().exists()


# -- disarmed, or left alone ------------------------------------------------------------------------------------------


def test_disarmed_before_it_is_fired_it_is_never_made(agent: AgentProcess) -> None:
    agent.arm()
    assert "error" not in agent.ask("disarm", fault="f1")
    assert agent.event("undone")["residue"] == []
    assert "inject" not in agent.names()
    assert not agent.record().exists()


def test_disarmed_while_it_waits_for_its_instant_it_is_never_made(agent: AgentProcess) -> None:
    later = time.monotonic_ns() + 60_000_000_000
    agent.arm(at=later)
    agent.ask("fire", fault="f1", at=later)
    agent.ask("disarm", fault="f1")
    agent.event("undone")
    assert "inject" not in agent.names()


def test_disarmed_while_it_is_in_effect_it_ends_early(agent: AgentProcess) -> None:
    agent.arm()
    agent.fire()
    assert agent.effect()
    agent.ask("disarm", fault="f1")
    assert agent.event("ended")["early"] is True
    assert agent.event("undone")["residue"] == []
    assert not agent.effect()
    assert "error" not in agent.ask("disarm", fault="f1"), "to disarm what has just ended is no mistake"


def leave(agent: AgentProcess, how: str) -> None:
    if how == "end of input":
        agent.input.close()
    elif how == "bye":
        agent.say(op="bye")
    elif how != "lapsed lease":
        agent.process.send_signal(getattr(signal, how))


@pytest.mark.parametrize("fired", [True, False], ids=["in effect", "armed only"])
@pytest.mark.parametrize("how", ["end of input", "bye", "lapsed lease", "SIGTERM", "SIGHUP"])
def test_whatever_ends_the_agent_it_undoes_first(tmp_path: Path, how: str, fired: bool) -> None:
    with AgentProcess(tmp_path, lease=0.3 if how == "lapsed lease" else 60.0) as agent:
        agent.arm()
        if fired:
            agent.fire()
        leave(agent, how)
        assert agent.event("undone")["residue"] == []
        assert agent.end() == 0
        agent.gone()
        assert ("inject" in agent.names()) == fired


def test_a_controller_whose_machine_hangs_is_left_alone_with_its_pipe(tmp_path: Path) -> None:
    """Nobody reads the agent's output any more: what it wants to say must not keep it from undoing."""
    with AgentProcess(tmp_path) as agent:
        agent.arm()
        agent.fire()
        agent._output.close()
        agent.input.close()
        agent.process.wait()
        agent.gone()


def test_a_controller_that_reads_no_more_holds_no_undo_up(agent: AgentProcess) -> None:
    """Its pipe fills up; what cannot be said must not keep the agent from anything."""
    agent.arm()
    agent.fire()
    agent.write(b"".join(b'{"id":%d,"op":"ping"}\n' % number for number in range(4000)))
    agent.gone()
    assert agent.process.wait() == 0


def test_a_ctrl_c_in_the_terminal_is_for_the_controller(agent: AgentProcess) -> None:
    agent.arm()
    agent.fire()
    agent.process.send_signal(signal.SIGINT)
    assert "t" in agent.ask("ping")
    assert agent.effect()


def test_a_fault_on_the_control_path_is_held_to_its_end_without_a_controller(agent: AgentProcess) -> None:
    agent.arm(on_eof="hold", duration=0.5)
    agent.fire()
    agent.input.close()
    ended = agent.event("ended")
    assert ended["ended_ns"] >= ended["scheduled_ns"]
    assert not ended["early"]
    assert agent.event("undone")["residue"] == []
    assert agent.end() == 0


def test_a_fault_to_be_held_that_was_never_fired_ends_with_the_controller(agent: AgentProcess) -> None:
    agent.arm(on_eof="hold")
    agent.input.close()
    agent.event("undone")
    assert agent.end() == 0
    assert "inject" not in agent.names()
    agent.gone()


def test_a_goodbye_undoes_even_what_was_to_be_held(agent: AgentProcess) -> None:
    agent.arm(on_eof="hold")
    agent.fire()
    agent.ask("bye")
    assert agent.end() == 0
    agent.gone()


# -- killed -----------------------------------------------------------------------------------------------------------


def test_an_orphaned_fault_is_undone_by_the_next_agent_from_the_record_alone(agent: AgentProcess) -> None:
    agent.arm()
    agent.fire()
    agent.orphan()
    assert agent.effect()
    assert agent.record().exists()
    with AgentProcess(agent.folder) as following:
        assert following.hello["left"] == []
        agent.gone()
        # Asked for again it is a new fault.
        following.arm()
        assert following.fire()["effective"] is True


def test_the_fault_of_a_living_agent_is_not_touched_by_another(agent: AgentProcess) -> None:
    agent.arm("f1")
    agent.fire("f1")
    with AgentProcess(agent.folder) as other:
        assert other.hello["left"] == []
        assert agent.effect("f1")
        other.arm("f2")
        other.fire("f2")
        other.ask("bye")
        assert other.end() == 0
    assert agent.effect("f1")
    agent.ask("disarm", fault="f1")
    assert agent.event("undone")["residue"] == []
    assert "undo" not in [call["call"] for call in agent.calls("f1") if not call["locked"]]


def test_a_record_of_a_newer_version_is_refused_and_left_alone_and_the_others_are_undone(agent: AgentProcess) -> None:
    for fault in ("a", "z"):
        agent.arm(fault)
        agent.fire(fault)
    agent.orphan()
    record = json.loads(agent.record("a").read_text())
    newer = json.dumps(record | {"version": 3, "fault": "m", "more": 1, "agent": "9.1"})
    agent.record("m").write_text(newer)
    with AgentProcess(agent.folder) as following:
        [left] = following.hello["left"]
        assert left == (
            f"an undo record cannot be read, so nobody knows what to undo: {agent.record('m')}: the undo record has "
            "version 3 (written by agent 9.1), this program reads up to 2: undo it with that agent's version or a "
            "newer one"
        )
        assert left in following.arm("new")["error"]
    assert agent.record("m").read_text() == newer
    for fault in ("a", "z"):
        agent.gone(fault)


def test_a_record_of_an_older_version_is_undone_after_an_upgrade(agent: AgentProcess) -> None:
    agent.arm()
    agent.fire()
    agent.orphan()
    record = json.loads(agent.record().read_text()) | {"version": 1}
    del record["devices"], record["agent"]
    agent.record().write_text(json.dumps(record))
    with AgentProcess(agent.folder) as following:
        assert following.hello["left"] == []
        agent.gone()


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"version": true}', '{"version": 1, "unknown": 2}'])
def test_a_record_that_is_none_is_told_by_name_and_never_taken_for_clean(tmp_path: Path, text: str) -> None:
    """A record cut short, or written over by somebody."""
    path = tmp_path / "state/faults/broken.json"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    with AgentProcess(tmp_path) as agent:
        [left] = agent.hello["left"]
        assert f" {path}: " in left
        assert len(left.splitlines()) == 1
        assert left in agent.arm()["error"]
        answer = agent.ask("sweep", implementations=[])
        assert answer["unknown"] == [left]
    assert path.read_text() == text


def test_an_orphan_whose_injector_is_gone_is_told_and_kept(agent: AgentProcess) -> None:
    agent.arm("f1")
    agent.orphan()
    record = json.loads(agent.record().read_text())
    agent.record().write_text(json.dumps(record | {"implementation": "no_such_module:Thing"}))
    with AgentProcess(agent.folder) as following:
        [left] = following.hello["left"]
        assert left.startswith("fault f1 is not undone: this agent has no injector no_such_module:Thing")
        assert following.record().exists()


# -- requests ---------------------------------------------------------------------------------------------------------


def test_two_faults_at_once_are_independent(agent: AgentProcess) -> None:
    agent.arm("f1", duration=60.0)
    agent.arm("f2", duration=0.02)
    agent.ask("fire", fault="f1", at=0)
    agent.ask("fire", fault="f2", at=0)
    assert agent.event("undone", "f2")["residue"] == []
    assert agent.effect("f1")
    assert not agent.effect("f2")
    assert "is held here already" in agent.arm("f1")["error"]
    agent.arm("f3", fail={"inject": 1})
    agent.ask("fire", fault="f3", at=0)
    agent.event("undone", "f3")
    assert agent.effect("f1")
    agent.ask("bye")
    for fault in ("f1", "f2", "f3"):
        agent.gone(fault)


def test_many_faults_one_after_the_other_then_goodbye(agent: AgentProcess) -> None:
    for number in range(10):
        agent.arm(f"f{number}", duration=0.0)
        agent.ask("fire", fault=f"f{number}", at=0)
        agent.event("undone", f"f{number}")
    opened = Path(f"/proc/{agent.process.pid}/fd")
    before = len(list(opened.iterdir()))
    for number in range(10, 20):
        agent.arm(f"f{number}", duration=0.0)
        agent.ask("fire", fault=f"f{number}", at=0)
        agent.event("undone", f"f{number}")
    eventually(lambda: len(list(opened.iterdir())) <= before, "no more open descriptors than before")
    assert agent.ask("bye").keys() == {"re"}
    assert agent.end() == 0


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({}, "'op' is missing"),
        ({"op": "dance"}, "this agent does not know the request 'dance'"),
        ({"op": None}, "does not know the request None"),
        ({"op": "fire", "fault": "f9", "at": 0}, "no fault f9 is armed here"),
        ({"op": "fire"}, "'fault' is missing"),
        ({"op": "fire", "fault": []}, "unhashable"),
        ({"op": "disarm", "fault": "f9"}, "no fault f9 was armed here"),
        ({"op": "arm", "fault": "f9"}, "'implementation' is missing"),
        ({"op": "probe", "implementation": "nowhere:X", "params": {}, "target": {}}, "has no injector nowhere:X"),
        ({"op": "probe", "implementation": "", "params": {}, "target": {}}, "has no injector : Empty module name"),
        ({"op": "status", "fault": "../../etc/passwd"}, "is no fault's id"),
        ({"op": "status", "fault": 5}, "is no fault's id"),
        ({"op": "probe", "implementation": PLANTED, "params": {"no": 1}, "target": {}}, "unexpected keyword argument"),
        ({"op": "probe", "implementation": PLANTED, "params": {"folder": ""}, "target": 5}, "item assignment"),
        (
            {"op": "probe", "implementation": PLANTED, "params": {"folder": "", "fail": {"support": 1}}, "target": {}},
            "planted",
        ),
    ],
)
def test_a_bad_request_is_answered_with_one_line_and_harms_nothing(
    shared: AgentProcess, request_: dict[str, object], message: str
) -> None:
    number = shared.say(**request_)
    answer = shared.next()
    assert answer["re"] == number
    assert message in answer["error"]
    assert len(answer["error"].splitlines()) == 1
    assert shared.effect(), "the fault that it holds"


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    """An agent that holds a fault through all bad requests."""
    with AgentProcess(tmp_path_factory.mktemp("agent")) as it:
        it.arm()
        it.fire()
        yield it


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"implementation": "planted_injectors:Nothing"}, "has no injector planted_injectors:Nothing"),
        ({"params": {}}, "folder"),
        ({"target": {"moon": 1}}, "moon"),
        ({"at": "soon"}, "TypeError"),
    ],
)
def test_a_fault_that_makes_no_sense_is_not_armed(agent: AgentProcess, fields: dict[str, object], message: str) -> None:
    error = agent.arm(**fields)["error"]
    assert message in error
    assert len(error.splitlines()) == 1
    assert not agent.record().exists()
    assert "t" in agent.ask("ping")


@pytest.mark.parametrize("line", [b"garbage\n", b"[1]\n", b"\xff\xfe\n", b"\n", b"null\n"])
def test_what_is_no_request_at_all_is_told_and_everything_is_undone(agent: AgentProcess, line: bytes) -> None:
    agent.arm()
    agent.fire()
    agent.write(line)
    answer = agent.next()
    assert answer["re"] is None
    assert answer["error"].startswith("a line of the agent's pipe is no JSON object: ")
    agent.event("undone")
    assert agent.end() == 0
    agent.gone()


def test_requests_may_come_in_pieces_and_together(agent: AgentProcess) -> None:
    data = b'{"id":"a","op":"ping"}\n{"id":"b","op":"renew"}\n{"id":"c","op":"ping"}\n'
    for k in range(0, len(data), 7):
        agent.write(data[k : k + 7])
    assert [agent.next()["re"] for _ in range(3)] == ["a", "b", "c"]


def test_what_is_missing_on_the_node_is_told(agent: AgentProcess) -> None:
    probe = {"implementation": PLANTED, "target": {"node": 0}}
    assert agent.ask("probe", params={"folder": ""}, **probe)["missing"] == []
    answer = agent.ask("probe", params={"folder": "", "left": 1}, **probe)
    assert (answer["reality"], answer["missing"]) == ("telemetry", ["luck"])


def test_what_injectors_print_goes_to_the_log(agent: AgentProcess) -> None:
    agent.arm()
    agent.ask("bye")
    agent.end()
    assert "may print what it likes" in (agent.folder / "stderr").read_text()


def test_a_state_folder_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("a file is in the way")
    with AgentProcess(tmp_path) as agent:
        assert "Not a directory" in agent.hello["error"]
        assert agent.end() == 1
