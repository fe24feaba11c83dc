"""Runs one reference training job: ``python -m chaos.workload.reference.job CONFIG.json``.

This process becomes the job's zygote; the launcher and all ranks are its children. It ends when the job is done, at
SIGTERM or SIGINT, or when its standard input (a pipe or a socket) reaches its end; all of them end with it. Exit code:
0 done or stopped as asked, 1 the job failed, 2 the configuration is wrong.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from chaos.workload.reference.config import ConfigError, JobConfig

#: Before torch is imported. More threads than cores make small operations many times slower.
SINGLE_THREADED = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def main(arguments: list[str] | None = None) -> int:
    """Read the configuration, run the job; returns the exit code."""
    arguments = sys.argv[1:] if arguments is None else arguments
    logging.basicConfig(level=logging.INFO, format="%(asctime)s.%(msecs)03d %(message)s", datefmt="%H:%M:%S")
    if len(arguments) != 1:
        print("usage: python -m chaos.workload.reference.job CONFIG.json", file=sys.stderr)
        return 2
    try:
        config = JobConfig.load(Path(arguments[0]))
        if config.recovery == "restart":
            raise ConfigError("recovery is 'restart': torchrun starts that one, with chaos.workload.reference.elastic")
        for folder in (config.events_dir, config.logs_dir, config.checkpoint_dir):
            folder.mkdir(parents=True, exist_ok=True)
    except (ConfigError, OSError) as error:
        print(error, file=sys.stderr)
        return 2
    os.environ.update(SINGLE_THREADED)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    return _run(config)


def _run(config: JobConfig) -> int:
    from chaos.workload.reference.launcher.process import run_launcher  # noqa: PLC0415 - imports torch
    from chaos.workload.reference.placement import name_process  # noqa: PLC0415
    from chaos.workload.reference.rank.process import RankSetup  # noqa: PLC0415
    from chaos.workload.reference.zygote import Zygote  # noqa: PLC0415

    name_process("zygote")
    return Zygote(RankSetup(config), lambda zygote: run_launcher(config, zygote)).serve()


if __name__ == "__main__":
    sys.exit(main())
