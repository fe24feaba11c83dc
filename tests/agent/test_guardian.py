"""The guardian: whatever dies, and whenever, what the agent held is undone. Real processes, killed for real."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_process import PLANTED, ROOT, AgentProcess, kill_and_wait
from lab_help import eventually

from injectors import kernel


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[AgentProcess]:
    with AgentProcess(tmp_path) as it:
        yield it


def guardian_of(agent: AgentProcess) -> int:
    """The one guardian that it has told of."""
    [pid] = agent.guardians
    return pid


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def descriptors(pid: int) -> set[str]:
    return {str(each.readlink()) for each in Path(f"/proc/{pid}/fd").iterdir()}


def in_effect(agent: AgentProcess, fault: str = "f1", **more: object) -> int:
    """Arm and fire; the guardian's process id."""
    armed = agent.arm(fault, **more)
    assert agent.fire(fault)["effective"] is True
    return armed["guardian"]


def test_when_the_agent_is_killed_its_guardian_undoes_everything_and_leaves(agent: AgentProcess) -> None:
    """CASES 1 and 13."""
    guardian = in_effect(agent)
    in_effect(agent, "f2")
    agent.arm("f3")  # armed only
    agent.murder()
    for fault in ("f1", "f2", "f3"):
        agent.gone(fault)
    eventually(lambda: not alive(guardian), "the guardian's end")
    assert not list((agent.folder / "run/locks").iterdir()), "the devices are free"
    assert {call["pid"] for call in agent.calls() if call["call"] == "undo"} == {guardian}
    assert all(call["on_disk"] and call["locked"] for call in agent.calls() if call["call"] == "undo")


def test_it_leaves_with_an_agent_that_has_nothing_left(agent: AgentProcess) -> None:
    guardian = in_effect(agent, duration=0.02)
    assert agent.event("undone")["residue"] == []
    assert alive(guardian), "the next fault needs it"
    agent.ask("bye")
    agent.end()
    eventually(lambda: not alive(guardian), "the guardian's end")


def test_it_has_a_session_of_its_own_and_nothing_of_the_agents_pipes(agent: AgentProcess) -> None:
    """An SSH channel stays open as long as anybody has its streams; a session that ends takes its processes along."""
    guardian = in_effect(agent)
    assert os.getsid(guardian) == guardian != os.getsid(agent.process.pid)
    streams = {str(Path(f"/proc/{agent.process.pid}/fd/{fd}").readlink()) for fd in (0, 2)}
    streams |= {opened for opened in descriptors(agent.process.pid) if "pipe" in opened}
    assert not streams & descriptors(guardian)
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGPIPE):
        os.kill(guardian, number)
    agent.murder()
    agent.gone()


def test_what_ends_the_agents_whole_group_and_session_leaves_the_guardian(tmp_path: Path) -> None:
    with AgentProcess(tmp_path) as agent:
        in_effect(agent)
        session = os.getsid(agent.process.pid)
        for process in Path("/proc").iterdir():  # as a terminal does, or sshd with its session's processes
            if process.name.isdigit() and int(process.name) == agent.process.pid:
                assert os.getsid(int(process.name)) == session
                os.kill(int(process.name), signal.SIGHUP)
        agent.gone()


def test_it_is_small_and_sleeps(agent: AgentProcess) -> None:
    guardian = in_effect(agent)

    def look() -> tuple[str, str, str]:
        """Its state, its CPU time in ticks, and how often it went to sleep."""
        fields = Path(f"/proc/{guardian}/stat").read_text().rpartition(")")[2].split()
        return fields[0], f"{fields[11]} {fields[12]}", status()["voluntary_ctxt_switches"]

    def status() -> dict[str, str]:
        return dict(line.split(":", 1) for line in Path(f"/proc/{guardian}/status").read_text().splitlines())

    assert int(status()["VmRSS"].split()[0]) < 40_000, "KiB"
    eventually(lambda: look()[0] == "S", "its sleep")
    before = look()
    time.sleep(0.5)
    assert look() == before, "it has not woken once"


def test_a_guardian_that_is_killed_is_followed_by_another_before_anything_happens(agent: AgentProcess) -> None:
    first = in_effect(agent)
    kill_and_wait(first)
    second = eventually(lambda: agent.arm("f2", duration=0.0).get("guardian"), "another guardian")
    assert second != first
    assert agent.effect(), "the fault goes on meanwhile"
    agent.murder()
    agent.gone()
    eventually(lambda: not alive(second), "its end")


def test_a_guardian_that_hangs_delays_no_undo_and_is_replaced(agent: AgentProcess) -> None:
    first = in_effect(agent)
    os.kill(first, signal.SIGSTOP)
    arming = agent.say(
        op="arm",
        fault="f2",
        implementation=PLANTED,
        params={"folder": str(agent.folder)},
        target={"node": 0},
        duration=60.0,
        at=time.monotonic_ns(),
        owner="a-run",
    )
    eventually(lambda: agent.record("f2").exists(), "the record of which the guardian hears nothing")
    agent.ask("disarm", fault="f1")
    assert agent.event("undone", "f1")["residue"] == []
    assert not any(message.get("re") == arming for message in agent.seen), "arming waits for the guardian, undoing not"
    while (answer := agent.next()).get("re") != arming:
        pass
    assert answer["guardian"] != first
    eventually(lambda: not alive(first), "the end of the one that hangs: it would take our silence for our death")
    agent.murder()
    agent.gone("f2")


def test_killed_again_and_again_and_the_agent_at_last(agent: AgentProcess) -> None:
    in_effect(agent)
    for number in range(5):
        guardian = agent.arm(f"g{number}")["guardian"]
        kill_and_wait(guardian)
    last = agent.arm("last")["guardian"]
    assert last not in (None, guardian)
    faults = ("f1", "last", *(f"g{number}" for number in range(5)))
    eventually(lambda: all(watches(last, agent.record(fault)) for fault in faults), "all records with the last one")
    agent.murder()
    for fault in faults:
        agent.gone(fault)


def watches(pid: int, record: Path) -> bool:
    """Whether a process has the record open."""
    inode = record.stat().st_ino
    return any(each.exists() and each.stat().st_ino == inode for each in Path(f"/proc/{pid}/fd").iterdir())


def test_without_any_guardian_nothing_is_held(tmp_path: Path) -> None:
    """Its program has gone, so that it cannot be started again: a fault that nobody watches is not kept."""
    code = a_copy_of_the_code(tmp_path)
    with AgentProcess(tmp_path, code=code) as agent:
        guardian = in_effect(agent)
        (code / "chaos/agent/guardian.py").unlink()
        kill_and_wait(guardian)
        assert agent.event("guardian lost")["error"].startswith("no guardian stays alive: ")
        assert agent.event("ended")["early"]
        assert agent.event("undone")["residue"] == []
        agent.gone()
        assert "no guardian stays alive" in agent.arm("f2")["error"]


def a_copy_of_the_code(folder: Path) -> Path:
    code = folder / "code"
    for package in ("chaos", "injectors"):
        shutil.copytree(ROOT / package, code / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(Path(__file__).parent / "planted_injectors.py", code)
    return code


# -- deadlines --------------------------------------------------------------------------------------------------------


@pytest.fixture
def short(tmp_path: Path) -> Iterator[AgentProcess]:
    """An agent whose faults are due 0.3 s after their end."""
    with AgentProcess(tmp_path, slack=1.3) as it:
        yield it


def test_an_agent_that_is_stopped_is_overtaken_by_the_deadline(short: AgentProcess) -> None:
    in_effect(short, duration=0.2)
    os.kill(short.process.pid, signal.SIGSTOP)
    short.gone()
    os.kill(short.process.pid, signal.SIGCONT)
    undone = short.event("undone")
    assert undone["residue"] == []
    assert short.ask("ping")["t"] > 0
    undoing = [call["pid"] for call in short.calls() if call["call"] == "undo"]
    assert short.process.pid not in undoing, "it wakes, finds the record gone, and does nothing"


def test_an_agent_that_was_stopped_before_it_fired_does_not_fire_when_it_wakes(short: AgentProcess) -> None:
    at = time.monotonic_ns() + 500_000_000
    short.arm(at=at, duration=0.1)
    short.ask("fire", fault="f1", at=at)
    os.kill(short.process.pid, signal.SIGSTOP)
    eventually(lambda: not short.record().exists(), "the deadline")
    os.kill(short.process.pid, signal.SIGCONT)
    assert "was undone by somebody else" in short.event("failed")["error"]
    assert "inject" not in short.names()
    assert not short.effect()


@pytest.mark.parametrize("call", ["inject", "undo"])
def test_an_agent_that_hangs_in_the_middle_of_a_change_is_killed_at_the_deadline(
    short: AgentProcess, call: str
) -> None:
    """Overtaken in the middle, it might go on with the change afterwards."""
    short.arm(duration=0.1, hang=call)
    short.say(op="fire", fault="f1", at=0)
    short.gone()
    assert short.process.wait() == -signal.SIGKILL


@pytest.mark.parametrize("systemd_run", ['exec 9>/dev/null; shift 4; exec "$@"', "exit 1", "exec sleep 1000", None])
def test_with_or_without_systemds_help_there_is_a_guardian(
    tmp_path: Path, systemd_run: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A systemd-run that does what it is for, one that is refused, one that hangs, and one that cannot be executed."""
    fake = tmp_path / "bin/systemd-run"
    fake.parent.mkdir()
    fake.write_text("#!/no/such/shell\n" if systemd_run is None else f"#!/bin/sh\n{systemd_run}\n")
    fake.chmod(0o755)
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "sitecustomize.py").write_text(
        "import os\nisdir = os.path.isdir\nos.path.isdir = lambda path: path == '/run/systemd/system' or isdir(path)\n"
    )
    monkeypatch.setenv("PATH", f"{fake.parent}:{os.environ['PATH']}")
    with AgentProcess(tmp_path, path=[trap]) as agent:
        in_effect(agent)
        agent.murder()
        agent.gone()


def test_a_deadline_is_kept_without_any_agent_after_its_undo_failed_at_first(agent: AgentProcess) -> None:
    in_effect(agent, fail={"undo": 4})
    agent.murder()
    agent.gone()
    assert agent.names().count("undo") == 5


def test_what_the_agent_cannot_undo_the_guardian_goes_on_with_at_once(agent: AgentProcess) -> None:
    guardian = in_effect(agent, duration=0.02, fail={"undo": 6})
    assert agent.event("undone")["residue"] == ["the undo failed: OSError: [Errno 5] planted"]
    agent.gone()
    assert agent.ask("status", fault="f1") == {"re": agent._number, "held": False, "record": False, "residue": []}
    assert agent.process.poll() is None, "it was in nobody's way"
    assert guardian in {call["pid"] for call in agent.calls() if call["call"] == "undo"}


def test_a_node_that_goes_down_tells_the_guardian_to_end_and_it_undoes_first(agent: AgentProcess) -> None:
    guardian = in_effect(agent)
    os.kill(guardian, signal.SIGTERM)
    agent.gone()
    assert agent.process.poll() is None


@pytest.mark.parametrize("who", ["the agent", "its guardian"])
def test_one_of_several_targets_that_vanishes_keeps_no_other_from_being_undone(agent: AgentProcess, who: str) -> None:
    """CASES 14 and 15: and what is told of each says which it was."""
    targets = {fault: subprocess.Popen(["sleep", "infinity"]) for fault in ("f1", "f2", "f3")}
    try:
        for fault, process in targets.items():
            agent.arm(
                fault,
                implementation="injectors.process:Signal",
                params={"signal": "STOP"},
                target={"node": 0, "rank": 0, "process": identity(process.pid)},
            )
            agent.ask("fire", fault=fault, at=0)
            assert agent.event("witness", fault, phase="during")["effective"] is True
        targets["f2"].kill()
        targets["f2"].wait()
        if who == "the agent":
            for fault in targets:
                agent.ask("disarm", fault=fault)
            agent.input.close()
            assert agent.end() == 0
            after = {m["fault"]: m["text"] for m in agent.seen if m.get("phase") == "after"}
            assert after["f2"] == f"process {targets['f2'].pid} has gone"
            assert all("is in state S" in after[fault] for fault in ("f1", "f3"))
        else:
            agent.murder()
        for fault in targets:
            eventually(lambda fault=fault: not agent.record(fault).exists(), f"the end of {fault}")
        for fault in ("f1", "f3"):
            assert Path(f"/proc/{targets[fault].pid}/stat").read_text().split()[2] not in "Tt"
    finally:
        for process in targets.values():
            process.kill()
            process.wait()


def identity(pid: int) -> dict[str, int]:
    return {"pid": pid, "start": kernel.start_ticks(pid) or 0, "pidns": Path("/proc/self/ns/pid").stat().st_ino}


# -- bad luck ---------------------------------------------------------------------------------------------------------


def test_it_needs_neither_its_program_nor_its_packages_any_more(tmp_path: Path) -> None:
    """Everything was loaded beforehand: an upgrade in the middle of a fault, or a disk that has gone, is no matter."""
    code = a_copy_of_the_code(tmp_path)
    with AgentProcess(tmp_path, code=code) as agent:
        in_effect(agent)
        shutil.rmtree(code)
        agent.murder()
        agent.gone()


def test_a_full_disk_does_not_keep_it_from_undoing(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("mounting a small tmpfs needs root")
    (tmp_path / "state").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "chaos-test", str(tmp_path / "state")], check=True)
    try:
        with AgentProcess(tmp_path) as agent:
            guardian = in_effect(agent)
            with pytest.raises(OSError, match="No space left"), (tmp_path / "state/ballast").open("wb") as ballast:
                while True:
                    ballast.write(b"x" * 4096)
                    ballast.flush()
            assert "No space left on device" in agent.arm("f2")["error"]
            agent.murder()
            agent.gone()
            eventually(lambda: not alive(guardian), "its end")
    finally:
        subprocess.run(["umount", str(tmp_path / "state")], check=True)


def test_a_clock_that_is_stepped_changes_nothing(tmp_path: Path) -> None:
    """NTP, or somebody, sets the wall clock: no part of the undo ever looks at it."""
    trap = tmp_path / "trap"
    trap.mkdir()
    (trap / "sitecustomize.py").write_text(
        "import time\ndef stepped():\n    raise AssertionError('the wall clock was read')\n"
        "time.time = time.time_ns = stepped\n"
    )
    with AgentProcess(tmp_path, path=[trap]) as agent:
        guardian = in_effect(agent, duration=0.02)
        assert agent.event("undone")["residue"] == []
        in_effect(agent, "f2")
        agent.murder()
        agent.gone("f2")
        eventually(lambda: not alive(guardian), "its end")
    assert "wall clock" not in (tmp_path / "stderr").read_text()
    assert "wall clock" not in (tmp_path / "state/guardian.log").read_text()


def test_locks_that_cannot_be_taken_refuse_the_fault(tmp_path: Path) -> None:
    """A read-only /run, say."""
    (tmp_path / "run").write_text("a file is in the way")
    with AgentProcess(tmp_path) as agent:
        assert "devices cannot be locked in" in agent.arm()["error"]
        assert agent.names() == []
        assert not agent.record().exists()


def test_two_agents_never_meet_on_one_device(agent: AgentProcess) -> None:
    """Two controllers, two agents, one device."""
    in_effect(agent, device="the-link")
    with AgentProcess(agent.folder) as other:
        error = other.arm("f2", device="the-link")["error"]
        assert error == "the-link is taken by fault f1 of run a-run: wait for its end, or aim at another"
        agent.ask("disarm", fault="f1")
        agent.event("undone")
        in_effect(other, "f2", device="the-link")
        other.ask("bye")
        other.end()


def test_a_later_fault_of_the_same_run_is_armed_when_the_earlier_one_has_ended(agent: AgentProcess) -> None:
    """A flapping link: each time it is armed ahead of its instant, while the former one is still to come or to end."""
    now = time.monotonic_ns()
    agent.arm("f1", device="the-link", at=now, duration=0.3)
    later = now + 5_000_000_000
    latest = agent.say(
        op="arm", fault="f3", **agent.order(device="the-link"), at=later + 1, duration=0.01, owner="a-run"
    )
    waiting = agent.say(op="arm", fault="f2", **agent.order(device="the-link"), at=later, duration=0.01, owner="a-run")
    agent.fire("f1", at=now)
    assert "f2" not in {call["fault"] for call in agent.calls("f2")}, "it is not even planned"
    while (message := agent.next()).get("re") != waiting:
        pass
    assert "record" in message
    assert any(event.get("event") == "ended" and event["fault"] == "f1" for event in agent.seen)
    assert not any(each.get("re") == latest for each in agent.seen), "the one with the earlier instant comes first"
    agent.ask("fire", fault="f2", at=later)
    agent.ask("disarm", fault="f2")
    assert agent.event("undone", "f2")["residue"] == []
    while (message := agent.next()).get("re") != latest:
        pass
    assert "record" in message


def test_the_earlier_of_two_faults_has_the_device_although_it_is_slower_to_ask_for_it(agent: AgentProcess) -> None:
    now = time.monotonic_ns()
    more = {"op": "arm", "duration": 0.01, "owner": "a-run"}
    earlier = agent.say(**more, fault="f1", **agent.order(device="the-link", pause=0.3), at=now + 30_000_000_000)
    later = agent.say(**more, fault="f2", **agent.order(device="the-link"), at=now + 31_000_000_000)
    while "re" not in (message := agent.next()):
        pass
    assert message["re"] == earlier
    assert "record" in message, message
    agent.ask("disarm", fault="f1")
    while (message := agent.next()).get("re") != later:
        pass
    assert "record" in message, message


def test_two_faults_of_one_run_that_overlap_on_a_device_are_refused(agent: AgentProcess) -> None:
    """CASES 27 and 28: never one over the other."""
    in_effect(agent, device="the-link")
    error = agent.arm("f2", device="the-link", at=time.monotonic_ns() + 200_000_000)["error"]
    assert error == "the-link is taken by fault f1 of run a-run: wait for its end, or aim at another"
    assert agent.effect("f1")


def test_a_killed_agents_device_is_its_guardians_until_it_is_undone(agent: AgentProcess) -> None:
    in_effect(agent, device="the-link", left=99)
    agent.murder()
    with AgentProcess(agent.folder) as other:
        assert "is taken by fault f1" in other.arm("f2", device="the-link")["error"]


# -- a sweep ----------------------------------------------------------------------------------------------------------


def test_a_sweep_undoes_what_nobody_holds_and_touches_nothing_that_somebody_holds(agent: AgentProcess) -> None:
    in_effect(agent)
    with AgentProcess(agent.folder) as other:
        answer = other.ask("sweep", implementations=["planted_injectors:Planted"])
        assert answer == {
            **{"re": other._number, "held": ["f1"]},
            **{"swept": [], "cleared": [], "left": [], "unknown": []},
        }
        assert agent.effect()
        agent.orphan()
        answer = other.ask("sweep", implementations=["planted_injectors:Planted"])
        assert [(each["fault"], each["residue"]) for each in answer["swept"]] == [("f1", [])]
        agent.gone()


@pytest.mark.parametrize("how", ["end of input", "bye"])
def test_an_agent_leaves_no_orphan_of_another_behind_when_it_ends(agent: AgentProcess, how: str) -> None:
    """The former agent's guardian was still at work when it started, and was killed since."""
    in_effect(agent)
    with AgentProcess(agent.folder) as other:
        assert other.hello["swept"] == []
        agent.orphan()
        if how == "bye":
            other.ask("bye")
        else:
            other.input.close()
        other.end()
        agent.gone()


def test_what_outlives_a_reboot_is_undone_after_it(agent: AgentProcess) -> None:
    """A file, the state of a port, a drained node: they are still there after a boot, and nobody holds them."""
    in_effect(agent)
    agent.orphan()
    record = json.loads(agent.record().read_text())
    agent.record().write_text(json.dumps(record | {"boot": "of-another-boot"}))
    with AgentProcess(agent.folder) as other:
        assert [(each["fault"], each["residue"]) for each in other.hello["swept"]] == [("f1", [])]
        agent.gone()


def test_what_bears_our_mark_is_found_without_any_record(agent: AgentProcess) -> None:
    in_effect(agent)
    agent.orphan()
    agent.record().unlink()  # a disk that was exchanged, a folder that somebody has emptied
    with AgentProcess(agent.folder) as other:
        assert other.hello["left"] == []
        answer = other.ask("sweep", implementations=["planted_injectors:Planted"])
        assert answer["cleared"] == ["the planted file f1.effect"]
        assert not agent.effect()


def test_a_kind_that_cannot_be_asked_makes_the_node_unknown_and_not_clean(agent: AgentProcess) -> None:
    """CASES 10."""
    [unknown] = agent.ask("sweep", implementations=["nowhere:Thing"])["unknown"]
    assert unknown.startswith("nowhere:Thing cannot tell what is left")


def test_whoever_only_looks_changes_nothing(agent: AgentProcess) -> None:
    in_effect(agent)
    agent.orphan()
    with AgentProcess(agent.folder, looks=True) as looking:
        left = ["fault f1 (test.planted, of run a-run) is not undone"]
        assert looking.hello["left"] == left
        answer = looking.ask("sweep", implementations=["planted_injectors:Planted"])
        assert answer["left"] == [*left, "the planted file f1.effect bears our mark, and has no record"]
        assert "only looks" in looking.arm("f2")["error"]
        looking.ask("bye")
        looking.end()
    assert agent.effect()
    assert agent.record().exists()


def test_a_status_is_the_kernels_word_where_the_record_has_gone(agent: AgentProcess) -> None:
    """CASES 18: what is told is how things are."""
    record = agent.arm(left=99, duration=None)["record"]
    assert agent.ask("status", fault="f1")["record"] is True
    agent.orphan()
    agent.record().unlink()
    with AgentProcess(agent.folder) as other:
        answer = other.ask("status", fault="f1", record=record)
        assert (answer["held"], answer["record"], answer["residue"]) == (False, False, ["a planted rest"])
        clean = {**record, "params": {**record["params"], "left": 0}}
        assert other.ask("status", fault="f1", record=clean)["residue"] == []


def test_a_guardians_complaints_are_in_its_log(agent: AgentProcess) -> None:
    in_effect(agent, fail={"undo": 2})
    agent.murder()
    agent.gone()
    log = (agent.folder / "state/guardian.log").read_text()
    assert "fault f1 is not undone: OSError: [Errno 5] planted" in log
