"""The journal's form, and the stop switch."""

from __future__ import annotations

import json
import math
import os
import signal
import threading
import time

from chaos.engine.journal import Journal
from chaos.engine.stop import SIGNALS, Stop, on_signals


def test_line_one_names_the_schema_and_numbers_that_json_lacks_are_text(tmp_path):
    with Journal(tmp_path / "journal.jsonl", "run-1") as journal:
        journal.write("probe", value=math.nan, nested={"list": [math.inf, 1.5]})
    first, second = (json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines())
    assert (first["e"], first["schema"], first["run"]) == ("journal", "chaos.journal/1", "run-1")
    assert second["value"] == "nan"
    assert second["nested"] == {"list": ["inf", 1.5]}
    assert second["t"] >= first["t"]


def test_lines_of_several_threads_are_never_torn(tmp_path):
    with Journal(tmp_path / "journal.jsonl", "run") as journal:
        writers = [
            threading.Thread(target=lambda: [journal.write("phase", text="x" * 5000) for _ in range(50)])
            for _ in range(4)
        ]
        for writer in writers:
            writer.start()
        for writer in writers:
            writer.join()
    lines = (tmp_path / "journal.jsonl").read_text().splitlines()
    assert len([json.loads(line) for line in lines]) == 201


def test_a_signal_pulls_the_switch_once_and_a_second_changes_nothing():
    stop = Stop()
    former = signal.getsignal(signal.SIGTERM)
    with on_signals(stop):
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.wait(10)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)  # the handler of the second one runs here, and raises nothing
    assert stop.reason is not None
    assert stop.reason.text == "SIGTERM received"
    assert signal.getsignal(signal.SIGTERM) == former


def test_the_first_reason_counts():
    stop = Stop()
    stop.pull("guard", "first")
    stop.pull("signal", "second")
    assert stop.reason is not None
    assert stop.reason.text == "first"
    assert stop.wait(0)


def test_whoever_waits_for_the_switch_is_told_once_also_when_late():
    stop, told = Stop(), []
    stop.on_pull(lambda: told.append("early"))
    stop.pull("signal", "first")
    stop.pull("signal", "second")
    stop.on_pull(lambda: told.append("late"))
    assert told == ["early", "late"]


def test_a_hangup_that_was_ignored_before_stays_ignored():
    former = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with on_signals(Stop()):
            assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, former)


def test_after_the_last_run_of_a_process_signals_change_nothing():
    former = {number: signal.getsignal(number) for number in SIGNALS}
    try:
        with on_signals(Stop(), last=True):
            pass
        assert {signal.getsignal(number) for number in SIGNALS} == {signal.SIG_IGN}
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def test_a_journal_that_is_closed_takes_nothing_more_and_raises_nothing(tmp_path):
    journal = Journal(tmp_path / "journal.jsonl", "run")
    journal.close()
    journal.write("probe", text="it had hung")
    journal.close()
    assert len((tmp_path / "journal.jsonl").read_text().splitlines()) == 1
