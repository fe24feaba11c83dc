"""Lets `tests.run_controls` disable one check in the process of a test run; gives every test a store of its own."""

from __future__ import annotations

import os
from pathlib import Path

import hypothesis
import pytest

from tests import controls


def pytest_configure(config: pytest.Config) -> None:
    """Replace the check before anything is collected, so that whoever imports it by name gets the replacement."""
    name = os.environ.get(controls.VARIABLE)
    if name:
        try:
            controls.disable(name)
        except LookupError as error:
            raise pytest.UsageError(str(error)) from None
        # The first failure is enough: no search for the smallest one, and none is kept for later runs.
        hypothesis.settings.register_profile(
            "disabled", database=None, phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate]
        )
        hypothesis.settings.load_profile("disabled")


@pytest.fixture(autouse=True)
def store_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The store of this test and of every process that it starts."""
    path = tmp_path / "store" / "store.sqlite"
    monkeypatch.setenv("CHAOS_STORE", str(path))
    return path


def pytest_report_header() -> str | None:
    """Say so: a green run with a disabled check means nothing."""
    name = os.environ.get(controls.VARIABLE)
    return f"DISABLED CONTROL: {name}" if name else None
