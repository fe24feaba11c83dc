"""Step events: what a training process says about each step, and how it is read back.

Every process incarnation appends JSON lines to a file of its own, ``<events_dir>/<inc>.jsonl``. A line is written with
one ``write()`` to a descriptor opened with O_APPEND, so a SIGKILL loses at most the step in progress and never mixes
lines. Instants (``t``) are nanoseconds of CLOCK_MONOTONIC. Nothing here imports torch: the controller reads with it.
"""

from __future__ import annotations

import heapq
import json
import math
import os
import time
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SCHEMA_VERSION = 1
SUFFIX = ".jsonl"

#: The longest line that is believed to be an event; anything longer without a newline is skipped as garbage.
MAX_LINE = 64 * 1024
#: How much of one file a single ``poll`` takes into memory.
READ_CHUNK = 1024 * 1024
#: Threads of one process stamp an instant before they write, so neighbouring lines may be out of order by a few.
REORDER_WINDOW = 64


@dataclass(frozen=True)
class Incarnation:
    """One life of one process, told apart from every other on the machine.

    ``pid`` is the process id as the process itself sees it, ``pidns`` the inode of its PID namespace, ``start`` field
    22 of ``/proc/self/stat`` (clock ticks since boot) and ``boot`` the kernel's boot id.
    """

    pidns: int
    pid: int
    start: int
    boot: str

    @property
    def name(self) -> str:
        """``<pidns>-<pid>-<start>``: the stem of the events file."""
        return f"{self.pidns}-{self.pid}-{self.start}"

    @classmethod
    def current(cls) -> Incarnation:
        """The calling process."""
        stat = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
        # The command's name, in parentheses, may hold spaces and parentheses itself: count from the last one.
        start = int(stat.rpartition(")")[2].split()[19])
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return cls(Path("/proc/self/ns/pid").stat().st_ino, os.getpid(), start, boot)


def number(value: float) -> float | str:
    """``value`` as it stands in JSON: non-finite floats become "nan", "inf" or "-inf"."""
    return value if math.isfinite(value) else str(value)


_writers: weakref.WeakSet[StepWriter] = weakref.WeakSet()


class StepWriter:
    """Appends the events of this process to its own file in ``directory``.

    The file is opened by ``hello``, or in the job's launcher by ``launcher``. After a fork the child of a process that
    has said hello has a file of its own, with its own ``hello``. A full or failing disk must not stop the training that
    is being watched: such an event is counted in ``lost`` and dropped, and the count is told by ``bye``.
    """

    def __init__(self, directory: Path | str) -> None:
        self._directory = Path(directory)
        self._fd = -1
        self._resync = False
        self._about: dict[str, Any] = {}
        self.incarnation = Incarnation.current()
        self.lost = 0
        _writers.add(self)

    def hello(self, node: int, gpu: int, hash_alg: str) -> None:
        """Open the file and say who writes it. Raises OSError if the file cannot be made."""
        self._about = {"node": node, "gpu": gpu, "hash_alg": hash_alg}
        self._open("hello", self._about)

    def launcher(self) -> None:
        """Open the file and say that this process is the job's launcher, which decides about membership.

        It is no member and says no hello, and neither does what it forks. Raises OSError if the file cannot be made.
        """
        self._open("launcher", {})

    def member(self, rank: int, gen: int, world: int) -> None:
        """This process is now ``rank`` of ``world`` in generation ``gen``."""
        self._emit("member", time.monotonic_ns(), {"rank": rank, "gen": gen, "world": world})

    def fenced(self, gen: int) -> None:
        """This process found itself outside generation ``gen``: what it did since is void."""
        self._emit("fenced", time.monotonic_ns(), {"gen": gen})

    def step(
        self,
        *,
        t: int,
        rank: int,
        gen: int,
        world: int,
        step: int,
        tokens: int,
        loss: float,
        gnorm: float,
        work_ns: int,
        digest: str | None = None,
    ) -> None:
        """One completed optimizer step. ``t``: the instant of completion; ``work_ns``: the step without its pacing."""
        # Formatted by hand: json.dumps costs four times as much, on every step of every rank.
        shown = f',"hash":"{digest}"' if digest else ""
        self._write(
            f'{{"e":"step","t":{t},"rank":{rank},"gen":{gen},"world":{world},"step":{step},"tokens":{tokens},'
            f'"loss":{_shown(loss)},"gnorm":{_shown(gnorm)}{shown},"work_ns":{work_ns}}}\n'.encode()
        )

    def mark(self, what: str, gen: int, t: int | None = None, **more: Any) -> None:
        """A stage of a recovery or another remarkable instant; ``more`` must be JSON values."""
        self._emit("mark", time.monotonic_ns() if t is None else t, {"what": what, "gen": gen} | more)

    def bye(self, reason: str) -> None:
        """The last line: why this process ends of its own accord."""
        self._emit("bye", time.monotonic_ns(), {"reason": reason} | ({"lost": self.lost} if self.lost else {}))

    def close(self) -> None:
        """Close the file; later events are dropped."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self, kind: str, about: dict[str, Any]) -> None:
        """Open the file; its first line says who writes it."""
        self._directory.mkdir(parents=True, exist_ok=True)
        me = self.incarnation
        path = self._directory / (me.name + SUFFIX)
        self._fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._emit(
            kind,
            time.monotonic_ns(),
            {"v": SCHEMA_VERSION, "inc": me.name, "pid": me.pid, "start": me.start, "pidns": me.pidns, "boot": me.boot}
            | about,
        )

    def _emit(self, kind: str, t: int, fields: dict[str, Any]) -> None:
        self._write(json.dumps({"e": kind, "t": t} | fields, separators=(",", ":")).encode() + b"\n")

    def _write(self, line: bytes) -> None:
        if self._fd < 0:
            self.lost += 1
            return
        if self._resync:  # the last line was cut short: end it, so that this one can be read
            line = b"\n" + line
        try:
            written = os.write(self._fd, line)
        except OSError:
            self.lost += 1
            return
        self._resync = written != len(line)
        self.lost += self._resync

    def _after_fork(self) -> None:
        self.close()
        self.incarnation = Incarnation.current()
        self.lost, self._resync = 0, False
        if self._about:
            self.hello(**self._about)


def _reopen_writers() -> None:
    for writer in list(_writers):
        writer._after_fork()


os.register_at_fork(after_in_child=_reopen_writers)


def _shown(value: float) -> str:
    return repr(value) if math.isfinite(value) else f'"{value}"'


class Tail:
    """Reads the events of a directory as they are written, each line once, with ``"inc"`` added.

    A last line without its newline waits for the rest of it. Lines that are no JSON objects are counted in
    ``malformed`` and skipped. Memory is bounded by READ_CHUNK a file: what is not read now is read by the next poll.
    """

    def __init__(self, directory: Path | str) -> None:
        self._directory = Path(directory)
        self._offsets: dict[str, int] = {}
        self.malformed = 0

    def poll(self) -> list[dict[str, Any]]:
        """The whole lines that are new since the last poll, file by file, each in its order of writing."""
        events: list[dict[str, Any]] = []
        try:
            entries = sorted(
                (entry for entry in os.scandir(self._directory) if entry.name.endswith(SUFFIX)),
                key=lambda entry: entry.name,
            )
        except FileNotFoundError:
            return events
        for entry in entries:
            offset = self._offsets.get(entry.name, 0)
            if entry.stat().st_size > offset:
                events += self._read(entry.path, entry.name, offset)
        return events

    def _read(self, path: str, name: str, offset: int) -> Iterator[dict[str, Any]]:
        with open(path, "rb", buffering=0) as file:
            file.seek(offset)
            data = file.read(READ_CHUNK)
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) > MAX_LINE:
            self.malformed += 1
            whole = len(data)
            data = b""
        self._offsets[name] = offset + whole
        for line in data[:whole].splitlines():
            event = _parse(line)
            if event is None:
                self.malformed += 1
            else:
                yield event | {"inc": name.removesuffix(SUFFIX)}


def tail(directory: Path | str) -> Tail:
    """An incremental reader of ``directory``, which need not exist yet."""
    return Tail(directory)


def _parse(line: bytes) -> dict[str, Any] | None:
    try:
        event = json.loads(line)
    except ValueError:
        return None
    known = isinstance(event, dict) and isinstance(event.get("t"), int) and isinstance(event.get("e"), str)
    return event if known else None


def merge(directory: Path | str, target: Path | str) -> int:
    """Write all events of ``directory`` to ``target`` in the order of ``t``; returns how many.

    ``target`` is replaced at once when complete. Files are streamed: memory grows with their number alone.
    """
    target = Path(target)
    paths = sorted(path for path in Path(directory).glob("*" + SUFFIX) if path != target)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}")
    count = 0
    with open(unfinished, "w", encoding="utf-8") as out:
        for _, line in heapq.merge(*map(_in_order, paths), key=lambda item: item[0]):
            out.write(line)
            count += 1
    unfinished.replace(target)
    return count


def _in_order(path: Path) -> Iterator[tuple[int, str]]:
    """(t, line with its newline) of one file, sorted within a window of REORDER_WINDOW lines."""
    window: list[tuple[int, int, str]] = []
    with open(path, "rb") as file:
        for position, raw in enumerate(file):
            event = _parse(raw) if raw.endswith(b"\n") else None
            if event is None:
                continue
            line = json.dumps(event | {"inc": path.name.removesuffix(SUFFIX)}, separators=(",", ":")) + "\n"
            heapq.heappush(window, (event["t"], position, line))
            if len(window) > REORDER_WINDOW:
                t, _, line = heapq.heappop(window)
                yield t, line
    while window:
        t, _, line = heapq.heappop(window)
        yield t, line
