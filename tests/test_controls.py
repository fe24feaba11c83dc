"""The table of negative controls is sound, and its runner notices a control that is not."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests import controls, run_controls

ROOT = Path(__file__).parent.parent


def test_every_control_names_a_check_that_is_there():
    for control in controls.CONTROLS:
        holder, name = controls.place(control.check)
        assert callable(getattr(holder, name))


def test_every_control_has_a_name_of_its_own():
    names = [control.name for control in controls.CONTROLS]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("test", sorted({control.test for control in controls.CONTROLS}))
def test_every_control_names_a_test_that_is_marked_as_one(test):
    path, _, name = test.partition("::")
    functions = {node.name: node for node in ast.parse((ROOT / path).read_text()).body if hasattr(node, "name")}
    assert name in functions
    assert any("mark.control" in ast.unparse(decorator) for decorator in functions[name].decorator_list)


def test_a_check_that_is_not_there_is_named():
    with pytest.raises(LookupError, match="there is no such function"):
        controls.place("chaos.scoring.rto:no_such_check")
    with pytest.raises(LookupError, match="there is no such control"):
        controls.disable("no such control")


@pytest.mark.parametrize(
    ("test", "told"),
    [
        ("tests/test_controls.py::test_every_control_has_a_name_of_its_own", "NOT CAUGHT"),
        ("tests/test_controls.py::no_such_test", "NOT RUN"),
    ],
)
def test_a_test_that_does_not_notice_its_check_is_told(test, told):
    name = controls.CONTROLS[0].name
    assert told in run_controls.verdict(controls.CONTROLS[0]._replace(name=name, test=test))
