"""Disables each check in turn and sees the tests fail: ``python -m tests.run_controls [WORD...]``.

With words, only the controls whose name contains one of them. Exits 0 only if every control's test fails without its
check, and all of them pass undisturbed. A control that was not caught is tried once more, and that is said: what its
test plants may miss its moment on a machine that is busy with something else.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.controls import CONTROLS, VARIABLE, Control

ROOT = Path(__file__).parent.parent
PASSED, FAILED = 0, 1  # pytest's exit codes; anything else says that no test was run
NOTICED = re.compile(r"^(E|  .) +(AssertionError|assert |Failed: )", re.MULTILINE)  # not just any exception
LIMIT = 600  # seconds for one test run


def pytest_run(tests: Sequence[str], disabled: str | None = None) -> subprocess.CompletedProcess[str]:
    """Run these tests in a process of their own, with a check disabled or none."""
    environment = {key: value for key, value in os.environ.items() if key != VARIABLE}
    if disabled is not None:
        environment[VARIABLE] = disabled
        environment.pop("PYTEST_ADDOPTS", None)  # it is to fail: no second try of the test itself
    command = [sys.executable, "-m", "pytest", "-q", "-x", "--tb=short", "-p", "no:cacheprovider", *tests]
    return subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT, check=False
    )


def verdict(control: Control) -> str | None:
    """What is wrong with a control, or None if its test fails without its check."""
    run = pytest_run([control.test], control.name)
    if run.returncode == FAILED:
        return (
            None if NOTICED.search(run.stdout) else "BROKEN: the test stumbles over the replacement, it asserts nothing"
        )
    if run.returncode == PASSED:
        return "NOT CAUGHT: the test passes although the check is disabled"
    said = (run.stderr or run.stdout).strip().splitlines()
    return f"NOT RUN: {said[-1] if said else f'pytest ended with {run.returncode}'}"


def main(words: Sequence[str]) -> int:
    """Run the controls and print a line for each. Returns the exit code."""
    chosen = [control for control in CONTROLS if not words or any(word in control.name for word in words)]
    if not chosen:
        print(f"no control is called {' or '.join(words)}; tests/controls.py lists them")
        return 2
    undisturbed = pytest_run(sorted({control.test for control in chosen}))
    if undisturbed.returncode != PASSED:
        print(undisturbed.stdout)
        print("The tests do not pass undisturbed: nothing can be said of the controls.")
        return 1
    width = max(len(control.name) for control in chosen)
    wrong = 0
    for control in chosen:
        problem = verdict(control)
        if problem is not None:
            print(f"{control.name:<{width}}  {problem}; once more", flush=True)
            problem = verdict(control)
        wrong += problem is not None
        print(f"{control.name:<{width}}  {problem or 'caught'}", flush=True)
    print(f"\n{len(chosen) - wrong} of {len(chosen)} disabled checks were noticed; undisturbed, all tests pass.")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
