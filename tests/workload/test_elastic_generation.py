"""The generation of a job under torchrun is counted by the job, since torchrun counts restarts on one node alone."""

from __future__ import annotations

from chaos.workload.reference.elastic import count_up


def test_each_group_of_a_job_has_a_number_of_its_own_across_processes(tmp_path):
    counter = tmp_path / "checkpoints" / "generation"
    assert [count_up(counter) for _ in range(3)] == [1, 2, 3]
    assert [file.name for file in counter.parent.iterdir()] == ["generation"]
