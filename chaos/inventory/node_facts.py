"""Says what a node has: runs on the node itself, sent as an argument of its Python, and changes nothing.

It needs Python 3.9 and its standard library, no root and no program. It prints one line of JSON, after whatever a
login shell may have printed. Argument: the root of the file system to read, ``/`` where there is none.

Sources: the class and vendor numbers are those of the PCI ID database (https://pci-ids.ucw.cz): 0x03 display
controllers, 0x1200 processing accelerators; /sys files are in the kernel's Documentation/ABI/testing (sysfs-bus-pci,
sysfs-class-net, sysfs-class-infiniband).
"""

import fcntl
import glob
import json
import os
import re
import socket
import struct
import sys
from typing import Any, Dict, List, Optional, Set, Tuple

MARK = "chaos.facts/1"

# By vendor, what a display controller (03), and what a processing accelerator (12) is; no entry: none of them counts.
# A server's own picture comes from the likes of ASPEED and Matrox; Intel's class 0300 is a processor's own.
NOTHING: Tuple[str, Dict[str, str]] = ("", {})
ACCELERATORS = {
    "10de": ("nvidia", {"0300": "gpu", "0302": "gpu"}),
    "1002": ("amd", {"0300": "gpu", "0302": "gpu", "0380": "gpu", "1200": "gpu"}),
    "8086": ("intel", {"0302": "gpu", "0380": "gpu", "1200": "npu"}),
    "19e5": ("huawei", {"1200": "npu"}),
    "1da3": ("habana", {"1200": "npu"}),
}
PCI = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
SIOCGIFADDR = 0x8915  # linux/sockios.h


def text(*path: str) -> Optional[str]:
    """The first line of a small file; none where there is no such file, or it does not answer."""
    try:
        with open(os.path.join(*path), encoding="utf-8", errors="replace") as file:
            return file.readline(4096).strip() or None
    except (OSError, ValueError):
        return None


def names(*path: str) -> List[str]:
    try:
        return sorted(os.listdir(os.path.join(*path)))
    except OSError:
        return []


def hexadecimal(value: Optional[str]) -> str:
    return value[2:] if value and value.startswith("0x") else value or ""


def accelerators(root: str) -> List[Dict[str, Any]]:
    found = []
    for address in names(root, "sys/bus/pci/devices"):
        folder = os.path.join(root, "sys/bus/pci/devices", address)
        vendor, classes = ACCELERATORS.get(hexadecimal(text(folder, "vendor")), NOTHING)
        kind = classes.get(hexadecimal(text(folder, "class"))[:4])
        if kind is None or os.path.lexists(os.path.join(folder, "physfn")):  # a virtual function is a part of another
            continue
        device = hexadecimal(text(folder, "device"))
        found.append({"kind": kind, "pci": address, "vendor": vendor, "device": device, "model": model(root, address)})
    return found


def model(root: str, address: str) -> Optional[str]:
    """The model as NVIDIA's driver calls it; other drivers tell none without their own programs."""
    try:
        path = os.path.join(root, "proc/driver/nvidia/gpus", address, "information")
        with open(path, encoding="utf-8", errors="replace") as file:
            for line in file:
                key, _, value = line.partition(":")
                if key == "Model":
                    return value.strip() or None
    except OSError:
        pass
    return None


def interfaces(root: str) -> Tuple[List[Dict[str, Any]], str]:
    """The interfaces that are hardware, and the bonds over them."""
    base = os.path.join(root, "sys/class/net")
    rdma = {}
    for device in names(root, "sys/class/infiniband"):
        for name in names(root, "sys/class/infiniband", device, "device/net"):
            rdma[name] = device
    control, why = controlling(root)
    found = []
    for name in names(base):
        folder = os.path.join(base, name)
        device = os.path.join(folder, "device")
        if not os.path.lexists(device) and not os.path.isdir(os.path.join(folder, "bonding")):
            continue
        if os.path.lexists(os.path.join(device, "physfn")):
            continue
        place = os.path.realpath(device)
        above = [
            os.path.basename(place),
            os.path.basename(os.path.dirname(place)),
        ]  # a virtio device is below its PCI one
        driver = os.path.join(device, "driver")
        speed = text(folder, "speed")
        found.append(
            {
                "name": name,
                "role": "control" if control is None or name in control else "data",
                "pci": next(filter(PCI.fullmatch, above), None),
                "driver": os.path.basename(os.path.realpath(driver)) if os.path.exists(driver) else None,
                "rdma": rdma.get(name),
                "state": text(folder, "operstate"),
                "mbit": int(speed) if speed and speed.isdigit() else None,  # -1 where there is no link
            }
        )
    return found, why


def controlling(root: str) -> Tuple[Optional[Set[str]], str]:
    """The interfaces that carry what reaches this node, with those below them, and how that is known."""
    ours = os.environ.get("SSH_CONNECTION", "").split()
    known = names(root, "sys/class/net")
    carrying = [name for name in known if len(ours) == 4 and ours[2] in addresses(root, name)]
    why = "it carries this connection"
    if not carrying:
        carrying = [name for name in default_routes(root) if name in known]
        why = "it has the default route"
    if not carrying:
        return None, "what reaches the node is not known"
    seen: Set[str] = set()
    while carrying:
        name = carrying.pop()
        if name not in seen:
            seen.add(name)
            lower = glob.glob(os.path.join(glob.escape(os.path.join(root, "sys/class/net", name)), "lower_*"))
            carrying += [os.path.basename(path)[len("lower_") :] for path in lower]
    return seen, why


def addresses(root: str, name: str) -> Set[str]:
    """An interface's addresses: the kernel's own, whatever the root."""
    found = set()
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asking:
            request = struct.pack("256s", name.encode()[:15])
            found.add(socket.inet_ntoa(fcntl.ioctl(asking.fileno(), SIOCGIFADDR, request)[20:24]))
    except OSError:
        pass
    try:
        with open(os.path.join(root, "proc/net/if_inet6"), encoding="ascii", errors="replace") as file:
            for line in file:
                parts = line.split()
                if len(parts) == 6 and parts[5] == name:
                    found.add(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(parts[0])))
    except (OSError, ValueError):
        pass
    return found


def default_routes(root: str) -> List[str]:
    found = []
    try:
        with open(os.path.join(root, "proc/net/route"), encoding="ascii", errors="replace") as file:
            for line in file:
                parts = line.split()
                if len(parts) > 7 and parts[1] == parts[7] == "00000000":
                    found.append(parts[0])
    except OSError:
        pass
    try:
        with open(os.path.join(root, "proc/net/ipv6_route"), encoding="ascii", errors="replace") as file:
            for line in file:
                parts = line.split()
                if len(parts) == 10 and parts[0] == "0" * 32 and parts[1] == "00":
                    found.append(parts[9])
    except OSError:
        pass
    return [name for name in found if name != "lo"]


def main(root: str = "/") -> None:
    kernel = os.uname()
    nics, why = interfaces(root)
    print(
        json.dumps(
            {
                "schema": MARK,
                "hostname": kernel.nodename,
                "kernel": kernel.release,
                "machine": kernel.machine,
                "python": ".".join(map(str, sys.version_info[:3])),
                "uid": os.geteuid(),
                "accelerators": accelerators(root),
                "nics": nics,
                "control": why,
            }
        )
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
