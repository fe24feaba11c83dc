"""Does jobs of a single-threaded process on all cores at once."""

from __future__ import annotations

import os
from collections.abc import Callable


def share(jobs: list[Callable[[], None]]) -> None:
    """Do jobs on all cores at once: each helper is a fork that has the same descriptors.

    Raises:
        OSError: one failed in a helper; a failure here is raised as it is.
    """
    workers = min(len(jobs), os.cpu_count() or 1)
    helpers = [_fork_helper(jobs[k::workers]) for k in range(1, workers)]
    for job in jobs[::workers]:
        job()
    for helper, report in helpers:
        with os.fdopen(report, encoding="utf-8") as pipe:
            problem = pipe.read()
        os.waitpid(helper, 0)
        if problem:
            raise OSError(problem)


def _fork_helper(jobs: list[Callable[[], None]]) -> tuple[int, int]:
    """Fork a process that does some jobs and ends; its id, and a descriptor from which its error can be read."""
    reader, writer = os.pipe()
    helper = os.fork()
    if helper == 0:
        try:
            for job in jobs:
                job()
        except BaseException as error:  # noqa: BLE001 - the text is all that the caller gets of it
            os.write(writer, f"{type(error).__name__}: {error}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    return helper, reader
