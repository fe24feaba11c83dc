"""What a node's kernel, tools and privileges allow, each with the one thing that would enable what is missing.

What no file tells is tried, in a network namespace made for it and left again; the kernel may load a module of its own
for that, and nothing else stays. The trials run in a process of their own, since they change that process.
"""

from __future__ import annotations

import ctypes
import functools
import json
import os
import shutil
import struct
import subprocess
import sys
from typing import Any, Callable, Dict, List, Optional

_CLONE_NEWNET, _CLONE_NEWUSER = 0x40000000, 0x10000000
_PATIENCE = 20.0  # seconds for all trials
_TIME_ERROR = 5  # adjtimex(2): the clock is not synchronised
_TIMEX_BYTES = 208
_QDISCS = ("netem", "tbf", "prio", "ingress")
_LINKS = ("ifb", "veth", "bridge")
_TOOLS = (
    ("tc", "iproute2: to look at what was set; faults need no program"),
    ("nft", "nftables: to look at what was set; faults need no program"),
    ("ipmitool", "ipmitool: to look at a BMC; faults need no program"),
    ("ethtool", "ethtool"),
    ("scontrol", "slurm-client, on a node of a Slurm cluster"),
    ("docker", "a Docker engine, for container.*"),
    ("nvidia-smi", "NVIDIA's driver, on a node with its GPUs"),
    ("npu-smi", "Ascend's driver, on a node with its NPUs"),
    ("mlxlink", "mft, on a node with NVIDIA's NICs"),
    ("hccn_tool", "Ascend's toolkit, on a node with its NPUs"),
)
Check = Dict[str, Any]  # name, ok, found, remedy


def examine() -> List[Check]:
    """All checks of this node: ``name``, ``ok``, ``found`` and, where it is not ok, ``remedy``."""
    tried = _trials()
    found = [_root(), _fifo(tried), _modules(tried)]
    found += [_kernel(kind, "qdisc", tried, f"sch_{kind}") for kind in _QDISCS]
    found += [_kernel(kind, "interface", tried, kind) for kind in _LINKS]
    found += [_kernel("nftables", "", tried, "nf_tables")]
    found += [_cgroups(), _pci(), _rdma(), _ipmi(), _clock()]
    return found + [_tool(name, remedy) for name, remedy in _TOOLS]


def _check(name: str, ok: bool, found: str, remedy: Optional[str] = None) -> Check:
    return {"name": name, "ok": ok, "found": found, "remedy": None if ok else remedy}


def _root() -> Check:
    uid = os.geteuid()
    found = "root" if uid == 0 else f"user {uid}"
    return _check("privileges", uid == 0, found, "run as root, or say in the inventory how to `become` root")


def _fifo(tried: Dict[str, str]) -> Check:
    error = tried.get("SCHED_FIFO", "it was not tried")
    remedy = "run as root, with CAP_SYS_NICE: without it a fault starts a little less exactly on a busy machine"
    return _check("real-time scheduling", not error, error or "SCHED_FIFO", remedy)


def _modules(tried: Dict[str, str]) -> Check:
    folder = f"/lib/modules/{os.uname().release}"
    there = os.path.isdir(folder)
    error = tried.get("namespace", "")
    if error:
        return _check("trials", False, error, "run as root: what the kernel offers cannot be tried otherwise")
    return _check("kernel modules", True, folder if there else "none: this kernel has what is built in")


def _kernel(kind: str, what: str, tried: Dict[str, str], module: str) -> Check:
    error = tried.get(kind, "it was not tried")
    release = os.uname().release
    if os.path.isdir(f"/lib/modules/{release}"):
        remedy = f"modprobe {module}; if there is none, the package with this kernel's extra modules"
    else:
        remedy = f"a kernel that has {module} (this one, {release}, loads no modules)"
    return _check(f"{kind} {what}".strip(), not error, error or "works", remedy)


def _cgroups() -> Check:
    controllers = []
    with open("/proc/mounts", encoding="utf-8") as file:
        for line in file:
            _, mount, kind, options = line.split()[:4]
            if kind == "cgroup":
                known = {"cpu", "memory", "blkio", "freezer"} & set(options.split(","))
                controllers += [f"{name} (v1)" for name in sorted(known)]
            if kind == "cgroup2":
                try:
                    with open(os.path.join(mount, "cgroup.controllers"), encoding="utf-8") as listed:
                        controllers += [f"{name} (v2)" for name in listed.read().split()]
                except OSError:
                    continue
    ok = {"cpu", "memory"} <= {each.split()[0] for each in controllers}
    remedy = "mount the cpu and memory controllers (cgroup v1 or v2), for process.limit"
    return _check("cgroup controllers", ok, ", ".join(controllers) or "none", remedy)


def _listed(folder: str) -> List[str]:
    try:
        return sorted(os.listdir(folder))
    except OSError:
        return []


def _pci() -> Check:
    found = _listed("/sys/bus/pci/devices")
    remedy = "a machine with a PCI bus: pcie.* and driver.* have nothing to act on here"
    return _check("PCI", bool(found), f"{len(found)} devices" if found else "no bus", remedy)


def _rdma() -> Check:
    found = _listed("/sys/class/infiniband")
    remedy = "an RDMA NIC, or Soft-RoCE: modprobe rdma_rxe; rdma link add rxe0 type rxe netdev eth0"
    return _check("RDMA", bool(found), ", ".join(found) or "no device", remedy)


def _ipmi() -> Check:
    found = [name for name in ("/dev/ipmi0", "/dev/ipmi/0", "/dev/ipmidev/0") if os.path.exists(name)]
    remedy = "modprobe -a ipmi_si ipmi_devintf on a node with a BMC; power faults go to the BMC over the network"
    return _check("IPMI from inside", bool(found), ", ".join(found) or "no device", remedy)


def _clock() -> Check:
    """Whether the wall clock is synchronised: it orders logs, and no fault depends on it."""
    timex = ctypes.create_string_buffer(_TIMEX_BYTES)
    state = ctypes.CDLL(None, use_errno=True).adjtimex(timex)
    if state < 0:
        return _check("wall clock", False, os.strerror(ctypes.get_errno()), "a time service such as chrony")
    (error_us,) = struct.unpack_from("=q", timex, 24)  # maxerror
    ok = state != _TIME_ERROR
    found = f"synchronised within {error_us / 1000:.0f} ms" if ok else "not synchronised"
    return _check("wall clock", ok, found, "a time service such as chrony; faults themselves use the monotonic clock")


def _tool(name: str, remedy: str) -> Check:
    path = shutil.which(name)
    return _check(f"tool {name}", path is not None, path or "not there", remedy)


def _trials() -> Dict[str, str]:
    """What each trial said; empty where it worked."""
    try:
        told = subprocess.run(
            [sys.executable, "-S", "-c", "from chaos.agent import examine; examine.trials()"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=_PATIENCE,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        )
        found: Dict[str, str] = json.loads(told.stdout)
    except (OSError, ValueError, subprocess.TimeoutExpired) as error:
        return {"namespace": f"the trials broke down: {error}"}
    return found


def trials() -> None:
    """Try everything, in this process, and print what came of it."""
    found: Dict[str, str] = {}

    def attempt(name: str, act: Callable[[], object]) -> None:
        try:
            act()
            found[name] = ""
        except Exception as error:  # noqa: BLE001 - whatever the library says, it did not work
            code = getattr(error, "code", None)
            found[name] = os.strerror(code) if isinstance(code, int) and code > 0 else str(error) or repr(error)

    attempt("SCHED_FIFO", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)))
    attempt("namespace", _enter)
    if not found["namespace"]:
        _try_network(attempt)
    print(json.dumps(found))


def _enter() -> None:
    """A network namespace of our own."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(_CLONE_NEWNET | (0 if os.geteuid() == 0 else _CLONE_NEWUSER)) != 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def _try_network(attempt: Callable[[str, Callable[[], object]], None]) -> None:
    from pyroute2 import IPRoute  # noqa: PLC0415 - inside the namespace: it opens its sockets here
    from pyroute2.nftables.main import NFTables  # noqa: PLC0415

    settings: Dict[str, Dict[str, Any]] = {
        "netem": {"delay": 1000},
        "tbf": {"rate": 1000000, "burst": 10000, "latency": 100000},
    }

    with IPRoute() as ip:
        index = ip.link_lookup(ifname="lo")[0]

        def add_link(kind: str) -> None:
            ip.link("add", ifname=f"try-{kind}", kind=kind)

        def add_qdisc(kind: str) -> None:
            if kind == "ingress":  # it has a place of its own
                ip.tc("add", kind, index, handle=0xFFFF0000)
                return
            ip.tc("add", kind, index, root=True, handle=0x10000, **settings.get(kind, {}))
            ip.tc("del", index=index, root=True, handle=0x10000)

        for kind in _LINKS:
            attempt(kind, functools.partial(add_link, kind))
        for kind in _QDISCS:
            attempt(kind, functools.partial(add_qdisc, kind))

    def add_table() -> None:
        with NFTables(nfgen_family=1) as nft:
            nft.table("add", name="chaos_trial")

    attempt("nftables", add_table)
