"""A scorecard as JUnit XML, for build servers: a test suite a run, a test case a hypothesis and a figure.

A case that failed carries its reason as ``failure``. What is inconclusive is an ``error``, not a ``skipped``: build
servers show skipped cases as harmless, and a run that proved nothing must not look like one that passed. A figure that
could not be measured because the run was aborted or had an error of its own is an ``error`` too. Only a fault that
chance did not draw is ``skipped``. The case ``clean-up`` says whether everything is proven undone, and one
more, ``verdict``, stands for the run as a whole, so that the file is green exactly when ``chaos run`` exits with 0.
"""

import re
from collections.abc import Mapping
from typing import Any
from xml.etree import ElementTree as Xml

from chaos.report import reading
from chaos.report.faults import Fault, faults
from chaos.report.figures import Figure, figures
from chaos.report.steady import PHASES, Check, hypotheses
from chaos.scoring.fields import objects, text

# What XML 1.0 cannot hold, not even escaped.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def document(card: Mapping[str, Any]) -> str:
    """The XML, with its declaration."""
    name = reading.name(card)
    suite = Xml.Element("testsuite", name=_clean(name))
    if text(card, "started"):
        suite.set("timestamp", _clean(str(text(card, "started"))))
    lasted = reading.lasted(card)
    if lasted is not None:
        suite.set("time", f"{lasted:.3f}")
    properties = Xml.SubElement(suite, "properties")
    for key in ("run", "seed", "version", "verdict", "started", "ended"):
        if card.get(key) is not None:
            Xml.SubElement(properties, "property", name=key, value=_clean(str(card[key])))
    _run(suite, card, name)
    _cleanup(suite, card, name)
    for figure in figures(card):
        if figure.name != "Steady state":  # its hypotheses are cases of their own
            _figure(suite, figure, name)
    for fault in faults(card):
        _fault(suite, fault, name)
    for each in hypotheses(card):
        for when in PHASES:
            if when in each.checks:
                _check(suite, f"{each.name}, {when}", each.checks[when], when, name)
    cases = suite.findall("testcase")
    for total, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        suite.set(total, str(sum(case.find(tag) is not None for case in cases)))
    suite.set("tests", str(len(cases)))
    root = Xml.Element("testsuites", {"name": "chaos"} | {key: suite.get(key, "0") for key in _TOTALS})
    root.append(suite)
    Xml.indent(root)
    return '<?xml version="1.0" encoding="UTF-8"?>\n' + Xml.tostring(root, encoding="unicode") + "\n"


_TOTALS = ("tests", "failures", "errors", "skipped")


def _case(suite: Xml.Element, group: str, name: str) -> Xml.Element:
    return Xml.SubElement(suite, "testcase", classname=_clean(group), name=_clean(name))


def _result(case: Xml.Element, verdict: str, reason: str, more: str = "") -> None:
    if verdict == "pass":
        Xml.SubElement(case, "system-out").text = _clean(reason)
        return
    told = Xml.SubElement(case, "failure" if verdict == "fail" else "error", message=_clean(reason), type=verdict)
    told.text = _clean(more or reason)


def _run(suite: Xml.Element, card: Mapping[str, Any], name: str) -> None:
    from_findings = "\n".join(
        f"{text(finding, 'priority') or ''} {text(finding, 'text') or ''}: {text(finding, 'remedy') or ''}"
        for finding in objects(card, "findings")
    )
    _result(_case(suite, name, "verdict"), reading.verdict(card), reading.reason(card), from_findings)


def _cleanup(suite: Xml.Element, card: Mapping[str, Any], name: str) -> None:
    state, told = reading.cleanup(card)
    if state:
        _result(_case(suite, name, "clean-up"), "error" if state == "open" else "pass", told, reading.measured(card))


def _figure(suite: Xml.Element, figure: Figure, name: str) -> None:
    facts = "\n".join(f"{key}: {value}" for key, value in figure.facts)
    told = f"{figure.value} (pass mark: {figure.mark}; {figure.level}); {figure.evidence}"
    _result(_case(suite, f"{name}.figures", figure.name), figure.verdict, told, f"{told}\n{facts}".strip())


def _fault(suite: Xml.Element, fault: Fault, name: str) -> None:
    case = _case(suite, f"{name}.faults", f"{fault.name} is witnessed and undone")
    seen = "\n".join(f"{phase}: {what}" for phase, what in fault.witness)
    if fault.cleaned[1] != "pass":
        _result(case, "error", f"{fault.cleaned[0]}: {'; '.join(fault.residue) or fault.note or 'no proof'}", seen)
    elif fault.state == "skipped":
        Xml.SubElement(case, "skipped", message=_clean(fault.note))
    else:
        told = f"{fault.proof[0]}; {fault.cleaned[0]}" + (f"; {fault.note}" if fault.note else "")
        _result(case, fault.proof[1], told, seen)


def _check(suite: Xml.Element, title: str, check: Check, when: str, name: str) -> None:
    # A gate that fails says nothing of the recovery: nothing was broken.
    failed = "inconclusive" if when == "before" else "fail"
    told = check.text if check.made == 1 else f"held {check.held} of {check.made} times; {check.text}"
    _result(_case(suite, f"{name}.steady_state", title), "pass" if check.ok else failed, told)


def _clean(told: str) -> str:
    return _FORBIDDEN.sub("\ufffd", told)
