"""Nothing of a run may be left: checked around every test that brings one up."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from chaos.lab.namespace import all_namespaces
from tests.engine.runs import processes, wait_gone


@pytest.fixture
def nothing_left() -> Iterator[None]:
    """After the test no namespace and no process is there that was not there before."""
    namespaces, alive = all_namespaces(), processes()
    yield
    assert not wait_gone(alive)
    end = time.monotonic() + 10  # the kernel takes namespaces apart in the background
    while (left := all_namespaces() - namespaces) and time.monotonic() < end:
        time.sleep(0.05)
    assert not left
