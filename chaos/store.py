"""The database: which runs are under way on this machine, and which faults were promised to be undone.

One file of SQLite, shared by all controllers of a user. Write-ahead log with full synchronisation: what a method has
written when it returns survives a power loss. Every transaction is short and takes its lock at its beginning, so that
several controllers wait for each other for milliseconds and never fail for it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, IntegrityError, SQLAlchemyError

from chaos.store_file import location

SCHEMA = 1
BUSY = 5.0  # seconds that a transaction waits for another controller's

State = Literal["promised", "recorded", "closed"]

_tables = sa.MetaData()
_version = sa.Table("schema_version", _tables, sa.Column("version", sa.Integer, nullable=False))
_runs = sa.Table(
    "runs",
    _tables,
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("folder", sa.Text, nullable=False),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("controller", sa.JSON, nullable=False),  # pid, start, boot, pidns
    sa.Column("began", sa.Text, nullable=False),
    sa.Column("ended", sa.Text),
    sa.Column("stopping", sa.Text),
    sa.Column("halt_requested", sa.Text),
)
_promises = sa.Table(
    "promises",
    _tables,
    sa.Column("fault", sa.Text, primary_key=True),
    sa.Column("run", sa.Text, sa.ForeignKey("runs.run"), nullable=False),
    sa.Column("place", sa.JSON, nullable=False),  # how its node's agent is reached
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("params", sa.JSON, nullable=False),
    sa.Column("deadline", sa.Text, nullable=False),
    sa.Column("deadline_ns", sa.BigInteger, nullable=False),
    sa.Column("boot", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("promised", sa.Text, nullable=False),
    sa.Column("recorded", sa.Text),
    sa.Column("closed", sa.Text),
    sa.Column("record", sa.JSON),
    sa.Column("proof", sa.Text),
)
sa.Index("promises_by_state", _promises.c.state)


class StoreError(RuntimeError):
    """The store cannot be read or written; the message says what is wrong, where, and the remedy."""


@dataclass(frozen=True)
class RunRow:
    """A run.

    Attributes:
        controller: its process: ``pid``, ``start`` (ticks since boot, field 22 of /proc/PID/stat), ``boot`` (the
            machine's boot id) and ``pidns`` (inode of its PID namespace).
        began, ended: ISO 8601, UTC; ``ended`` is None while it is under way, and for ever if it was killed.
        stopping: when it began to undo everything, or None.
        halt_requested: who asked for its end and when, in words, or None.
    """

    run: str
    folder: str
    host: str
    controller: dict[str, Any]
    began: str
    ended: str | None
    stopping: str | None
    halt_requested: str | None


@dataclass(frozen=True)
class PromiseRow:
    """A fault that was promised to be undone.

    Attributes:
        place: how the agent of its node is reached (see ``chaos.engine.ledger``).
        deadline: wall clock (ISO 8601, UTC) at which it has ended at the latest, whoever dies.
        deadline_ns: the same on CLOCK_MONOTONIC of the machine's boot ``boot``.
        record: the copy of the node's undo record, once there is one.
        proof: of its being undone, in words, once it is closed.
    """

    fault: str
    run: str
    place: dict[str, Any]
    kind: str
    params: dict[str, Any]
    deadline: str
    deadline_ns: int
    boot: str
    state: State
    promised: str
    recorded: str | None
    closed: str | None
    record: dict[str, Any] | None
    proof: str | None


class Store:
    """An open store; safe from several threads and for several processes.

    Args:
        path: the file; it and its folder are made if they are missing.

    Raises:
        StoreError: it cannot be opened, or a newer version made it.
    """

    def __init__(self, path: Path | None = None) -> None:
        self.path = location() if path is None else path
        self._engine = sa.create_engine(f"sqlite:///{self.path}", connect_args={"timeout": BUSY})
        sa.event.listen(self._engine, "connect", _configure)
        sa.event.listen(self._engine, "begin", _begin)
        try:
            with self._told():
                self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._prepare()
        except StoreError:
            self._engine.dispose()
            raise

    def _prepare(self) -> None:
        with self._engine.execution_options(reading=True).connect() as connection:
            made = sa.inspect(connection).has_table(_version.name)
            found = connection.execute(sa.select(_version.c.version)).scalar() if made else None
        if found is None:
            with self._engine.begin() as connection:
                _tables.create_all(connection)
                found = connection.execute(sa.select(_version.c.version)).scalar()
                if found is None:  # else another controller was quicker
                    connection.execute(_version.insert().values(version=SCHEMA))
        if found is not None and found > SCHEMA:
            raise StoreError(
                f"the store {self.path} was made by a newer version (schema {found}, this one reads {SCHEMA}): use "
                "that version, or name another store in CHAOS_STORE"
            )

    def close(self) -> None:
        """Give its connections back."""
        self._engine.dispose()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- runs --------------------------------------------------------------------------------------------------------

    def begin_run(self, run: str, folder: str, host: str, controller: Mapping[str, Any]) -> None:
        """A run is under way."""
        with self._writing() as connection:
            connection.execute(
                _runs.insert().values(run=run, folder=folder, host=host, controller=dict(controller), began=now())
            )

    def end_run(self, run: str) -> None:
        """A run has come to its end."""
        self._update_run(run, ended=now())

    def stopping(self, run: str) -> None:
        """A run has begun to undo everything."""
        self._update_run(run, stopping=now())

    def request_halt(self, run: str, text: str) -> None:
        """Note who wants a run to end."""
        self._update_run(run, halt_requested=text)

    def _update_run(self, run: str, **values: str) -> None:
        with self._writing() as connection:
            connection.execute(_runs.update().where(_runs.c.run == run).values(**values))

    def run(self, run: str) -> RunRow | None:
        """One run, or None."""
        with self._reading() as connection:
            row = connection.execute(sa.select(_runs).where(_runs.c.run == run)).one_or_none()
        return None if row is None else RunRow(**row._mapping)

    def unended_runs(self) -> list[RunRow]:
        """The runs that have not told of their end: under way, or killed."""
        with self._reading() as connection:
            rows = connection.execute(sa.select(_runs).where(_runs.c.ended.is_(None)).order_by(_runs.c.began)).all()
        return [RunRow(**row._mapping) for row in rows]

    # -- promises ----------------------------------------------------------------------------------------------------

    def promise(
        self,
        fault: str,
        *,
        run: str,
        place: Mapping[str, Any],
        kind: str,
        params: Mapping[str, Any],
        deadline: datetime,
        deadline_ns: int,
        boot: str,
    ) -> None:
        """Promise that a fault will be undone; on stable storage when this returns."""
        with self._writing() as connection:
            connection.execute(
                _promises.insert().values(
                    fault=fault,
                    run=run,
                    place=dict(place),
                    kind=kind,
                    params=dict(params),
                    deadline=deadline.isoformat(timespec="milliseconds"),
                    deadline_ns=deadline_ns,
                    boot=boot,
                    state="promised",
                    promised=now(),
                )
            )

    def record(self, fault: str, record: Mapping[str, Any]) -> None:
        """Keep the copy of a fault's undo record."""
        with self._writing() as connection:
            connection.execute(
                _promises.update()
                .where(_promises.c.fault == fault, _promises.c.state == "promised")
                .values(state="recorded", record=dict(record), recorded=now())
            )

    def close_promise(self, fault: str, proof: str) -> None:
        """A fault is proven undone; the first proof counts."""
        with self._writing() as connection:
            connection.execute(
                _promises.update()
                .where(_promises.c.fault == fault, _promises.c.state != "closed")
                .values(state="closed", proof=proof, closed=now())
            )

    def promise_of(self, fault: str) -> PromiseRow | None:
        """One promise, or None."""
        with self._reading() as connection:
            row = connection.execute(sa.select(_promises).where(_promises.c.fault == fault)).one_or_none()
        return None if row is None else _promise(row)

    def open_promises(self, run: str | None = None) -> list[PromiseRow]:
        """The promises, of one run or of all, that are not proven kept; oldest first."""
        wanted = sa.select(_promises).where(_promises.c.state != "closed").order_by(_promises.c.promised)
        if run is not None:
            wanted = wanted.where(_promises.c.run == run)
        with self._reading() as connection:
            return [_promise(row) for row in connection.execute(wanted).all()]

    # -- transactions and errors -------------------------------------------------------------------------------------

    @contextmanager
    def _writing(self) -> Iterator[sa.Connection]:
        with self._told(), self._engine.begin() as connection:
            yield connection

    @contextmanager
    def _reading(self) -> Iterator[sa.Connection]:
        with self._told(), self._engine.execution_options(reading=True).connect() as connection:
            yield connection

    @contextmanager
    def _told(self) -> Iterator[None]:
        """Turn what the database or the disk says into our own error."""
        try:
            yield
        except (SQLAlchemyError, sqlite3.Error, OSError, json.JSONDecodeError) as error:
            raise StoreError(self._explain(error)) from error

    def _explain(self, error: Exception) -> str:
        cause = error.orig if isinstance(error, DBAPIError) and isinstance(error.orig, Exception) else error
        if isinstance(error, IntegrityError):
            return f"the store {self.path} refuses an entry that it has already ({cause})"
        code = getattr(cause, "sqlite_errorcode", 0) & 0xFF
        what, remedy = _REMEDIES.get(code, (str(getattr(cause, "strerror", None) or cause), ""))
        if isinstance(cause, OSError) or code == sqlite3.SQLITE_CANTOPEN:
            remedy = "name one that can be written in CHAOS_STORE"
            what = what if isinstance(cause, OSError) else self._why_not_opened()
        return f"the store {self.path} cannot be used: {what}" + (f": {remedy}" if remedy else "")

    def _why_not_opened(self) -> str:
        if self.path.is_dir():
            return "it is a folder"
        return "its folder cannot be written" if not os.access(self.path.parent, os.W_OK) else "it cannot be opened"


_REMEDIES = {
    sqlite3.SQLITE_FULL: ("the disk is full", "make room, or name another store in CHAOS_STORE"),
    sqlite3.SQLITE_IOERR: ("the disk fails or is full", "make room, or name another store in CHAOS_STORE"),
    sqlite3.SQLITE_READONLY: ("it is read-only", "name one that can be written in CHAOS_STORE"),
    sqlite3.SQLITE_BUSY: (f"another process has kept it locked for {BUSY:g} s", "find and end that process"),
    sqlite3.SQLITE_LOCKED: (f"another process has kept it locked for {BUSY:g} s", "find and end that process"),
    sqlite3.SQLITE_CORRUPT: ("it is damaged", "move it away; `chaos sweep` then looks at the nodes themselves"),
    sqlite3.SQLITE_NOTADB: ("it is no database", "move it away, or name another store in CHAOS_STORE"),
    sqlite3.SQLITE_ERROR: ("its tables are not ours", "move it away, or name another store in CHAOS_STORE"),
}


def now() -> str:
    """The wall clock as the store keeps it."""
    return datetime.now(UTC).isoformat(timespec="milliseconds")


def _promise(row: sa.Row[Any]) -> PromiseRow:
    return PromiseRow(**row._mapping)


def _configure(connection: sqlite3.Connection, _: object) -> None:
    """Prepare a new connection: transactions are begun by ``_begin``, not by the driver."""
    connection.isolation_level = None
    end = time.monotonic() + BUSY
    while connection.execute("PRAGMA journal_mode").fetchone()[0] != "wal":
        try:
            connection.execute("PRAGMA journal_mode=WAL")
        except sqlite3.OperationalError as error:
            # The change of mode does not wait for another's lock as everything else does.
            if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > end:
                raise
            time.sleep(0.01)
    connection.execute("PRAGMA synchronous=FULL")


def _begin(connection: sa.Connection) -> None:
    """Take the lock at once: a reader that becomes a writer would fail instead of waiting."""
    if not connection.get_execution_options().get("reading"):
        connection.exec_driver_sql("BEGIN IMMEDIATE")
