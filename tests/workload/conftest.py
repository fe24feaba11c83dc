"""One thread for torch, here and in what tests start: with more, small operations on busy cores crawl."""

import os

import pytest

os.environ.update({"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})

from reference_job import STEPS, Job


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[int, set[str]]:
    """Digests by step of a run that nothing happened to."""
    with Job(tmp_path_factory.mktemp("undisturbed"), max_steps=STEPS, recovery="none") as job:
        assert job.await_end() == 0
        return job.hashes()
