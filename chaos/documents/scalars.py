"""Scalars: the core schema of YAML 1.2, and variables of the environment inside them.

Under YAML 1.2 ``on``, ``yes``, ``1:30`` and ``1_000`` are text, and ``010`` is ten
(https://yaml.org/spec/1.2.2/#103-core-schema).
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

ScalarValue = None | bool | int | float | str

_WORDS: dict[str, ScalarValue] = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL"), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **dict.fromkeys((".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF"), float("inf")),
    **dict.fromkeys(("-.inf", "-.Inf", "-.INF"), float("-inf")),
    **dict.fromkeys((".nan", ".NaN", ".NAN"), float("nan")),
}
_LONGEST_NUMBER = 400  # characters; Python will not read one of thousands of digits
_INTEGERS = (
    (re.compile(r"([-+]?[0-9]+)"), 10),
    (re.compile(r"0o([0-7]+)"), 8),
    (re.compile(r"0x([0-9a-fA-F]+)"), 16),
)
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")

_NAME = r"[A-Za-z_][A-Za-z0-9_]*"
_VARIABLE = re.compile(rf"\$\$\{{|\$\{{(?P<name>{_NAME})(?P<default>:-[^}}]*)?\}}|\$\{{")
_SECRET = re.compile(r"TOKEN|SECRET|PASSW|CREDENTIAL|KEY", re.IGNORECASE)
_TELLING = 30  # messages cut long values short; this much of one gives it away


def typed(text: str) -> ScalarValue:
    """The value of a plain (unquoted, untagged) scalar by the core schema of YAML 1.2."""
    if text in _WORDS:
        return _WORDS[text]
    if len(text) > _LONGEST_NUMBER:
        return text
    for pattern, base in _INTEGERS:
        if match := pattern.fullmatch(text):
            return int(match[1], base)
    if _FLOAT.fullmatch(text) and math.isfinite(number := float(text)):
        return number
    return text


def _bare(text: str) -> str:
    """Without what quoting and suggesting change."""
    return re.sub(r"[\\'\"\s]", "", text)


class VariableError(ValueError):
    """A variable that cannot be put in; the message says why and what would be right."""


@dataclass
class Variables:
    """Puts variables of an environment into scalars, and remembers the secret ones so that no message shows them.

    ``${NAME}`` is the variable, ``${NAME:-default}`` the default where it is unset or empty, ``$${`` is a plain
    ``${``. A variable never brings structure in: its value is one scalar or a part of one.
    """

    environ: Mapping[str, str]
    secrets: dict[str, str] = field(default_factory=dict)

    def substitute(self, text: str) -> tuple[str, bool]:
        """The text with its variables put in, and whether it was one variable and nothing else.

        Raises ``VariableError``.
        """
        whole = _VARIABLE.fullmatch(text)
        if whole and whole["name"]:
            return self._value(whole), True
        return _VARIABLE.sub(self._value, text), False

    def redact(self, message: str) -> str:
        """The message, or what remains of it if it shows a part of a secret variable's value."""
        for name, value in self.secrets.items():
            telling = (_bare(value)[:_TELLING], _bare(repr(value))[:_TELLING])
            if any(part in _bare(message) for part in telling):
                remedy = message.rpartition("; ")[2]
                keep = not any(part in _bare(remedy) for part in telling)
                return f"found the value of ${{{name}}}; {remedy if keep else 'it cannot stand here'}"
        return message

    def _value(self, match: re.Match[str]) -> str:
        if match[0] == "$${":
            return "${"
        name, default = match["name"], match["default"]
        if name is None or "${" in (default or ""):
            raise VariableError(
                f"found {match.string!r}, where '${{' opens no variable; write ${{NAME}}, ${{NAME:-default}} "
                "with a plain default, or $${ for the characters themselves"
            )
        value = self.environ.get(name)
        if default is not None:
            value = value or default[2:]
        if value is None:
            raise VariableError(
                f"the variable {name} is not set; set it in the environment, or write ${{{name}:-default}}"
            )
        if _SECRET.search(name) and len(value) >= 4:
            self.secrets[name] = value
        return value
