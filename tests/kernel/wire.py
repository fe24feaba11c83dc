"""Two network namespaces of the virtual machine with a wire (veth) between them: two machines with one cable."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from injectors import kernel
from injectors._ping import Ping

HERE, PEER = "10.9.0.1", "10.9.0.2"
INTERFACE = "wire0"  # at either end


class Wire:
    """``a`` is where a test is, ``b`` is its peer."""

    @contextmanager
    def inside(self) -> Iterator[None]:
        """This thread in the namespace ``a``."""
        fd = kernel.open_network("/run/netns/a")
        try:
            with kernel.inside(fd):
                yield
        finally:
            os.close(fd)

    def run(self, end: str, *command: str) -> str:
        """What a program in one of the namespaces says."""
        return run("ip", "netns", "exec", end, *command)

    def start(self, end: str, *command: str) -> subprocess.Popen[bytes]:
        """A program in one of the namespaces, that goes on."""
        return subprocess.Popen(["ip", "netns", "exec", end, *command], stdout=subprocess.DEVNULL)


@contextmanager
def wire() -> Iterator[Wire]:
    try:
        for end in ("a", "b"):
            run("ip", "netns", "add", end)
        run("ip", "link", "add", INTERFACE, "netns", "a", "type", "veth", "peer", "name", INTERFACE, "netns", "b")
        for end, address in (("a", HERE), ("b", PEER)):
            run("ip", "-n", end, "address", "add", f"{address}/24", "dev", INTERFACE)
            run("ip", "-n", end, "link", "set", "lo", "up")
            run("ip", "-n", end, "link", "set", INTERFACE, "up")
        yield Wire()
    finally:
        for end in ("a", "b"):
            subprocess.run(["ip", "netns", "delete", end], check=False)


def run(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout}{done.stderr}"
    return done.stdout


def round_trip() -> float:
    """Seconds to the peer and back, the median; 0 where it does not answer."""
    ping = Ping(PEER)
    try:
        return ping.ask(1.0).median
    finally:
        ping.close()
