"""Checkpoints that can be trusted: complete and verified, or not there.

A file is a line of JSON (the header), the state's bytes, and the SHA-256 of everything before it. It is written under a
temporary name, flushed to storage, and renamed; a writer killed at any point leaves the older ones as they are. Nothing
is loaded whose digest or identity is wrong.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

FORMAT = "chaos.checkpoint/1"
_SUFFIX = ".ckpt"
_DIGEST_BYTES = 32
_MAX_HEADER = 4096


class CheckpointError(RuntimeError):
    """A checkpoint cannot be used; the message says which and why."""


@dataclass(frozen=True)
class Checkpoint:
    """A verified state: ``step`` completed steps, float32 ``state``, and the SHA-256 of the whole file."""

    step: int
    state: Tensor
    digest: bytes
    path: Path


class CheckpointFolder:
    """The checkpoints of one job.

    Args:
        folder: on storage that all ranks see; made when missing.
        identity: what a state must belong to (model, seed); others' checkpoints are refused.
        keep: how many of the newest stay.
    """

    def __init__(self, folder: Path, identity: Mapping[str, Any], keep: int = 3) -> None:
        self._folder = folder
        self._identity = dict(identity)
        self._keep = keep

    def save(self, step: int, state: Tensor) -> Path:
        """Write the state after ``step`` steps; it is on storage when this returns. Raises OSError."""
        self._folder.mkdir(parents=True, exist_ok=True)
        data = memoryview(state.view(torch.uint8).numpy().data)
        header = {"format": FORMAT, "step": step, "bytes": data.nbytes, "identity": self._identity}
        line = json.dumps(header).encode() + b"\n"
        digest = hashlib.sha256(line)
        digest.update(data)
        path = self._path(step)
        # A rank that was replaced may still be writing the same step: a name of our own.
        unfinished = path.with_name(f".{path.name}.{os.getpid()}.{time.monotonic_ns()}")
        try:
            with open(unfinished, "xb", buffering=0) as file:
                for part in (line, data, digest.digest()):
                    _write_all(file.fileno(), part)
                os.fsync(file.fileno())
            unfinished.replace(path)
        finally:
            unfinished.unlink(missing_ok=True)
        _flush_folder(self._folder)
        self._prune(step)
        return path

    def newest(self, on_refused: Callable[[CheckpointError], None]) -> Checkpoint | None:
        """The newest checkpoint that is valid, or ``None``; each newer one that is not is reported."""
        for path in self._paths():
            try:
                return self._read(path)
            except CheckpointError as error:
                on_refused(error)
        return None

    def load(self, step: int) -> Checkpoint:
        """The checkpoint after ``step`` steps. Raises CheckpointError if it is missing or not valid."""
        return self._read(self._path(step))

    def _path(self, step: int) -> Path:
        return self._folder / f"step-{step:012d}{_SUFFIX}"

    def _paths(self) -> list[Path]:
        return sorted(self._folder.glob(f"step-*{_SUFFIX}"), reverse=True)

    def _prune(self, step: int) -> None:
        killed_writers = (p for p in self._folder.glob(f".step-*{_SUFFIX}.*") if p.name < f".{self._path(step).name}")
        for path in (*self._paths()[self._keep :], *killed_writers):
            path.unlink(missing_ok=True)

    def _read(self, path: Path) -> Checkpoint:
        try:
            data = path.read_bytes()
        except OSError as error:
            raise CheckpointError(f"{path}: {error.strerror}") from error
        digest = hashlib.sha256(memoryview(data)[:-_DIGEST_BYTES]).digest()
        if len(data) <= _DIGEST_BYTES or digest != data[-_DIGEST_BYTES:]:
            raise CheckpointError(f"{path}: torn or corrupt ({len(data)} bytes do not match their SHA-256)")
        end = data.find(b"\n", 0, _MAX_HEADER)
        header = json.loads(data[:end]) if end >= 0 else {}
        if header.get("format") != FORMAT:
            raise CheckpointError(f"{path}: format {header.get('format')!r}: {FORMAT} is needed")
        if header["identity"] != self._identity:
            raise CheckpointError(f"{path}: of another job ({header['identity']}): {self._identity} is needed")
        values = np.frombuffer(data[end + 1 : -_DIGEST_BYTES], dtype=np.float32).copy()
        return Checkpoint(header["step"], torch.from_numpy(values), digest, path)


class CheckpointWriter:
    """Writes checkpoints in a thread of its own: training pays for a copy of the state only.

    Args:
        on_saved: called in that thread with step, path and seconds.
        on_failed: called in that thread with step and the reason.
    """

    def __init__(
        self,
        folder: CheckpointFolder,
        on_saved: Callable[[int, Path, float], None],
        on_failed: Callable[[int, str], None],
    ) -> None:
        self._folder = folder
        self._on_saved = on_saved
        self._on_failed = on_failed
        self._snapshot: Tensor | None = None
        self._thread: threading.Thread | None = None

    def offer(self, step: int, state: Tensor) -> bool:
        """Write ``state`` in the background; ``False``, and nothing is written, while the last one still is."""
        if self._thread is not None and self._thread.is_alive():
            return False
        if self._snapshot is None:
            self._snapshot = torch.empty_like(state, device="cpu")
        self._snapshot.copy_(state)
        self._thread = threading.Thread(target=self._save, args=(step, self._snapshot), name="checkpoint", daemon=True)
        self._thread.start()
        return True

    def drain(self, timeout: float) -> None:
        """Wait for the checkpoint that is being written, ``timeout`` seconds at most."""
        if self._thread is not None:
            self._thread.join(timeout)

    def _save(self, step: int, state: Tensor) -> None:
        started = time.monotonic()
        try:
            path = self._folder.save(step, state)
        except OSError as error:
            self._on_failed(step, f"{error.filename or 'checkpoint'}: {error.strerror}")
        else:
            self._on_saved(step, path, time.monotonic() - started)


def _write_all(fd: int, data: bytes | memoryview) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(fd, view) :]


def _flush_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
