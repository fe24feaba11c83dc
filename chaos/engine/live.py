"""The workload as it runs: reads step events as they come and answers questions about the last few seconds."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from chaos.workload.events import Tail
from steady_state import Member

POLL = 0.05  # seconds; a step event is seen this much later at the most

Event = dict[str, Any]


@dataclass(frozen=True)
class View:
    """What probes see: see ``steady_state.WorkloadView``."""

    now_ns: int
    window_ns: int
    world: int
    baseline: Mapping[str, float]
    window: Sequence[Event]
    current: Sequence[Member]

    def steps(self) -> Sequence[Event]:
        """Step events of the window, in order of time."""
        return self.window

    def members(self) -> Sequence[Member]:
        """The current members, by rank."""
        return self.current


class Live:
    """Follows a folder of step events on a thread of its own.

    Args:
        events: the folder.
        clock: CLOCK_MONOTONIC in ns.
    """

    def __init__(self, events: Path, clock: Callable[[], int]) -> None:
        self._tail = Tail(events)
        self._clock = clock
        self._changed = threading.Condition(threading.RLock())
        self._ended = threading.Event()
        self._steps: list[Event] = []
        self._events: list[Event] = []
        self._hellos: dict[str, Event] = {}
        self._memberships: dict[str, Event] = {}
        self._launcher: Event | None = None
        self._world = 0
        self._last: dict[str, Event] = {}
        self.baseline: Mapping[str, float] = {}
        self._thread = threading.Thread(target=self._follow, name="step events", daemon=True)

    def start(self) -> None:
        """Begin to follow."""
        self._thread.start()

    def close(self) -> None:
        """Stop following."""
        self._ended.set()
        if self._thread.is_alive():
            self._thread.join()

    def _follow(self) -> None:
        while not self._ended.wait(POLL):
            fresh = self._tail.poll()
            if fresh:
                with self._changed:
                    for event in fresh:
                        self._take(event)
                    self._changed.notify_all()

    def _take(self, event: Event) -> None:
        self._events.append(event)
        match event["e"]:
            case "step":
                bisect.insort(self._steps, event, key=lambda each: each["t"])  # ranks' files are read one by one
                self._last[event["inc"]] = event
            case "hello":
                self._hellos[event["inc"]] = event
            case "launcher":  # a new one may have been read before its predecessor
                if self._launcher is None or self._launcher["t"] < event["t"]:
                    self._launcher = event
            case "member":
                self._world = self._world or event["world"]
                self._memberships[event["inc"]] = event
            case "fenced" | "bye":
                self._memberships.pop(event["inc"], None)

    # -- questions ---------------------------------------------------------------------------------------------------

    def wait_for(self, true: Callable[[Live], bool], timeout: float) -> bool:
        """Wait until something holds of the events seen so far, or the time is over."""
        with self._changed:
            return self._changed.wait_for(lambda: true(self), timeout)

    def events(self) -> list[Event]:
        """Everything seen so far, in order of time."""
        with self._changed:
            return sorted(self._events, key=lambda event: event["t"])

    def members(self) -> dict[int, str]:
        """The incarnations of the newest generation, by rank."""
        with self._changed:
            newest = self._newest()
            return {m["rank"]: inc for inc, m in self._memberships.items() if m["gen"] == newest}

    def _newest(self) -> int:
        return max((event["gen"] for event in self._memberships.values()), default=0)

    def process_of(self, rank: int) -> Event | None:
        """The hello of the process that is this rank now: node, gpu, pid, start, pidns."""
        inc = self.members().get(rank)
        with self._changed:
            return None if inc is None else self._hellos.get(inc)

    def launcher(self) -> Event | None:
        """What the newest launcher of the job said of itself: pid, start, pidns."""
        with self._changed:
            return self._launcher

    def stepping(self, world: int) -> bool:
        """Whether all ranks of the world have completed a step."""
        members = self.members()
        with self._changed:
            return len(members) == world and all(inc in self._last for inc in members.values())

    def last_step(self) -> int:
        """The highest step completed by any rank."""
        with self._changed:
            return max((event["step"] for event in self._last.values()), default=0)

    def view(self, window_ns: int) -> View:
        """The last ``window_ns`` nanoseconds."""
        now = self._clock()
        members = self.members()
        with self._changed:
            window = self._steps[bisect.bisect_right(self._steps, now - window_ns, key=lambda each: each["t"]) :]
            current = [Member(rank, inc, self._last.get(inc)) for rank, inc in sorted(members.items())]
        return View(now, window_ns, self._world, self.baseline, [step for step in window if step["t"] <= now], current)

    def rate(self, window_ns: int) -> float:
        """Steps a second over the last ``window_ns``, for display."""
        view = self.view(window_ns)
        return len({(step["gen"], step["step"]) for step in view.window}) * 1e9 / window_ns
