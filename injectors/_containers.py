"""Finding a container by what a document says of it, and looking at it through the engine and through the kernel."""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import socket
import struct
from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional, Set

from injectors import kernel
from injectors._engine import SOCKET
from injectors.contract import InjectorError

_ID = re.compile(r"[0-9a-f]{64}")
_ID_START = re.compile(r"[0-9a-f]{12,64}")  # 12 characters are what `docker ps` shows
_HARDWARE_ADDRESS = 0x8927  # SIOCGIFHWADDR
_ENDED = ("created", "exited", "dead", "removing")  # states of a container that does not run

WHICH = "its exact name, its full id, or 12 and more of the id's characters"
LABEL = "instead: a label, `key` or `key=value`, that one running container bears"
SOCKET_HELP = "the Unix socket of the node's container engine"


def one_of_both(container: Optional[str], label: Optional[str]) -> None:
    if (container is None) == (label is None):
        raise ValueError(f"found {'neither' if container is None else 'both'} of `container` and `label`; write one")
    if not (container or label):
        raise ValueError("found nothing in it; write the container's name, its id, or a label of it")


@dataclass(frozen=True)
class Which:
    """Which container, and whose."""

    container: Optional[str] = field(default=None, metadata={"help": WHICH})
    label: Optional[str] = field(default=None, metadata={"help": LABEL})
    socket: str = field(default=SOCKET, metadata={"help": SOCKET_HELP})

    def __post_init__(self) -> None:
        one_of_both(self.container, self.label)


def names(listed: Dict[str, Any]) -> List[str]:
    """A container's own names; `/other/alias` is what another one calls it."""
    return [name[1:] for name in listed.get("Names") or [] if name.count("/") == 1]


def listing(containers: List[Dict[str, Any]]) -> str:
    return ", ".join(f"{(names(each) or ['?'])[0]} ({each['Id'][:12]}, {each['State']})" for each in containers)


def choose(containers: List[Dict[str, Any]], container: Optional[str], label: Optional[str]) -> str:
    """The id of the one container that is meant.

    Args:
        containers: all of the engine's, as it lists them.

    Raises:
        InjectorError: it is none, or several: they are named.
    """
    if label is not None:
        key, equals, value = label.partition("=")
        bearing = [each for each in containers if key in (each.get("Labels") or {})]
        if equals:
            bearing = [each for each in bearing if each["Labels"][key] == value]
        found = [each for each in bearing if each["State"] not in _ENDED] or bearing  # not those of former jobs
        if not found:
            raise InjectorError(f"no container has the label {label!r}")
        if len(found) > 1:
            several = f"{len(found)} containers have the label {label!r}: {listing(found)}"
            raise InjectorError(f"{several}; aim at one by its name or id")
        return str(found[0]["Id"])
    assert container is not None
    found = [each for each in containers if each["Id"] == container or container in names(each)]
    if not found and _ID_START.fullmatch(container):
        found = [each for each in containers if each["Id"].startswith(container)]
    if not found:
        running = [each for each in containers if each["State"] == "running"]
        there = f"running are {listing(running)}" if running else "none is running"
        raise InjectorError(f"there is no container {container!r} (exact name, or 12 and more of the id); {there}")
    if len(found) > 1:
        raise InjectorError(f"{container!r} is the name or the id of {len(found)} containers: {listing(found)}")
    return str(found[0]["Id"])


def own_ids() -> Set[str]:
    """Ids, or their first 12 characters, of the containers that this process may run in."""
    found: Set[str] = set()
    with open("/proc/self/cgroup", encoding="utf-8") as file:
        found.update(_ID.findall(file.read()))
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        for line in file:
            # Engines lay these files of a container's folder over its own; other mounts tell of other containers.
            root, point = line.split()[3:5]
            if point in ("/etc/hostname", "/etc/hosts", "/etc/resolv.conf"):
                found.update(_ID.findall(root))
    name = socket.gethostname()
    if re.fullmatch(r"[0-9a-f]{12}", name):
        found.add(name)
    return found


def belongs(pid: int, container: str) -> bool:
    """Whether a process is one of a container's: its control group is named after that."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8") as file:
            return container in file.read()
    except (FileNotFoundError, ProcessLookupError):
        return False


def processes(container: str) -> List[int]:
    """All living processes of a container."""
    found = []
    for pid in kernel.processes():
        if belongs(pid, container):
            fields = kernel.stat_fields(pid)
            if fields is not None and fields[0] not in "ZX":
                found.append(pid)
    return found


def cpu_ticks(pids: List[int]) -> int:
    """User and system time of these processes, in clock ticks."""
    return sum(int(fields[11]) + int(fields[12]) for fields in map(kernel.stat_fields, pids) if fields is not None)


def frozen(pid: int) -> Optional[bool]:
    """Whether a freezer (cgroup v1 or v2) holds a process; ``None`` where neither can be seen."""
    seen: List[bool] = []
    for folder in _freezers(pid):
        for name, marker in (("freezer.state", "FROZEN"), ("cgroup.events", "frozen 1")):
            with contextlib.suppress(OSError), open(os.path.join(folder, name), encoding="utf-8") as file:
                seen.append(marker in file.read().splitlines())
    return any(seen) if seen else None


def _freezers(pid: int) -> List[str]:
    """The folders of a process's control groups that can freeze it."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="utf-8") as file:
            groups = [line.rstrip("\n").split(":", 2) for line in file]
    except (FileNotFoundError, ProcessLookupError):
        return []
    paths = {}
    for number, controllers, path in groups:
        if number == "0":
            paths["cgroup2"] = path
        elif "freezer" in controllers.split(","):
            paths["cgroup"] = path
    folders = []
    with open("/proc/self/mountinfo", encoding="utf-8") as file:
        for line in file:
            mount, _, source = line.partition(" - ")
            root, point = mount.split()[3:5]
            kind, _, options = source.split()[:3]
            if kind in paths and (kind == "cgroup2" or "freezer" in options.split(",")):
                within = os.path.relpath(paths[kind], root)
                if not within.startswith(".."):
                    folders.append(os.path.join(point, within))
    return folders


def interfaces(pid: int) -> Dict[str, str]:
    """The interfaces in a process's network namespace: names by hardware address.

    Raises:
        InjectorError: it has gone.
    """
    network = kernel.open_network(f"/proc/{pid}/ns/net")
    found = {}
    try:
        with kernel.inside(network), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            for _, name in socket.if_nameindex():
                with contextlib.suppress(OSError):  # it goes at this moment
                    answer = fcntl.ioctl(sock, _HARDWARE_ADDRESS, struct.pack("256s", name.encode()))
                    found[":".join(f"{byte:02x}" for byte in answer[18:24])] = name
    finally:
        os.close(network)
    return found


@dataclass(frozen=True)
class Container:
    """A container as the engine describes it now."""

    there: Dict[str, Any]

    @property
    def id(self) -> str:
        """Its full id."""
        return str(self.there["Id"])

    @property
    def name(self) -> str:
        """Its name, without the slash."""
        return str(self.there["Name"]).lstrip("/")

    @property
    def words(self) -> str:
        """Which one it is, for messages."""
        return f"container {self.name} ({self.id[:12]})"

    @property
    def state(self) -> Dict[str, Any]:
        """What the engine calls `State`."""
        return dict(self.there["State"])

    @property
    def policy(self) -> str:
        """The restart policy: ``no``, ``always``..."""
        return self.there["HostConfig"].get("RestartPolicy", {}).get("Name") or "no"

    @property
    def running(self) -> bool:
        """Whether its main process runs."""
        return bool(self.state["Running"]) and not self.state.get("Restarting")

    @property
    def networks(self) -> Dict[str, Dict[str, Any]]:
        """What it is connected to, by the network's name."""
        return dict(self.there["NetworkSettings"].get("Networks") or {})

    def on(self, network: str) -> Optional[Dict[str, Any]]:
        """Its end of a network, by the network's id."""
        return next((each for each in self.networks.values() if each["NetworkID"] == network), None)


def life(container: Container) -> str:
    """What the engine says of it, in words."""
    state = container.state
    if state["Running"]:
        return f"{state['Status']}, process {state['Pid']}"
    return f"{state['Status']} with exit code {state['ExitCode']}"
