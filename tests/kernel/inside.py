"""How a test that runs in the virtual machine reports outside of it."""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path
from typing import Any

import pytest
import virtual_machine
from debian_kernel import DebianKernel, Unavailable, missing_programs

REPORTS, _TESTS = "reports", "tests"  # files of the share
_LIMIT = 400.0  # seconds for one machine from boot to end; it takes about a fifth of that
_FETCH_LIMIT = 300.0  # and once, for what is downloaded
_ROOT = Path(__file__).parents[2]


class Writer:
    """Writes each report as it comes: what is written survives a crash of the kernel that the test runs on."""

    def __init__(self, config: pytest.Config, path: Path) -> None:
        self._config = config
        self._path = path

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """One line of JSON a report."""
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(data, default=str) + "\n")


class Machine:
    """The virtual machine of this test run: booted when a result is asked for that it has not given yet."""

    def __init__(self) -> None:
        self.to_run: list[str] = []
        self._reports: dict[str, list[pytest.TestReport]] = {}
        self._ended = ""
        self._unavailable = ""

    def result(self, item: Inside) -> list[pytest.TestReport]:
        """The reports of one test, each once.

        Raises:
            FailedInside: the machine has ended without all that a test reports.
        """
        if self._unavailable:
            pytest.skip(self._unavailable)
        if item.nodeid in self.to_run:
            tests, self.to_run = self.to_run, []
            self._boot(item, tests)
        elif item.nodeid not in self._reports:
            self._boot(item, [item.nodeid])  # asked for once more: a test that failed may be given a second try
        reports = self._reports.pop(item.nodeid, [])
        if "teardown" not in (report.when for report in reports):
            # Told in full once: it is long.
            told, self._ended = self._ended, "told above"
            raise FailedInside(f"no result came out of the virtual machine: {told}")
        return reports

    def _boot(self, item: Inside, tests: list[str]) -> None:
        try:
            kernel = available()
        except Unavailable as error:
            self._unavailable = f"NOT RUN: {error}"
            pytest.skip(self._unavailable)
        share = item.config._tmp_path_factory.mktemp("vm")
        (share / _TESTS).write_text("\n".join(tests))
        words = ["--disable-plugin-autoload", "-p", "pytest_timeout", "-p", "no:cacheprovider", f"--rootdir={_ROOT}"]
        command = [sys.executable, "-m", "pytest", *words, f"@{virtual_machine.SHARE}/{_TESTS}"]
        self._ended = str(virtual_machine.run(kernel, command, folder=_ROOT, share=share, limit=_LIMIT))
        self._reports |= {test: [] for test in tests} | read_reports(item.config, share / REPORTS)


def available() -> DebianKernel:
    """The kernel to boot.

    Raises:
        Unavailable: this machine cannot boot one; the message says what it lacks.
    """
    if platform.machine() != "x86_64":
        raise Unavailable(f"the virtual machine is an x86_64, this one is {platform.machine()}")
    lacking = missing_programs()
    if lacking:
        raise Unavailable(f"a virtual machine needs {', '.join(lacking)} (make system)")
    return DebianKernel.at(_ROOT / ".kernel")


def read_reports(config: pytest.Config, path: Path) -> dict[str, list[pytest.TestReport]]:
    """What a run of pytest inside has written, by test; without a last line that a crash cut off."""
    found: dict[str, list[pytest.TestReport]] = {}
    for line in path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []:
        if line.endswith("\n"):
            report = config.hook.pytest_report_from_serializable(config=config, data=json.loads(line))
            found.setdefault(report.nodeid, []).append(report)
    return found


class FailedInside(Exception):
    """A test failed in the virtual machine, or gave no result; the message is all there is to know."""


class Inside(pytest.Item):
    """What a test in the virtual machine came to."""

    def __init__(self, *, test: pytest.Item, machine: Machine, **words: Any) -> None:
        super().__init__(**words)
        self._test = test
        self._machine = machine
        self.own_markers += test.own_markers
        self.add_marker(pytest.mark.timeout(_LIMIT + _FETCH_LIMIT + 60))

    def runtest(self) -> None:
        """Tell this test's result, after booting the machine if it has none yet."""
        judge(self._machine.result(self))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Tell what was told inside."""
        if isinstance(excinfo.value, FailedInside):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> Any:
        """Where the test itself is."""
        return self._test.reportinfo()


def judge(reports: list[pytest.TestReport]) -> None:
    """Pass, skip or fail as a test did inside.

    Raises:
        FailedInside: one of its phases failed.
    """
    failed = [report for report in reports if report.failed]
    if failed:
        told = [text for report in failed for text in (report.longreprtext, *(part for _, part in report.sections))]
        raise FailedInside("\n".join(["in the virtual machine:", *told]))
    for report in reports:
        if report.skipped:
            if hasattr(report, "wasxfail"):
                pytest.xfail(report.wasxfail)
            pytest.skip(report.longrepr[2] if isinstance(report.longrepr, (list, tuple)) else report.longreprtext)
