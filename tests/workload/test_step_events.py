"""Writing, following and merging step events."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chaos.workload import events
from chaos.workload.events import Incarnation, StepWriter, merge, tail


def step(writer: StepWriter, number: int, **changes: Any) -> None:
    writer.step(
        **{"t": number, "rank": 0, "gen": 1, "world": 4, "step": number, "tokens": 64, "loss": 2.5, "gnorm": 0.5}
        | {"work_ns": 9, "digest": "0123456789abcdef"}
        | changes
    )


def test_every_kind_of_event_reads_back_as_it_was_written(tmp_path: Path) -> None:
    writer = StepWriter(tmp_path)
    writer.hello(1, 0, "xxh3_64")
    writer.member(2, 1, 4)
    step(writer, 1)
    step(writer, 2, digest=None)
    writer.mark("detected", 2, t=77, why="process 3 died")
    writer.fenced(2)
    writer.bye("done")
    read = tail(tmp_path).poll()
    assert [e["e"] for e in read] == ["hello", "member", "step", "step", "mark", "fenced", "bye"]
    me = Incarnation.current()
    assert {e["inc"] for e in read} == {me.name} == {f"{me.pidns}-{os.getpid()}-{me.start}"}
    assert {key: read[0][key] for key in ("v", "node", "gpu", "hash_alg", "pid", "boot")} == {
        "v": 1,
        "node": 1,
        "gpu": 0,
        "hash_alg": "xxh3_64",
        "pid": os.getpid(),
        "boot": me.boot,
    }
    assert {key: read[1][key] for key in ("rank", "gen", "world")} == {"rank": 2, "gen": 1, "world": 4}
    assert read[2] | {"inc": ""} == {
        **{"e": "step", "t": 1, "rank": 0, "gen": 1, "world": 4, "step": 1, "tokens": 64, "loss": 2.5, "gnorm": 0.5},
        **{"hash": "0123456789abcdef", "work_ns": 9, "inc": ""},
    }
    assert "hash" not in read[3]
    assert (read[4]["t"], read[4]["what"], read[4]["gen"], read[4]["why"]) == (77, "detected", 2, "process 3 died")
    assert read[6]["reason"] == "done"


@pytest.mark.parametrize(("value", "shown"), [(float("nan"), "nan"), (float("inf"), "inf"), (float("-inf"), "-inf")])
def test_figures_that_are_not_finite_are_written_as_words(tmp_path: Path, value: float, shown: str) -> None:
    writer = StepWriter(tmp_path)
    writer.hello(0, 0, "xxh3_64")
    step(writer, 1, loss=value, gnorm=value)
    read = tail(tmp_path).poll()[-1]
    assert (read["loss"], read["gnorm"]) == (shown, shown) == (events.number(value),) * 2


def test_a_reader_gives_each_line_once_and_waits_for_a_torn_one(tmp_path: Path) -> None:
    reader = tail(tmp_path / "later")
    assert reader.poll() == []
    (tmp_path / "later").mkdir()
    file = tmp_path / "later" / "1-2-3.jsonl"
    file.write_bytes(b'{"e":"mark","t":1}\n{"e":"mark","t":2}\n{"e":"ma')
    assert [e["t"] for e in reader.poll()] == [1, 2]
    assert reader.poll() == []
    with open(file, "ab") as out:
        out.write(b'rk","t":3}\n')
    assert [(e["t"], e["inc"]) for e in reader.poll()] == [(3, "1-2-3")]
    assert reader.malformed == 0


def test_a_reader_skips_what_is_no_event_and_counts_it(tmp_path: Path) -> None:
    (tmp_path / "1-2-3.jsonl").write_bytes(b'{"e":"st{"e":"mark","t":1}\n[1]\n{"e":"x"}\n\xff\n{"e":"mark","t":2}\n')
    reader = tail(tmp_path)
    assert [e["t"] for e in reader.poll()] == [2]
    assert reader.malformed == 4


def test_a_reader_takes_bounded_bites_and_misses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "READ_CHUNK", 100)
    (tmp_path / "1-2-3.jsonl").write_bytes(b"".join(b'{"e":"mark","t":%d}\n' % t for t in range(100)))
    reader = tail(tmp_path)
    bites = []
    while bite := reader.poll():
        bites.append(len(bite))
        assert bite
    assert sum(bites) == 100
    assert max(bites) <= 6


def test_a_line_without_end_is_given_up(tmp_path: Path) -> None:
    (tmp_path / "1-2-3.jsonl").write_bytes(b"x" * (events.MAX_LINE + 1))
    reader = tail(tmp_path)
    assert reader.poll() == []
    assert reader.malformed == 1
    with open(tmp_path / "1-2-3.jsonl", "ab") as out:
        out.write(b'\n{"e":"mark","t":5}\n')
    assert [e["t"] for e in reader.poll()] == [5]


def test_a_forked_child_writes_to_a_file_of_its_own(tmp_path: Path) -> None:
    writer = StepWriter(tmp_path)
    writer.hello(3, 1, "mix64")
    parent = writer.incarnation.name
    child = os.fork()
    if child == 0:
        writer.mark("child", 1)
        os._exit(0)
    os.waitpid(child, 0)
    writer.mark("parent", 1)
    read = tail(tmp_path).poll()
    assert {e["what"]: e["inc"] == parent for e in read if e["e"] == "mark"} == {"child": False, "parent": True}
    hellos = [e for e in read if e["e"] == "hello"]
    assert {(h["node"], h["gpu"], h["hash_alg"]) for h in hellos} == {(3, 1, "mix64")}
    assert sorted(h["pid"] for h in hellos) == sorted([os.getpid(), child])


def test_a_launcher_says_what_it_is_and_no_hello(tmp_path: Path) -> None:
    writer = StepWriter(tmp_path)
    writer.launcher()
    child = os.fork()
    if child == 0:
        writer.mark("child", 1)
        os._exit(0)
    os.waitpid(child, 0)
    me = Incarnation.current()
    (read,) = tail(tmp_path).poll()
    assert {key: value for key, value in read.items() if key != "t"} == {
        **{"e": "launcher", "v": 1, "inc": me.name},
        **{"pid": os.getpid(), "start": me.start, "pidns": me.pidns, "boot": me.boot},
    }
    assert [path.name for path in tmp_path.iterdir()] == [f"{me.name}.jsonl"]


def test_a_full_disk_loses_events_but_not_the_job(tmp_path: Path) -> None:
    writer = StepWriter(tmp_path)
    writer.hello(0, 0, "xxh3_64")
    full, whole = os.open("/dev/full", os.O_WRONLY), writer._fd
    writer._fd = full
    step(writer, 1)
    writer._fd = whole
    os.close(full)
    step(writer, 2)
    writer.bye("done")
    read = tail(tmp_path).poll()
    assert [e["step"] for e in read if e["e"] == "step"] == [2]
    assert read[-1]["lost"] == 1


def test_a_line_cut_short_spoils_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = StepWriter(tmp_path)
    writer.hello(0, 0, "xxh3_64")
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda fd, data: write(fd, data[:10]))
        step(writer, 1)
    step(writer, 2)
    reader = tail(tmp_path)
    assert [e["step"] for e in reader.poll() if e["e"] == "step"] == [2]
    assert reader.malformed == 1


def test_a_killed_process_leaves_whole_lines(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom chaos.workload.events import StepWriter\nw = StepWriter(sys.argv[1])\nw.hello(0, 0, 'x')\n"
        "n = 0\nwhile True:\n    n += 1\n    w.step(t=n, rank=0, gen=1, world=1, step=n, tokens=1, loss=1.0, gnorm=1.0,"
        " work_ns=1)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script, str(tmp_path)]) as process:
        reader, steps = tail(tmp_path), []
        while len(steps) < 1000:
            steps += [e["step"] for e in reader.poll() if e["e"] == "step"]
        process.send_signal(signal.SIGKILL)
        process.wait()
    while fresh := reader.poll():
        steps += [e["step"] for e in fresh]
    (file,) = tmp_path.iterdir()
    assert file.read_bytes().endswith(b"\n")
    assert steps == list(range(1, steps[-1] + 1))
    assert reader.malformed == 0


def test_merge_orders_all_events_by_their_instant(tmp_path: Path) -> None:
    source = tmp_path / "events"
    source.mkdir()
    (source / "1-1-1.jsonl").write_bytes(b"".join(b'{"e":"mark","t":%d}\n' % t for t in (1, 5, 4, 9)) + b'{"e":"ma')
    (source / "2-2-2.jsonl").write_bytes(b"".join(b'{"e":"mark","t":%d}\n' % t for t in (2, 3, 10)) + b"broken\n")
    target = tmp_path / "steps.jsonl"
    target.write_text("old")
    assert merge(source, target) == 7
    merged = [json.loads(line) for line in target.read_text().splitlines()]
    assert [e["t"] for e in merged] == [1, 2, 3, 4, 5, 9, 10]
    assert [e["inc"] for e in merged[:2]] == ["1-1-1", "2-2-2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events", "steps.jsonl"]


def test_merge_into_the_same_folder_ignores_its_own_result(tmp_path: Path) -> None:
    (tmp_path / "1-1-1.jsonl").write_bytes(b'{"e":"mark","t":1}\n')
    for _ in range(2):
        assert merge(tmp_path, tmp_path / "steps.jsonl") == 1


def test_the_reader_needs_no_torch() -> None:
    code = "import sys, chaos.workload.events; sys.exit('torch' in sys.modules or 'numpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
