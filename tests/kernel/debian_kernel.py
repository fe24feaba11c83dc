"""A newer Debian kernel, unpacked into a folder (nothing is installed), and the initramfs that boots it for tests."""

from __future__ import annotations

import lzma
import os
import re
import shutil
import stat
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

_SUITES = ("trixie", "trixie-backports")  # Soft-RoCE in network namespaces needs Linux 7.0
_KEYRING = "/usr/share/keyrings/debian-archive-keyring.gpg"
_PACKAGE = re.compile(r"linux-binary-([0-9.]+\+deb[0-9]+-amd64)", re.ASCII)
_PARTS = ("binary", "modules", "base")
# What mounts the root: the host's files over 9p, under a writable layer.
_AT_BOOT = ("virtio_pci", "9pnet_virtio", "9p", "overlay")

# The root is switched, not entered by chroot: the kernel itself runs /sbin/modprobe for what it finds missing.
_INIT = """\
#!/busybox sh
B=/busybox
fail() { echo "init: $1"; $B poweroff -f; }
$B mount -t proc proc /proc
$B mount -t sysfs sysfs /sys
$B mount -t devtmpfs dev /dev
while read -r module; do $B insmod "/modules/$module" || fail "no module $module"; done </modules/order
$B mount -t 9p -o trans=virtio,version=9p2000.L,ro,msize=512000,cache=loose root /lower || fail "no root"
$B mount -t tmpfs -o size=75% tmpfs /upper && $B mkdir /upper/files /upper/work
$B mount -t overlay -o lowerdir=/lower,upperdir=/upper/files,workdir=/upper/work overlay /root || fail "no overlay"
for word in $($B cat /proc/cmdline); do
  case $word in modules=*) modules=${word#modules=} ;; esac
done
for name in proc sys dev; do $B mount --move /$name /root/$name; done
$B mkdir -p /root/dev/pts /root/dev/shm /root/lib/modules /root/mnt/share
$B mount -t devpts devpts /root/dev/pts
$B mount -t tmpfs shm /root/dev/shm
$B mount -t tmpfs run /root/run && $B mkdir -p /root/run/netns /root/run/lock
$B mount -t debugfs debugfs /root/sys/kernel/debug
$B mount -t cgroup2 cgroup2 /root/sys/fs/cgroup
$B mount -o bind "/root$modules" /root/lib/modules || fail "no modules at $modules"
$B mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=none share /root/mnt/share || fail "no share"
exec $B switch_root -c /dev/console /root /bin/sh /mnt/share/start
"""


class Unavailable(Exception):
    """The kernel cannot be had here; the message says why."""


@dataclass(frozen=True)
class DebianKernel:
    """One unpacked kernel.

    Attributes:
        folder: where it lies; ``usr/lib/modules/VERSION`` below it holds the image and the modules.
    """

    folder: Path

    @classmethod
    def at(cls, cache: Path) -> DebianKernel:
        """The kernel in a cache folder, fetched into it where it is missing.

        Raises:
            Unavailable: it cannot be downloaded or unpacked.
        """
        there = sorted(cache.glob("linux-*"))
        if there:
            return cls(there[-1])
        cache.mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix="fetch-") as work:
            version = _fetch(Path(work))
            # Renamed when complete: what bears the name is whole.
            folder = cache / f"linux-{version}"
            (Path(work) / "files").rename(folder)
        return cls(folder)

    @property
    def release(self) -> Path:
        """The one folder of modules."""
        [release] = (self.folder / "usr/lib/modules").iterdir()
        return release

    @property
    def image(self) -> Path:
        """What qemu boots."""
        return self.release / "vmlinuz"

    def initramfs(self, path: Path) -> None:
        """Write the archive that mounts the root and starts /mnt/share/start in it.

        It takes the folder of modules from the kernel's command line: ``modules=/path``.
        """
        files: dict[str, tuple[int, bytes]] = {
            "init": (stat.S_IFREG | 0o755, _INIT.encode()),
            "busybox": (stat.S_IFREG | 0o755, Path("/bin/busybox").read_bytes()),
        }
        for name in ("proc", "sys", "dev", "lower", "upper", "root", "modules"):
            files[name] = (stat.S_IFDIR | 0o755, b"")
        order = self._in_order(_AT_BOOT)
        files["modules/order"] = (stat.S_IFREG | 0o644, "".join(f"{_bare(each)}\n" for each in order).encode())
        for each in order:
            packed = (self.release / each).read_bytes()
            files[f"modules/{_bare(each)}"] = (
                stat.S_IFREG | 0o644,
                lzma.decompress(packed) if each.endswith(".xz") else packed,
            )
        path.write_bytes(_newc(files))

    def _in_order(self, names: tuple[str, ...]) -> list[str]:
        """Files of modules, each after those that it needs; without what is built in."""
        needs: dict[str, list[str]] = {}
        for line in (self.release / "modules.dep").read_text().splitlines():
            path, _, rest = line.partition(":")
            needs[path] = rest.split()
        by_name = {Path(path).name.partition(".")[0].replace("-", "_"): path for path in needs}
        order: list[str] = []
        for path in (by_name[name] for name in names if name in by_name):
            order += [each for each in [*reversed(needs[path]), path] if each not in order]
        return order


def missing_programs() -> list[str]:
    """What this machine lacks to unpack and boot such a kernel."""
    programs = ("qemu-system-x86_64", "setpriv", "busybox", "modprobe", "depmod", "apt-get", "dpkg-deb")
    return [name for name in programs if shutil.which(name) is None]


def _fetch(work: Path) -> str:
    """Download and unpack the newest kernel into ``work/files``; its version.

    With an apt state of its own: the machine's own mirror, other suites, and /etc/apt stays as it is.
    """
    for name in ("lists/partial", "cache/archives/partial", "packages", "files"):
        (work / name).mkdir(parents=True)
    (work / "status").touch()
    mirror = _mirror()
    (work / "sources.list").write_text(
        "".join(f"deb [signed-by={_KEYRING}] {mirror} {suite} main\n" for suite in _SUITES)
    )
    settings = {
        "Dir::Etc::sourcelist": work / "sources.list",
        "Dir::Etc::sourceparts": "-",
        "Dir::State::lists": work / "lists",
        "Dir::State::status": work / "status",
        "Dir::Cache": work / "cache",
        "APT::Sandbox::User": "root",
    }
    config = work / "apt.conf"
    config.write_text("".join(f'{key} "{value}";\n' for key, value in settings.items()))
    _run("apt-get", "update", "-qq", config=config)
    tags = _PACKAGE.findall(_run("apt-cache", "pkgnames", "linux-binary-", config=config))
    if not tags:
        raise Unavailable(f"{' and '.join(_SUITES)} have no package linux-binary-*-amd64")
    tag = max(tags, key=lambda each: [int(part) for part in each.partition("+")[0].split(".")])
    packages = work / "packages"
    _run("apt-get", "download", "-qq", *(f"linux-{part}-{tag}" for part in _PARTS), config=config, cwd=packages)
    for package in packages.iterdir():
        _run("dpkg-deb", "-x", str(package), str(work / "files"))
    [release] = (work / "files/usr/lib/modules").iterdir()
    _run("depmod", "-b", str(work / "files/usr"), release.name)
    return release.name


def _mirror() -> str:
    """Where this machine has its Debian packages from."""
    told = _run("apt-get", "indextargets", "--format", "$(REPO_URI) $(RELEASE) $(COMPONENT)", "Created-By: Packages")
    for uri, release, component in (line.split() for line in told.splitlines() if len(line.split()) == 3):
        if component == "main" and release in ("bookworm", "trixie", "forky", "sid", "stable", "testing", "unstable"):
            return uri
    raise Unavailable("this is no Debian machine: apt knows of no mirror of it")


def _run(*command: str, config: Path | None = None, cwd: Path | None = None) -> str:
    environment = os.environ | ({"APT_CONFIG": str(config)} if config else {})
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=cwd, timeout=300, check=False)
    if done.returncode != 0:
        raise Unavailable(f"{' '.join(command[:2])} failed: {done.stderr.strip()[-500:]}")
    return done.stdout


def _bare(path: str) -> str:
    return Path(path).name.removesuffix(".xz")


def _newc(files: dict[str, tuple[int, bytes]]) -> bytes:
    """A cpio archive as the kernel reads it (its Documentation/driver-api/early-userspace/buffer-format.rst)."""
    archive = bytearray()
    entries = [*files.items(), ("TRAILER!!!", (0, b""))]
    for number, (name, (mode, content)) in enumerate(entries, start=1):
        # inode, mode, uid, gid, links, time, size, four device numbers, length of the name, checksum
        fields = (number, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0)
        archive += b"070701" + b"".join(b"%08x" % field for field in fields) + name.encode() + b"\0"
        archive += b"\0" * (-len(archive) % 4)
        archive += content
        archive += b"\0" * (-len(archive) % 4)
    return bytes(archive)
