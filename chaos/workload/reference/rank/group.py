"""Process groups: one a generation, over addresses of our choice, never waited for longer than necessary."""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch.distributed as dist
from torch import Tensor

from chaos.workload.reference.messages import Generation
from chaos.workload.reference.rank.control import Control
from chaos.workload.reference.store import Store
from chaos.workload.reference.training.pace import compute_in_batches

BUILD_TIMEOUT_S = 1.0
_SLICE = timedelta(milliseconds=10)

_Gloo: Any = dist.ProcessGroupGloo  # torch's stubs know neither its collectives nor its options


class GroupBroken(RuntimeError):
    """This process group cannot go on."""


class Group(Protocol):
    """What training needs of a process group. Each call raises GroupBroken if it cannot be completed."""

    generation: int
    slot: int
    world: int

    def all_reduce(self, tensor: Tensor) -> None:
        """Sum ``tensor`` over all ranks, in place."""

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Copy the root's ``tensor`` to all ranks, in place."""


class GlooGroup:
    """One generation's group; calls end early when the launcher announces a newer one."""

    def __init__(self, backend: Any, control: Control, generation: Generation, slot: int) -> None:
        self.backend = backend
        self._control = control
        self.generation, self.slot, self.world = generation.number, slot, len(generation.seats)
        self._sum = dist.AllreduceOptions()

    def all_reduce(self, tensor: Tensor) -> None:
        self._finish(lambda: self.backend.allreduce([tensor], self._sum))

    def broadcast(self, tensor: Tensor, root: int) -> None:
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor = root, 0
        self._finish(lambda: self.backend.broadcast([tensor], options))

    def _finish(self, begin: Callable[[], dist.Work]) -> None:
        if not self._control.enter():
            raise GroupBroken("superseded before a collective")
        try:
            self._await(begin())
        finally:
            self._control.left()

    def _await(self, work: dist.Work) -> None:
        # In slices: on a connection that was closed before the call, work sits until the collective's time-out. A
        # callback of the work's future could end the wait as well, at the price of 0.5 ms a step.
        while not self._completed_within(work, _SLICE):
            if self._control.given_up:
                raise GroupBroken("superseded within a collective")

    @staticmethod
    def _completed_within(work: dist.Work, time: timedelta) -> bool:
        try:
            work.wait(time)
        except RuntimeError:
            if not work.is_completed():
                return False
            # It may have completed just after the slice: only a wait for completed work tells how it went.
            try:
                work.wait()
            except RuntimeError as error:
                raise GroupBroken(f"collective failed: {_brief(error)}") from error
        return True


def _brief(error: Exception) -> str:
    """gloo's message without its source file and its advice."""
    return re.sub(r"^\[\S+\] ", "", str(error).partition(" This is typically")[0]).strip()


class GroupBuilder:
    """Builds a generation's group, and takes old ones apart where nobody waits for it.

    gloo's constructor cannot be interrupted. So it runs in a thread of its own with a store connection of its own, and
    is left behind when nobody wants its result any more.

    Args:
        connect: opens a connection to a generation's store, in the calling thread.
        timeout: seconds a collective may take.
    """

    def __init__(self, control: Control, connect: Callable[[Generation], Store], timeout: float) -> None:
        self._control = control
        self._connect = connect
        self._timeout = timeout
        self._old: queue.SimpleQueue[tuple[float, GlooGroup]] = queue.SimpleQueue()
        self._janitor: threading.Thread | None = None

    def build(self, generation: Generation, slot: int) -> GlooGroup:
        """Form the group together with all other members.

        Raises:
            GroupBroken: it could not be formed, or is obsolete already.
        """
        made: list[GlooGroup | GroupBroken] = []

        left = threading.Event()

        def take(result: GlooGroup | GroupBroken) -> None:
            if left.is_set():
                if isinstance(result, GlooGroup):
                    self.discard(result)
                return
            made.append(result)
            self._control.notify()

        self.begin(generation, slot, take)
        if not self._control.wait_for(lambda: bool(made)):
            left.set()
            if made and isinstance(made[0], GlooGroup):
                self.discard(made[0])
            raise GroupBroken("superseded while the group was formed")
        if isinstance(made[0], GroupBroken):
            raise made[0]
        return made[0]

    def begin(self, generation: Generation, slot: int, take: Callable[[GlooGroup | GroupBroken], None]) -> None:
        """Form the group in the background; ``take`` is called in another thread with the result."""

        def construct() -> None:
            compute_in_batches()  # for gloo's own threads, which this one starts
            try:
                take(GlooGroup(self._construct(generation, slot), self._control, generation, slot))
            except (RuntimeError, OSError) as error:
                take(GroupBroken(f"the group was not formed: {_brief(error)}"))

        threading.Thread(target=construct, name=f"group {generation.number}", daemon=True).start()

    def _construct(self, generation: Generation, slot: int) -> Any:
        options = _Gloo._Options()
        options._timeout = timedelta(seconds=BUILD_TIMEOUT_S)
        options._threads = 1
        options._devices = [_Gloo.create_device(hostname=generation.seats[slot].bind)]
        backend = _Gloo(self._connect(generation), slot, len(generation.seats), options)
        backend.set_timeout(timedelta(seconds=self._timeout))
        return backend

    def discard(self, group: GlooGroup) -> None:
        """Take a group apart later, elsewhere: it costs 10 ms, and until its time-out a collective may hang in it."""
        if self._janitor is None:
            self._janitor = threading.Thread(target=self._clean, name="janitor", daemon=True)
            self._janitor.start()
        self._old.put((time.monotonic() + self._timeout + 1, group))

    def _clean(self) -> None:
        while True:
            due, group = self._old.get()
            time.sleep(max(0.0, due - time.monotonic()))
            del group


class Successor:
    """The group that is formed beside the present one, until all ranks move over to it at one and the same step.

    Make before break: the present group trains on meanwhile, and each rank votes in its gradient buffer for as long as
    it could move. The sum is the same everywhere, so all see in the same step that everybody can.
    """

    def __init__(self, builder: GroupBuilder, on_broken: Callable[[int, GroupBroken], None]) -> None:
        """``on_broken`` is told, in another thread, why a generation's group could not be formed."""
        self._builder = builder
        self._on_broken = on_broken
        self._lock = threading.Lock()
        self._wanted: Generation | None = None
        self._group: GlooGroup | None = None

    def offer(self, generation: Generation, slot: int) -> None:
        """Form this one; from any thread."""
        self.drop()
        with self._lock:
            self._wanted = generation
        self._builder.begin(generation, slot, lambda result: self._take(generation, result))

    def _take(self, generation: Generation, result: GlooGroup | GroupBroken) -> None:
        with self._lock:
            wanted = self._wanted is generation
            if wanted and isinstance(result, GlooGroup):
                self._group = result
        if not wanted:
            if isinstance(result, GlooGroup):
                self._builder.discard(result)
        elif isinstance(result, GroupBroken):
            self._on_broken(generation.number, result)

    def stands(self) -> bool:
        """Whether this rank could move over now: its vote."""
        return self._group is not None

    def take(self) -> tuple[Generation, GlooGroup] | None:
        """Move over: there is no successor any more. ``None``: a newer generation has just made it obsolete."""
        with self._lock:
            generation, group = self._wanted, self._group
            self._wanted = self._group = None
        return None if generation is None or group is None else (generation, group)

    def drop(self) -> None:
        """A newer generation makes it obsolete; from any thread."""
        with self._lock:
            group, self._wanted, self._group = self._group, None, None
        if group is not None:
            self._builder.discard(group)
