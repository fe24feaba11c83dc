"""JUnit: what a build server makes of a run."""

from __future__ import annotations

from xml.etree import ElementTree as Xml

import pytest
from report_samples import SAMPLES, control, noisy, passing, slow, storm, undrawn, unwitnessed

from chaos.report import junit


def _suite(card):
    root = Xml.fromstring(junit.document(card))
    assert root.tag == "testsuites"
    (suite,) = root
    return suite


def _case(suite, name):
    (found,) = [case for case in suite.iter("testcase") if case.get("name") == name]
    return found


@pytest.mark.parametrize("name", SAMPLES)
def test_the_file_is_green_exactly_when_the_run_passed(name):
    make, verdict = SAMPLES[name]
    suite = _suite(make().card)
    assert (suite.get("failures") == suite.get("errors") == "0") == (verdict == "pass")


@pytest.mark.parametrize("name", SAMPLES)
def test_the_totals_are_those_of_the_cases(name):
    suite = _suite(SAMPLES[name][0]().card)
    cases = list(suite.iter("testcase"))
    assert suite.get("tests") == str(len(cases))
    for total, tag in (("failures", "failure"), ("errors", "error"), ("skipped", "skipped")):
        assert suite.get(total) == str(sum(case.find(tag) is not None for case in cases))
    assert len({(case.get("classname"), case.get("name")) for case in cases}) == len(cases)


def test_there_is_a_case_for_each_figure_fault_and_hypothesis():
    names = [case.get("name") for case in _suite(passing().card).iter("testcase")]
    assert names == [
        "verdict",
        "clean-up",
        "Recovery time, blackhole",
        "State consistency",
        "blackhole is witnessed and undone",
        "workload.throughput at least 95% of baseline, before",
        "workload.throughput at least 95% of baseline, after",
        "workload.loss is finite, before",
        "workload.loss is finite, after",
        "workload.replicas_agree at least 99.99%, before",
        "workload.replicas_agree at least 99.99%, after",
    ]


def test_a_failed_figure_carries_its_reason():
    failure = _case(_suite(slow().card), "Recovery time, blackhole").find("failure")
    assert failure.get("type") == "fail"
    assert "throughput was back after 2420 ms, the pass mark is 800 ms" in failure.get("message")


def test_a_fault_nobody_witnessed_is_an_error():
    error = _case(_suite(unwitnessed().card), "blackhole is witnessed and undone").find("error")
    assert error.get("type") == "inconclusive"
    assert "not seen in effect" in error.get("message")


def test_a_figure_that_could_not_be_measured_is_an_error():
    error = _case(_suite(noisy().card), "Recovery time, blackhole").find("error")
    assert error.get("type") == "inconclusive"
    assert "too noisy" in error.get("message")


def test_a_fault_that_chance_did_not_draw_is_skipped():
    assert _case(_suite(undrawn().card), "blackhole is witnessed and undone").find("skipped") is not None


def test_a_control_run_has_no_recovery_case():
    assert not [case for case in _suite(control().card).iter("testcase") if "Recovery" in case.get("name", "")]


def test_each_group_of_faults_has_a_recovery_case():
    names = [case.get("name") for case in _suite(storm().card).iter("testcase")]
    assert [name for name in names if name.startswith("Recovery")] == [
        "Recovery time, blackhole",
        "Recovery time, second path + rank killed",
    ]
