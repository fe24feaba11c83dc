"""A virtual machine with a kernel of its own over a copy-on-write view of this machine's files, in software emulation.

Nothing that it writes lasts, but for what it writes to /mnt/share. It has one processor, a PCIe NVMe disk and two
PCIe network cards that are wired to each other (e1000e and virtio), each below a root port of its own.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from debian_kernel import DebianKernel

SHARE = "/mnt/share"  # inside
VARIABLE = "CHAOS_TEST_VM"  # set inside, to SHARE

_QEMU = [
    *("qemu-system-x86_64", "-accel", "tcg,thread=multi,tb-size=512", "-M", "q35", "-cpu", "max,la57=off"),
    # One processor: in emulation a second one may run into code that the kernel is just patching, and crash.
    *("-smp", "1", "-m", "1536", "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
    # Otherwise ACPI owns the ports below which devices come and go, and there is no reset of a bus.
    *("-global", "ICH9-LPC.acpi-pci-hotplug-with-bridge-support=off"),
]
_KERNEL = (
    "console=ttyS0 quiet loglevel=4 mitigations=off nokaslr tsc=reliable no_timer_check audit=0 panic=-1 net.ifnames=0"
)
_DEVICES = [
    *("-device", "pcie-root-port,id=port1,bus=pcie.0,chassis=1,slot=1"),
    *("-blockdev", "driver=null-co,node-name=disk,size=16777216,read-zeroes=on"),
    *("-device", "nvme,serial=test,drive=disk,bus=port1"),
    *("-device", "pcie-root-port,id=port2,bus=pcie.0,chassis=2,slot=2"),
    *("-netdev", "hubport,id=wire1,hubid=1", "-device", "e1000e,netdev=wire1,bus=port2,romfile="),
    *("-device", "pcie-root-port,id=port3,bus=pcie.0,chassis=3,slot=3"),
    *("-netdev", "hubport,id=wire2,hubid=1", "-device", "virtio-net-pci,netdev=wire2,bus=port3,romfile="),
]
# Soft-RoCE devices can be given to namespaces only if they are exclusive from the start, before there is a second one.
_START = """\
export PATH={path} HOME=/root TERM=dumb LANG=C.UTF-8 {variable}={share}
/bin/busybox ip link set lo up
modprobe ib_core && rdma system set netns exclusive
cd {folder} && setsid -w {command} </dev/null >{share}/output 2>&1
echo $? >{share}/status
sync
/bin/busybox poweroff -f
"""


@dataclass(frozen=True)
class Ended:
    """How a command in the virtual machine ended.

    Attributes:
        status: its exit status; ``None`` where it has said none: the machine crashed, or ran out of time.
        output: what it wrote.
        console: what the kernel wrote, and how the machine was ended.
    """

    status: int | None
    output: str
    console: str

    def __str__(self) -> str:
        """The end of everything, for people."""
        how = "without an exit status" if self.status is None else f"with {self.status}"
        tails = [f"{name}:\n{_tail(text)}" for name, text in (("output", self.output), ("console", self.console))]
        return "\n".join([f"the command in the virtual machine ended {how}", *tails])


def run(kernel: DebianKernel, command: list[str], *, folder: Path, share: Path, limit: float) -> Ended:
    """Boot, run a command in a folder of this machine as root, power off.

    Args:
        share: a folder that is /mnt/share inside.
        limit: seconds of wall-clock time after which the machine is killed.
    """
    initramfs = share / "initramfs"
    kernel.initramfs(initramfs)
    path = f"{Path(sys.executable).parent}:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    (share / "start").write_text(
        _START.format(
            path=shlex.quote(path),
            variable=VARIABLE,
            share=SHARE,
            folder=shlex.quote(str(folder)),
            command=shlex.join(command),
        )
    )
    # Killed by the kernel with the process that started it, however that ends.
    qemu = ["setpriv", "--pdeathsig", "KILL", *_QEMU, *_DEVICES, "-serial", f"file:{share / 'console'}"]
    qemu += ["-kernel", str(kernel.image), "-initrd", str(initramfs)]
    qemu += ["-append", f"{_KERNEL} modules={kernel.release.parent}"]
    for name, place, rights in (("root", "/", ",readonly=on,multidevs=remap"), ("share", str(share), "")):
        qemu += ["-fsdev", f"local,id={name},path={place},security_model=none{rights}"]
        qemu += ["-device", f"virtio-9p-pci,fsdev={name},mount_tag={name}"]
    try:
        done = subprocess.run(qemu, stdin=subprocess.DEVNULL, capture_output=True, timeout=limit, check=False)
        said = done.stderr.decode(errors="replace")
    except subprocess.TimeoutExpired:
        said = f"killed after {limit:.0f} s"
    status = _read(share / "status").strip()
    return Ended(int(status) if status else None, _read(share / "output"), _read(share / "console") + said)


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""


def _tail(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.splitlines()[-40:])
