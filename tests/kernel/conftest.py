"""Tests marked `kernel` run in a virtual machine whose kernel has what this one's may lack.

They are collected here as any others. The first that is to run boots the machine, in which pytest runs all of them that
are still to run; then each reports here what it came to there. One without a result there has failed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import virtual_machine
from inside import REPORTS, Inside, Machine, Writer
from lab_help import eventually
from wire import Wire, answered, wire


def pytest_configure(config: pytest.Config) -> None:
    """Inside, write every report to the share as it comes."""
    share = os.environ.get(virtual_machine.VARIABLE)
    if share:
        config.pluginmanager.register(Writer(config, Path(share) / REPORTS))


@pytest.hookimpl(trylast=True)  # after tests were deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Outside, put what asks for the virtual machine's result in the place of each test."""
    if virtual_machine.VARIABLE in os.environ:
        return
    machine = Machine()
    for place, item in enumerate(items):
        if item.get_closest_marker("kernel"):
            items[place] = Inside.from_parent(item.parent, name=item.name, test=item, machine=machine)
            machine.to_run.append(item.nodeid)


@pytest.fixture(scope="module")
def two() -> Iterator[Wire]:
    """Inside: two machines with a cable between them."""
    with wire() as it:
        eventually(lambda: answered(it), "the peer")
        yield it
