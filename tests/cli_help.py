"""Commands as a user types them."""

from __future__ import annotations

import os
import subprocess
import sys


def chaos(*words: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """What a command says, on a wide terminal, errors included."""
    return subprocess.run(
        [sys.executable, "-m", "chaos", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
        text=True,
        env=os.environ | {"COLUMNS": "200"} | (env or {}),
    )
