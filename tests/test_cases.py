"""The public cases that have a test: all of rollback, interruption and crash, and those that came since."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs/cases.md"
ROW = re.compile(r"^\| (\d+) \|.*`(tests/[^`]+)::(\w+)` \|$", re.MULTILINE)


def test_each_of_the_cases_has_a_test_that_exists() -> None:
    rows = ROW.findall(PAGE.read_text(encoding="utf-8"))
    assert [int(number) for number, _, _ in rows] == [*range(1, 30), 31, 32, 33, 47, 50, 51, 52, 53, 61, 77]
    for number, file, name in rows:
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        tests = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
        assert name in tests, f"case {number}: {file} has no {name}"
