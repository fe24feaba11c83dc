"""Two network namespaces of the virtual machine with a wire (veth) between them: two machines with one cable."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from lab_help import eventually

from injectors import kernel
from injectors._ping import Ping

HERE, PEER = "10.9.0.1", "10.9.0.2"
INTERFACE = "wire0"  # at either end
ROUNDS = 50  # of a ping-pong


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


def answered(two: Wire) -> bool:
    """Whether the peer answers."""
    with two.inside():
        return round_trip() > 0


@contextmanager
def soft_roce(two: Wire) -> Iterator[None]:
    """A Soft-RoCE device at either end of the wire."""
    try:
        for end in ("a", "b"):
            two.run(end, "rdma", "link", "add", f"rxe_{end}", "type", "rxe", "netdev", INTERFACE)
            run("rdma", "dev", "set", f"rxe_{end}", "netns", end)
        yield
    finally:
        for end in ("a", "b"):
            subprocess.run(["ip", "netns", "exec", end, "rdma", "link", "delete", f"rxe_{end}"], check=False)


def ping_pong(verbs: Wire) -> float:
    """Seconds to the peer and back by reliable connected queue pairs, on average."""
    # GID 1 is that of the IPv4 address.
    words = ["-g", "1", "-n", str(ROUNDS), "-s", "64", "-r", "8"]
    server = verbs.start("b", "ibv_rc_pingpong", "-d", "rxe_b", *words)
    try:
        eventually(lambda: ":4853 " in verbs.run("b", "cat", "/proc/net/tcp", "/proc/net/tcp6"), "it listens on 18515")
        said = verbs.run("a", "ibv_rc_pingpong", "-d", "rxe_a", *words, PEER)
        assert server.wait(60) == 0
    finally:
        server.kill()
        server.wait()
    found = re.search(r"= ([0-9.]+) usec/iter", said)
    assert found, said
    return float(found[1]) / 1e6
