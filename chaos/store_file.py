"""Where the store is, and whether a promise in it is open: known without loading the database layer.

Every command asks this at its start, so it must cost nothing where there is no store, and little where there is one.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path


def location() -> Path:
    """The store's file: ``CHAOS_STORE``, or below /var/lib/chaos for root, or in the user's state folder."""
    given = os.environ.get("CHAOS_STORE")
    if given:
        return Path(given).absolute()
    if os.geteuid() == 0:
        return Path("/var/lib/chaos/store.sqlite")
    base = os.environ.get("XDG_STATE_HOME")
    return (Path(base) if base else Path.home() / ".local" / "state") / "chaos" / "store.sqlite"


def may_be_open(path: Path) -> bool:
    """Whether a promise may be open: False only where there is no store, or where the store says that none is."""
    if not path.exists():
        return False
    try:
        connection = sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True, timeout=0.1)
        try:
            found = connection.execute("SELECT EXISTS (SELECT 1 FROM promises WHERE state != 'closed')").fetchone()
        finally:
            connection.close()
    except sqlite3.Error:  # the store itself says what is wrong with it
        return True
    return bool(found[0])
