"""The live view of a workload, from files of step events as ranks write them."""

from __future__ import annotations

import json

from chaos.engine.live import Live


def write(folder, inc, *events):
    with (folder / f"{inc}.jsonl").open("a") as file:
        for event in events:
            file.write(json.dumps(event) + "\n")


def hello(pid, node, gpu):
    return {"e": "hello", "t": 1, "inc": str(pid), "pid": pid, "start": 5, "pidns": 9, "node": node, "gpu": gpu}


def member(rank, gen, t=2):
    return {"e": "member", "t": t, "rank": rank, "gen": gen, "world": 2}


def step(rank, gen, number, t):
    return {"e": "step", "t": t, "rank": rank, "gen": gen, "step": number, "world": 2, "loss": 1.0}


def followed(folder, until):
    live = Live(folder, lambda: 100)
    live.start()
    try:
        assert live.wait_for(until, 10)
    finally:
        live.close()
    return live


def test_members_are_those_of_the_newest_generation_and_a_spare_takes_the_rank_over(tmp_path):
    write(tmp_path, "a", hello(1, 0, 0), member(0, 1), step(0, 1, 1, 10), member(0, 2), step(0, 2, 2, 30))
    write(tmp_path, "b", hello(2, 0, 1), member(1, 1), step(1, 1, 1, 11))
    write(tmp_path, "c", hello(3, 1, 0), member(1, 2), step(1, 2, 2, 31))
    live = followed(tmp_path, lambda seen: len(seen.events()) == 11)
    assert live.members() == {0: "a", 1: "c"}
    assert live.process_of(1)["pid"] == 3
    assert live.process_of(1)["node"] == 1
    assert live.process_of(5) is None
    assert live.stepping(2)
    assert live.last_step() == 2


def test_a_fenced_process_is_no_member(tmp_path):
    write(tmp_path, "a", hello(1, 0, 0), member(0, 1), step(0, 1, 1, 10), {"e": "fenced", "t": 20, "gen": 2})
    live = followed(tmp_path, lambda seen: len(seen.events()) == 4)
    assert live.members() == {}


def test_the_newest_launcher_is_known_and_is_no_member(tmp_path):
    for name, pid, t in (("a", 7, 50), ("b", 5, 3)):
        write(tmp_path, name, {"e": "launcher", "t": t, "inc": name, "v": 1, "pid": pid, "start": 5, "pidns": 9})
    write(tmp_path, "c", hello(1, 0, 0), member(0, 1), step(0, 1, 1, 10))
    live = followed(tmp_path, lambda seen: len(seen.events()) == 5)
    assert live.launcher()["pid"] == 7
    assert live.members() == {0: "c"}
    assert followed(tmp_path / "none", lambda _: True).launcher() is None


def test_a_view_holds_the_steps_of_its_window_in_order_of_time(tmp_path):
    write(tmp_path, "a", member(0, 1), step(0, 1, 1, 40), step(0, 1, 2, 70), step(0, 1, 3, 120))
    write(tmp_path, "b", member(1, 1), step(1, 1, 1, 41), step(1, 1, 2, 69))
    live = followed(tmp_path, lambda seen: len(seen.events()) == 7)
    assert [event["t"] for event in live.view(50).steps()] == [69, 70]  # 120 lies in the future
    assert [each.last["step"] for each in live.view(50).members()] == [3, 2]
