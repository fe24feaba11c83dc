"""Runs on a node, sent as ``python3 -c``: writes what is added to a file, until its input ends.

Arguments: a word that is written, on a line of its own, when everything added from then on will come; and the file. It
need not be there, and it may be replaced or cut short at any time: what is there then is all new. A line that a
replaced file left unfinished is ended.
"""

import contextlib
import os
import select
import sys

_PAUSE = 0.05  # seconds between two looks
_CHUNK = 65536


def write(data: bytes) -> None:
    """All of it; how fast is up to the reader, and nothing is kept for it."""
    view = memoryview(data)
    while view:
        view = view[os.write(1, view) :]


class File:
    """The file under the name, as it was opened."""

    def __init__(self, path: str, at_end: bool) -> None:
        self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        self.at = os.fstat(self.fd).st_size if at_end else 0
        self.path = path
        self.unfinished = False

    def copy(self) -> None:
        if os.fstat(self.fd).st_size < self.at:
            self.finish()
            self.at = 0
        while True:
            data = os.pread(self.fd, _CHUNK, self.at)
            if not data:
                return
            self.at += len(data)
            self.unfinished = not data.endswith(b"\n")
            write(data)

    def finish(self) -> None:
        if self.unfinished:
            write(b"\n")
            self.unfinished = False

    def replaced(self) -> bool:
        try:
            return not os.path.samestat(os.stat(self.path), os.fstat(self.fd))
        except OSError:
            return False  # it is gone: what is still written into it is ours, until there is another

    def close(self) -> None:
        self.finish()
        os.close(self.fd)


def main(ready: str, path: str) -> None:
    file = None
    with contextlib.suppress(OSError):
        file = File(path, at_end=True)
    write(b"\n" + ready.encode() + b"\n")
    while not select.select([0], [], [], _PAUSE)[0]:
        if file is None:
            try:
                file = File(path, at_end=False)
            except OSError:
                continue
        other = file.replaced()  # before the last look into it, so that nothing of it is missed
        file.copy()
        if other:
            file.close()
            file = None


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # nobody reads any more
        main(*sys.argv[1:])
