"""The virtual machine itself: what comes out of it is told, and so is what does not."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import virtual_machine
from debian_kernel import DebianKernel, Unavailable
from inside import REPORTS, FailedInside, Machine, Writer, available, judge
from lab_help import PATIENCE, eventually


@pytest.fixture(scope="module")
def kernel() -> DebianKernel:
    try:
        return available()
    except Unavailable as error:
        pytest.skip(f"NOT RUN: {error}")


def reported(config: pytest.Config, test: str, outcomes: dict[str, Any], share: Path) -> None:
    writer = Writer(config, share / REPORTS)
    for when, (outcome, told) in outcomes.items():
        report = pytest.TestReport(test, ("file", 1, test), {}, outcome, told, when, [("Captured", "what it printed")])
        writer.pytest_runtest_logreport(report)


PASSED = dict.fromkeys(("setup", "call", "teardown"), ("passed", None))


def machine(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, outcomes: dict[str, Any]
) -> tuple[Machine, Callable[[str], Any]]:
    """A machine that gives these outcomes without being booted; all tests are asked for at once."""

    def run(kernel: Any, command: list[str], *, folder: Path, share: Path, limit: float) -> virtual_machine.Ended:
        for test in (share / "tests").read_text().splitlines():
            reported(request.config, test, outcomes.get(test, {}), share)
        return virtual_machine.Ended(None, "its output", "Kernel panic")

    monkeypatch.setattr("inside.available", lambda: None)
    monkeypatch.setattr(virtual_machine, "run", run)
    it = Machine()
    it.to_run += list(outcomes)
    return it, lambda test: judge(it.result(SimpleNamespace(nodeid=test, config=request.config)))


def test_what_a_test_came_to_inside_is_what_it_comes_to_outside(monkeypatch, request) -> None:
    failed = PASSED | {"call": ("failed", "the assertion")}
    skipped = {"setup": ("skipped", ("file", 1, "Skipped: no such device")), "teardown": ("passed", None)}
    _, ask = machine(monkeypatch, request, {"passes": PASSED, "fails": failed, "skips": skipped})
    ask("passes")
    with pytest.raises(FailedInside, match=r"the assertion\n(?s:.*)what it printed"):
        ask("fails")
    with pytest.raises(pytest.skip.Exception, match="no such device"):
        ask("skips")


@pytest.mark.control
@pytest.mark.parametrize(
    "came", [{}, {"setup": ("passed", None)}, {"setup": ("passed", None), "call": ("passed", None)}]
)
def test_a_test_whose_end_did_not_come_out_has_failed(monkeypatch, request, came) -> None:
    """And the others have their results; why there is none is told."""
    _, ask = machine(monkeypatch, request, {"first": PASSED, "crashes": came, "never begun": {}})
    ask("first")
    with pytest.raises(FailedInside, match=r"without an exit status\n(?s:.*)Kernel panic"):
        ask("crashes")
    with pytest.raises(FailedInside, match="told above"):
        ask("never begun")


def test_a_second_try_boots_for_that_test_alone(monkeypatch, request) -> None:
    outcomes = {"one": PASSED, "other": {}}
    it, ask = machine(monkeypatch, request, outcomes)
    with pytest.raises(FailedInside):
        ask("other")
    outcomes["other"] = PASSED
    ask("other")
    assert list(it._reports) == ["one"], "kept from the first time"
    ask("one")


def test_a_line_that_a_crash_cut_off_is_no_report(monkeypatch, request) -> None:
    _, ask = machine(monkeypatch, request, {"cut": PASSED})
    run = virtual_machine.run

    def cut(*args: Any, share: Path, **words: Any) -> virtual_machine.Ended:
        ended = run(*args, share=share, **words)
        path = share / REPORTS
        path.write_bytes(path.read_bytes()[:-20])
        return ended

    monkeypatch.setattr(virtual_machine, "run", cut)
    with pytest.raises(FailedInside, match="no result"):
        ask("cut")


def test_a_machine_that_takes_too_long_is_killed(kernel: DebianKernel, tmp_path: Path) -> None:
    ended = virtual_machine.run(kernel, ["sleep", "infinity"], folder=Path("/"), share=tmp_path, limit=1)
    assert ended.status is None
    assert "killed after 1 s" in str(ended)


def test_a_machine_goes_with_the_process_that_booted_it(kernel: DebianKernel, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; import virtual_machine; from debian_kernel import DebianKernel\n"
        "kernel, share = map(Path, sys.argv[1:])\n"
        "virtual_machine.run(DebianKernel(kernel), ['sleep', 'infinity'], folder=share, share=share, limit=60)\n"
    )
    words = [sys.executable, "-c", script, str(kernel.folder), str(tmp_path)]
    booter = subprocess.Popen(words, env=os.environ | {"PYTHONPATH": str(Path(__file__).parent)})
    try:
        children = Path(f"/proc/{booter.pid}/task/{booter.pid}/children")
        eventually((tmp_path / "console").exists, "a machine that boots")
        [qemu] = map(int, children.read_text().split())
        watch = os.pidfd_open(qemu)
    finally:
        booter.send_signal(signal.SIGKILL)
        booter.wait()
    try:
        assert select.select([watch], [], [], PATIENCE)[0], "it is still there"
    finally:
        os.close(watch)
