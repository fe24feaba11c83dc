"""What runs first on a node that has no code of ours: unpacks the agent's bundle once, then becomes the agent.

It is sent as an argument of the node's own Python (``python3 -c``) and needs nothing else. The conversation, over the
pipe that is the agent's afterwards: where the bundle is missing it says ``{"event": "boot", "have": false}`` and reads
the archive from its input; once the bundle is there, ``{"event": "boot", "have": true}``, and the agent itself follows;
or ``{"event": "boot", "error": "..."}``, and the end. Any Python 3 can read it, so that one that is too old says so.

Arguments: the archive's SHA-256 in hex, its size in bytes, the module to become (``chaos.agent.main``), and what it is
told.
"""

import os
import sys

# The rest is imported where it is needed: only a first start needs it, and every start waits for it.


class Refuse(Exception):
    """The agent cannot be started here; the message says why."""


def say(key: str, value: str) -> None:
    """One key, and its value as JSON; on a line of its own, even where a login script has left one unfinished."""
    os.write(1, ('\n{"event": "boot", "%s": %s}\n' % (key, value)).encode())


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
    import hashlib

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
    import io
    import shutil
    import tarfile
    import tempfile

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


def prepare(digest: str, size: int) -> str:
    """Have the bundle; in which folder it is."""
    if sys.version_info < (3, 9):
        raise Refuse("Python %s found, 3.9 or newer is needed" % sys.version.split()[0])
    folder = os.path.join(base(), digest)
    if not os.path.isdir(folder):
        say("have", "false")
        unpack(receive(digest, size), folder)
    say("have", "true")
    return folder


def main(digest: str, size: str, module: str, *options: str) -> None:
    import json

    try:
        folder = prepare(digest, int(size))
    except Refuse as error:
        say("error", json.dumps(str(error)))
        sys.exit(1)
    except OSError as error:
        say("error", json.dumps("%s: %s" % (error.filename or "the agent's bundle", error.strerror)))
        sys.exit(1)
    sys.path.insert(0, folder)
    os.environ["PYTHONPATH"] = folder  # for what the agent starts
    sys.argv = [module] + list(options)
    from importlib import import_module

    sys.exit(import_module(module).main())


if __name__ == "__main__":
    main(*sys.argv[1:])
