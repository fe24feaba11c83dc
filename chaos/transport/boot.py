"""What runs first on a node that has no code of ours: unpacks the agent's bundle once, then becomes the agent.

It is sent as an argument of the node's own Python (``python3 -c``) and needs nothing else. The conversation, over the
pipe that is the agent's afterwards: where the bundle is missing it says ``{"event": "boot", "have": false}`` and reads
the archive from its input; once the bundle is there, ``{"event": "boot", "have": true}``, and the agent itself follows;
or ``{"event": "boot", "error": "..."}``, and the end. Any Python 3 can read it, so that one that is too old says so.

Arguments: the archive's SHA-256 in hex, its size in bytes, and what the agent is told.
"""

import hashlib
import io
import json
import os
import shutil
import sys
import tarfile
import tempfile


class Refuse(Exception):
    """The agent cannot be started here; the message says why."""


def say(**message: object) -> None:
    # On a line of its own, even if whatever ran before, such as a login script, left one unfinished.
    os.write(1, ("\n" + json.dumps(dict(message, event="boot")) + "\n").encode())


def base() -> str:
    """The folder of the bundles: ours alone, since what lies there is run."""
    if os.geteuid() == 0:
        folder = "/var/lib/chaos/agents"
    else:
        cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
        folder = os.path.join(cache, "chaos", "agents")
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.lstat(folder)
    if found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise Refuse("%s belongs to, or can be written by, somebody else: remove it" % folder)
    return folder


def receive(digest: str, size: int) -> bytes:
    data = bytearray()
    while len(data) < size:
        part = os.read(0, min(1 << 20, size - len(data)))
        if not part:
            raise Refuse("the agent's bundle broke off after %d of %d bytes" % (len(data), size))
        data += part
    if hashlib.sha256(data).hexdigest() != digest:
        raise Refuse("the agent's bundle was damaged on its way")
    return bytes(data)


def unpack(data: bytes, folder: str) -> None:
    """Into its place by a rename: it is there as a whole, or not at all."""
    work = tempfile.mkdtemp(dir=os.path.dirname(folder))
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:gz") as archive:
            archive.extractall(work)
        try:
            os.rename(work, folder)
        except OSError:  # another agent was faster
            if not os.path.isdir(folder):
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def main(digest: str, size: str, *options: str) -> int:
    try:
        if sys.version_info < (3, 9):
            raise Refuse("Python %s found, 3.9 or newer is needed" % sys.version.split()[0])
        folder = os.path.join(base(), digest)
        if not os.path.isdir(folder):
            say(have=False)
            unpack(receive(digest, int(size)), folder)
        say(have=True)
    except Refuse as error:
        say(error=str(error))
        return 1
    except OSError as error:
        say(error="%s: %s" % (error.filename or "the agent's bundle", error.strerror))
        return 1
    os.environ["PYTHONPATH"] = folder
    os.execv(sys.executable, [sys.executable, "-S", "-m", "chaos.agent.main"] + list(options))
    return 1


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
