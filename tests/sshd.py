"""A real sshd for tests, alone with its sessions: in PID and mount namespaces of its own, with accounts, sudo rules and
state folders that are not this machine's. When it is stopped, everything that was started over it is gone as well."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from lab_help import alive_in, eventually

ROOT = Path(__file__).resolve().parents[1]
PASSWORD = 'it\'s a "test" $HOME #1 \\'
NEEDED = ("/usr/sbin/sshd", "/usr/bin/sudo", "/usr/bin/ssh-keygen", "/usr/bin/unshare", "/usr/bin/openssl")
_MISSING = [each for each in NEEDED if not Path(each).exists()]
NOT_RUN = (
    "NOT RUN: an sshd of its own needs root" if os.geteuid() != 0 else f"NOT RUN: needs {_MISSING} (`make system`)"
)
needs_sshd = pytest.mark.skipif(os.geteuid() != 0 or bool(_MISSING), reason=NOT_RUN)

_SETUP = """
set -e
mount -t tmpfs tmpfs /run
mkdir -p -m 755 /run/sshd /run/home/root /run/home/tester
mount --bind "$1/home" /run/home/root
mount --bind "$1/tester" /run/home/tester
[ ! -e "$1/authorized" ] || install -m 644 "$1/authorized" /run/authorized
mount -t tmpfs tmpfs /var/lib
for each in passwd shadow group sudoers; do mount --bind "$1/etc/$each" "/etc/$each"; done
exec /usr/sbin/sshd -D -e -f "$1/sshd_config"
"""


def keygen(path: Path, *options: str, passphrase: str = "") -> Path:
    """A new key pair."""
    subprocess.run(
        ["ssh-keygen", "-q", *(options or ("-t", "ed25519")), "-N", passphrase, "-C", path.name, "-f", path],
        check=True,
        stdin=subprocess.DEVNULL,
    )
    return path


def free_port(address: str) -> int:
    with socket.socket() as sock:
        sock.bind((address, 0))
        return int(sock.getsockname()[1])


class Sshd:
    """One server.

    Args:
        folder: for its files; a new one.
        client: the public key that may log in.
        sudo: what the user ``tester`` may.
        env: variables of its sessions.
        settings: further lines of its configuration, which come first and so take precedence.
        before: what stands before its command, such as ``ip netns exec``.
    """

    def __init__(
        self,
        folder: Path,
        client: Path | None,
        *,
        address: str = "127.0.0.1",
        port: int = 0,
        sudo: str = "ALL=(ALL) ALL",
        env: Mapping[str, str] | None = None,
        settings: Sequence[str] = (),
        before: Sequence[str] = (),
    ) -> None:
        self.folder = folder
        self.address = address
        self.port = port or free_port(address)
        self.home = folder / "home"
        self.user_home = folder / "tester"
        self.log = folder / "sshd.log"
        for each in (folder / "etc", self.home, self.user_home):
            each.mkdir(parents=True)
        folder.chmod(0o755)
        self.key = keygen(folder / "host_key")
        shutil.chown(self.user_home, 12345, 12345)
        self._accounts(sudo)
        variables = {"LANG": "C.UTF-8", **(env or {})}
        if client is not None:
            shutil.copy(client, folder / "authorized")
        (folder / "sshd_config").write_text(
            "\n".join(
                [
                    *settings,
                    f"Port {self.port}",
                    f"ListenAddress {address}",
                    f"HostKey {self.key}",
                    f"PidFile {folder}/pid",
                    "AuthorizedKeysFile /run/authorized",
                    "StrictModes no",
                    "UsePAM no",
                    "PermitRootLogin yes",
                    "MaxStartups 200",
                    "MaxSessions 100",
                    "UseDNS no",
                    "PrintMotd no",
                    "SetEnv " + " ".join(f"{key}={value}" for key, value in variables.items()),
                    "",
                ]
            )
        )
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *before,
                    *("unshare", "--mount", "--propagation", "private"),
                    *("--pid", "--fork", "--mount-proc", "--kill-child"),
                    *("sh", "-c", _SETUP, "sh", str(folder)),
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        eventually(lambda: "Server listening" in self.log.read_text() or self.process.poll() is not None, "the sshd")
        assert self.process.poll() is None, self.log.read_text()

    def _accounts(self, sudo: str) -> None:
        etc = self.folder / "etc"
        secret = subprocess.run(
            ["openssl", "passwd", "-6", "-stdin"], input=PASSWORD.encode(), stdout=subprocess.PIPE, check=True
        ).stdout.decode()
        passwd = [line for line in Path("/etc/passwd").read_text().splitlines() if not line.startswith("root:")]
        passwd += ["root:x:0:0:root:/run/home/root:/bin/bash", "tester:x:12345:12345::/run/home/tester:/bin/bash"]
        shadow = [line for line in Path("/etc/shadow").read_text().splitlines() if not line.startswith("root:")]
        shadow += [f"{user}:{secret.strip()}:19000:0:99999:7:::" for user in ("root", "tester")]
        group = [*Path("/etc/group").read_text().splitlines(), "tester:x:12345:"]
        for name, lines, mode in (("passwd", passwd, 0o644), ("shadow", shadow, 0o600), ("group", group, 0o644)):
            (etc / name).write_text("\n".join(lines) + "\n")
            (etc / name).chmod(mode)
        rules = ["Defaults use_pty", "Defaults env_reset", "Defaults passwd_tries=3", "root ALL=(ALL) NOPASSWD: ALL"]
        (etc / "sudoers").write_text("\n".join([*rules, f"tester {sudo}" if sudo else "", ""]))
        (etc / "sudoers").chmod(0o440)

    def known(self, file: Path, key: Path | None = None) -> Path:
        """Write its host key down in a file of known hosts."""
        words = (key or self.key).with_suffix(".pub").read_text().split()
        name = self.address if self.port == 22 else f"[{self.address}]:{self.port}"
        with file.open("a") as out:
            out.write(f"{name} {words[0]} {words[1]}\n")
        return file

    @property
    def init(self) -> int:
        """The process that listens, by its id out here: the first of its PID namespace."""
        return int(Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()[0])

    def processes(self, mark: str = "") -> list[int]:
        """What runs in its PID namespace and has this in its command line, by ids out here."""
        found = []
        for pid in alive_in(Path(f"/proc/{self.init}/ns/pid").stat().st_ino):
            try:
                line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if mark in line:
                found.append(pid)
        return found

    def sessions(self) -> list[int]:
        """The processes of its connections."""
        return [pid for pid in self.processes("sshd: ") if pid != self.init]

    def signal_sessions(self, number: int) -> None:
        for pid in self.sessions():
            os.kill(pid, number)

    def inside(self, path: str) -> Path:
        """A path as its sessions see it."""
        return Path(f"/proc/{self.init}/root{path}")

    def logged(self, text: str) -> int:
        """How often it has logged this."""
        return self.log.read_text(errors="replace").count(text)

    def stop(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()
