"""A Docker engine of the tests' own: its data in a folder, its networks in namespaces that end with it.

``Engine`` runs dockerd as a child of this process. Nothing of the machine's own engine is used, and nothing is pulled:
the images are a busybox, and a root without anything into which this machine's Python is mounted.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import docker
import pytest
from lab_help import eventually

from injectors import kernel

BUSYBOX, PYTHON = "chaos-test/busybox:1", "chaos-test/python:1"
SLEEP = ("/bin/sh", "-c", "trap 'exit 0' TERM; echo ready; while true; do sleep 1000 & wait $!; done")
INSIDE_PYTHON = f"{sys.base_prefix}/bin/python3"  # of the Python image
_SYSTEM = ("bin", "lib", "lib64", "sbin")  # what a root has beside /usr
_PROGRAMS = ("dockerd", "containerd", "runc", "iptables", "busybox", "unshare", "nsenter")
_END_PATIENCE = 30.0


def why_not() -> str | None:
    """Why no engine can be started here; ``None`` where one can."""
    if os.geteuid() != 0:
        return "NOT RUN: a Docker engine needs root"
    missing = [program for program in _PROGRAMS if shutil.which(program) is None]
    if missing:
        return f"NOT RUN: a Docker engine needs {', '.join(missing)} (make system)"
    return None


class Engine:
    """A running engine.

    Args:
        folder: for its data, its socket and its log; short, since a Unix socket's path has 107 bytes.
        options: further arguments of dockerd.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.socket = str(folder / "docker.sock")
        self.url = f"unix://{self.socket}"
        self._cgroup = f"chaos-test-{uuid.uuid4().hex[:8]}"
        self._options = options
        self._api: docker.APIClient | None = None
        # The namespaces outlive a dockerd that is killed: whatever it has mounted or bridged ends with this process.
        self._holder = subprocess.Popen(
            [
                *("unshare", "--net", "--mount", "--propagation", "private"),
                *("/bin/sh", "-c", "ip link set lo up && echo ready && exec cat"),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._holder.stdout is not None
        self._process: subprocess.Popen[bytes] | None = None
        try:
            assert self._holder.stdout.readline() == b"ready\n", "no namespaces for the engine"
            self._mounts = Path(f"/proc/{self._holder.pid}/ns/mnt").stat().st_ino
            self.start()
            self._import(BUSYBOX, _busybox())
            self._import(PYTHON, _bare())
        except BaseException:
            self.close()
            raise

    def start(self) -> None:
        """Start dockerd, and wait until it answers."""
        Path(self.socket).unlink(missing_ok=True)
        self.folder.joinpath("pid").unlink(missing_ok=True)
        with (self.folder / "dockerd.log").open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *("nsenter", f"--net=/proc/{self._holder.pid}/ns/net", f"--mount=/proc/{self._holder.pid}/ns/mnt"),
                    *("dockerd", "--data-root", str(self.folder / "data"), "--exec-root", str(self.folder / "exec")),
                    *("-H", self.url, "-p", str(self.folder / "pid"), "--cgroup-parent", f"/{self._cgroup}"),
                    *self._options,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )

        def answers() -> bool:
            assert self._process is not None
            if self._process.poll() is not None:
                raise AssertionError(f"dockerd ended:\n{self.log()}")
            try:
                self._api = docker.APIClient(self.url, version="auto", timeout=60)
                return bool(self._api.ping())
            except docker.errors.DockerException:
                return False

        eventually(answers, "the engine's answer")

    def log(self) -> str:
        """The end of what dockerd has said."""
        return (self.folder / "dockerd.log").read_text(encoding="utf-8", errors="replace")[-3000:]

    @property
    def api(self) -> docker.APIClient:
        """The engine seen by the tests, apart from our own client."""
        assert self._api is not None
        return self._api

    def end(self, number: int) -> None:
        """Send dockerd a signal, and wait for its end: SIGTERM (an orderly end) or SIGKILL (a crash)."""
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait(_END_PATIENCE)
        # Its containerd dies with it, but stays a zombie where nobody reaps, which the next dockerd takes for alive.
        note = self.folder / "exec/containerd/containerd.pid"
        if note.exists():
            pid = int(note.read_text(encoding="ascii"))
            eventually(lambda: (kernel.stat_fields(pid) or "Z")[0] == "Z", "the end of containerd")
            note.unlink()

    def close(self) -> None:
        """End everything: containers, engine, what an engine that was killed has left, and the namespaces."""
        process = self._process
        if process is not None and process.poll() is None:
            with contextlib.suppress(docker.errors.DockerException, OSError):
                for each in self.api.containers(all=True):
                    with contextlib.suppress(docker.errors.APIError):
                        self.api.remove_container(each["Id"], force=True)
            process.terminate()
            try:
                process.wait(_END_PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._kill_what_is_left()
        assert self._holder.stdin is not None and self._holder.stdout is not None
        self._holder.stdin.close()
        self._holder.wait()
        self._holder.stdout.close()
        for each in Path("/sys/fs/cgroup").glob(f"*/{self._cgroup}"):
            for inner in [*each.glob("*"), each]:
                with contextlib.suppress(OSError):
                    inner.rmdir()
        shutil.rmtree(self.folder / "data", ignore_errors=True)
        shutil.rmtree(self.folder / "exec", ignore_errors=True)

    def _kill_what_is_left(self) -> None:
        """Shims that outlived a killed dockerd, in its mount namespace, and the containers that they kept."""
        for path in Path("/proc").iterdir():
            if not path.name.isdigit() or int(path.name) == self._holder.pid:
                continue
            with contextlib.suppress(OSError):
                inside = self._cgroup in (path / "cgroup").read_text(encoding="utf-8")
                if inside or (path / "ns/mnt").stat().st_ino == self._mounts:
                    os.kill(int(path.name), signal.SIGKILL)

    # -- images and containers ---------------------------------------------------------------------------------------

    def _import(self, name: str, archive: bytes) -> None:
        repository, _, tag = name.partition(":")
        if not self.api.images(name):
            self.api.import_image_from_data(archive, repository=repository, tag=tag)

    def run(
        self, name: str, *command: str, image: str = BUSYBOX, host: dict[str, Any] | None = None, **config: Any
    ) -> str:
        """Create and start a container. Returns its id.

        Args:
            command: by default one that sleeps, and ends at SIGTERM.
            host: arguments of ``create_host_config``.
            config: arguments of ``create_container``.
        """
        host = dict(host or {})
        if image == PYTHON:
            mounted = {f"/{name}" for name in _SYSTEM if not Path("/", name).is_symlink()} | {"/usr", sys.base_prefix}
            host["binds"] = [*host.get("binds", []), *(f"{path}:{path}:ro" for path in sorted(mounted))]
            command = command or (INSIDE_PYTHON, "-c", "import signal; signal.pause()")
        made = self.api.create_container(
            image, list(command or SLEEP), name=name, host_config=self.api.create_host_config(**host), **config
        )
        self.api.start(made["Id"])
        return str(made["Id"])

    def ready(self, container: str) -> None:
        """Wait until a container has said so, whose handlers are in place then."""
        eventually(lambda: b"ready" in self.api.logs(container), f"a word of {container}")

    def state(self, container: str) -> dict[str, Any]:
        """``State`` of a container as the engine tells it."""
        return dict(self.api.inspect_container(container)["State"])

    def remove_all(self) -> None:
        """Remove all containers, and the networks that a test has made."""
        for each in self.api.containers(all=True):
            with contextlib.suppress(docker.errors.NotFound):
                self.api.remove_container(each["Id"], force=True)
        for each in self.api.networks():
            if each["Name"] not in ("bridge", "host", "none"):
                self.api.remove_network(each["Id"])


def _archive(files: dict[str, bytes], links: dict[str, str], folders: tuple[str, ...]) -> bytes:
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w") as archive:
        for name in folders:
            info = tarfile.TarInfo(name)
            info.type, info.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            archive.addfile(info)
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(data), 0o755
            archive.addfile(info, io.BytesIO(data))
        for name, to in links.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, to
            archive.addfile(info)
    return raw.getvalue()


_FOLDERS = ("dev", "proc", "sys", "tmp", "etc", "root", "var", "var/lib", "run")
_USERS = {"etc/passwd": b"root:x:0:0:root:/root:/bin/sh\n", "etc/group": b"root:x:0:\n"}


def _busybox() -> bytes:
    program = shutil.which("busybox")
    assert program is not None
    names = subprocess.run([program, "--list"], stdout=subprocess.PIPE, check=True, text=True).stdout.split()
    links = {f"bin/{name}": "busybox" for name in names if name != "busybox"}
    return _archive({**_USERS, "bin/busybox": Path(program).read_bytes()}, links, ("bin", *_FOLDERS))


def _bare() -> bytes:
    """A root with the places where this machine's programs are mounted."""
    links = {name: str(Path("/", name).readlink()) for name in _SYSTEM if Path("/", name).is_symlink()}
    return _archive(_USERS, links, (*_FOLDERS, "usr"))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """An engine for the tests of a module."""
    problem = why_not()
    if problem is not None:
        pytest.skip(problem)
    # A container goes on while dockerd is down, as it does on nodes that are set up for that.
    it = Engine(tmp_path_factory.mktemp("engine"), "--live-restore")
    try:
        yield it
    finally:
        it.close()


@pytest.fixture
def docker_engine(engine: Engine) -> Iterator[Engine]:
    """The module's engine, without containers of other tests."""
    yield engine
    engine.remove_all()
