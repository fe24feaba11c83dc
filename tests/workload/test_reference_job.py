"""The reference trainer as real processes on this host."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from reference_job import SPARES, STEPS, Job, alive

pytestmark = pytest.mark.train


def test_a_job_trains_until_it_is_done_and_all_replicas_agree(undisturbed: dict[int, set[str]]) -> None:
    assert sorted(undisturbed) == list(range(1, STEPS + 1))
    assert all(len(digests) == 1 for digests in undisturbed.values())
    assert len({next(iter(digests)) for digests in undisturbed.values()}) == STEPS


def test_every_rank_says_hello_joins_steps_and_says_bye(tmp_path: Path) -> None:
    with Job(tmp_path, max_steps=100, recovery="none") as job:
        assert job.await_end() == 0
        hellos, byes = job.all("hello"), job.all("bye")
        assert {(h["node"], h["gpu"]) for h in hellos} == {(0, 0), (0, 1), (1, 0), (1, 1)}
        assert [b["reason"] for b in byes] == ["done"] * 4
        for rank in range(4):
            steps = job.all("step", rank=rank)
            assert [s["step"] for s in steps] == list(range(1, 101))
            assert all(s["gen"] == 1 and s["world"] == 4 and s["tokens"] == 64 for s in steps)
        losses = [s["loss"] for s in job.all("step", rank=0)]
        assert losses[0] > 5
        assert sum(losses[-20:]) / 20 < 3.5
        assert losses == [s["loss"] for s in job.all("step", rank=3)]


def test_another_run_with_the_same_seed_is_equal_to_the_bit(tmp_path: Path, undisturbed: dict[int, set[str]]) -> None:
    with Job(tmp_path, max_steps=30, recovery="none", hash_every=10) as job:
        assert job.await_end() == 0
        hashes = {e["step"]: e["hash"] for e in job.all("step") if "hash" in e}
        assert sorted(hashes) == [10, 20, 30]
        assert {step: {digest} for step, digest in hashes.items()} == {step: undisturbed[step] for step in hashes}


def test_a_killed_rank_is_replaced_by_a_spare_and_the_result_is_the_same(
    tmp_path: Path, undisturbed: dict[int, set[str]]
) -> None:
    with Job(tmp_path, max_steps=STEPS, spares=SPARES, step_s=0.02) as job:
        job.await_event("mark", what="checkpoint", step=20)
        job.await_step(30)
        victim = job.signal(1, signal.SIGKILL)
        promoted = job.await_event("member", gen=2, rank=1)
        assert (job.member(1)["node"], promoted["inc"] != victim["inc"]) == (2, True)
        restored = job.await_event("mark", what="restored", gen=2)
        assert restored["step"] in (20, 40)
        assert job.await_end() == 0
        assert job.hashes() == undisturbed
        # The victim's place was filled again, by a process that stood by.
        assert sum((h["node"], h["gpu"]) == (0, 1) for h in job.all("hello")) == 2
        stages = [m["what"] for m in job.all("mark", gen=2, inc=job.member(0)["inc"])]
        assert stages[:5] == ["symptom", "detected", "aborted", "group", "agreed"]


def test_without_spares_a_killed_rank_is_started_again_in_its_place(
    tmp_path: Path, undisturbed: dict[int, set[str]]
) -> None:
    with Job(tmp_path, max_steps=60, step_s=0.02) as job:
        job.await_step(25)
        job.signal(0, signal.SIGKILL)
        job.await_event("member", gen=2, rank=0)
        assert (job.member(0)["node"], job.member(0)["gpu"]) == (0, 0)
        assert job.await_end() == 0
        assert job.hashes() == {step: undisturbed[step] for step in range(1, 61)}


def test_a_whole_node_is_replaced_at_once(tmp_path: Path, undisturbed: dict[int, set[str]]) -> None:
    with Job(tmp_path, max_steps=60, spares=SPARES, step_s=0.02) as job:
        job.await_step(25)
        job.signal(2, signal.SIGKILL)
        job.signal(3, signal.SIGKILL)
        assert job.await_end() == 0
        assert {job.member(rank)["node"] for rank in (2, 3)} == {2}
        assert job.hashes() == {step: undisturbed[step] for step in range(1, 61)}


def test_a_stopped_rank_is_replaced_and_fenced_when_it_wakes(tmp_path: Path, undisturbed: dict[int, set[str]]) -> None:
    with Job(tmp_path, max_steps=STEPS, spares=SPARES, step_s=0.02) as job:
        job.await_step(25)
        with job.stopped(2) as stopped:
            job.await_step(45, gen=2, rank=2)
        job.await_event("fenced", inc=stopped["inc"])
        assert job.await_end() == 0
        assert not job.all("member", inc=stopped["inc"], gen=2)
        assert job.hashes() == undisturbed


def test_a_hung_rank_without_spares_is_killed_and_started_again(tmp_path: Path) -> None:
    with Job(tmp_path, step_s=0.02) as job:
        job.await_step(25)
        stopped = job.signal(3, signal.SIGSTOP)
        job.await_step(25, gen=2, rank=3)
        assert not alive(stopped)


def test_a_second_loss_during_recovery_is_recovered_from(tmp_path: Path, undisturbed: dict[int, set[str]]) -> None:
    with Job(tmp_path, max_steps=60, spares=SPARES, step_s=0.02) as job:
        job.await_step(25)
        job.signal(1, signal.SIGKILL)
        job.await_event("mark", what="aborted")
        job.signal(3, signal.SIGKILL)
        assert job.await_end() == 0
        assert job.hashes() == {step: undisturbed[step] for step in range(1, 61)}


def test_a_corrupt_newest_checkpoint_is_reported_and_an_older_one_is_loaded(tmp_path: Path) -> None:
    with Job(tmp_path, max_steps=150, step_s=0.02, checkpoint_every=40) as job:
        job.await_event("mark", what="checkpoint", step=40)
        newest = Path(job.await_event("mark", what="checkpoint", step=80)["path"])
        data = bytearray(newest.read_bytes())
        data[len(data) // 2] ^= 1
        newest.write_bytes(data)
        job.signal(1, signal.SIGKILL)
        assert job.await_event("mark", what="restored", gen=2)["step"] == 40
        (refused,) = job.all("mark", what="checkpoint_refused")
        assert str(newest) in refused["why"]
        assert job.await_end() == 0
        assert all(len(digests) == 1 for digests in job.hashes().values())


def test_without_recovery_a_killed_rank_ends_the_job(tmp_path: Path) -> None:
    with Job(tmp_path, recovery="none", step_s=0.02) as job:
        job.await_step(10)
        job.signal(2, signal.SIGKILL)
        assert job.await_end() == 1
        assert "no recovery" in job.log
        assert len(job.all("bye")) == 3


def test_without_recovery_a_stopped_rank_ends_the_job_by_the_collectives_time_out(tmp_path: Path) -> None:
    with Job(tmp_path, recovery="none", step_s=0.02, collective_timeout_s=0.5) as job:
        job.await_step(10)
        stopped = job.signal(2, signal.SIGSTOP)
        assert job.await_end() == 1
        assert not alive(stopped)


def test_sigterm_ends_the_job_cleanly(tmp_path: Path) -> None:
    with Job(tmp_path, step_s=0.02, spares=SPARES) as job:
        job.await_step(5)
        job.process.send_signal(signal.SIGTERM)
        assert job.await_end() == 0
        assert [b["reason"] for b in job.all("bye")] == ["stopped"] * 6


def test_the_end_of_its_input_ends_the_job_cleanly(tmp_path: Path) -> None:
    with Job(tmp_path, step_s=0.02) as job:
        job.await_step(5)
        job.end_input()
        assert job.await_end() == 0


def test_ranks_die_with_a_killed_launcher_even_when_stopped(tmp_path: Path) -> None:
    with Job(tmp_path, step_s=0.02, spares=SPARES) as job:
        job.await_step(5)
        job.signal(1, signal.SIGSTOP)
        job.process.kill()
        job.process.wait()
        hellos = job.all("hello")
        ended = [h for h in hellos if not alive(h)]
        while len(ended) < len(hellos):
            ended = [h for h in hellos if not alive(h)]
        assert len(hellos) == 6


def test_figures_are_finite_and_work_is_shorter_than_the_step(tmp_path: Path) -> None:
    with Job(tmp_path, max_steps=20, recovery="none", step_s=0.05) as job:
        assert job.await_end() == 0
        for event in job.all("step"):
            assert math.isfinite(event["loss"])
            assert math.isfinite(event["gnorm"])
            assert event["work_ns"] > 0


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ('{"seed": 1}', "lacks events_dir"),
        ("[]", "a JSON object is needed"),
        ("{", "not JSON"),
    ],
)
def test_a_wrong_configuration_is_one_clear_line(tmp_path: Path, change: str, complaint: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(change)
    run = subprocess.run(
        [sys.executable, "-m", "chaos.workload.reference.job", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 2
    assert complaint in run.stderr
    assert len(run.stderr.splitlines()) == 1
