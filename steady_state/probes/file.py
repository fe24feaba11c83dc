"""The probe of a file on the controller's machine: whether it exists, its size, its age, its text."""

from __future__ import annotations

import stat
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from chaos import quantities
from steady_state.contract import Measurement, ProbeFailed, ValueType
from steady_state.view import WorkloadView

_MOST_TEXT = 1 << 20  # bytes


@dataclass(frozen=True)
class FileParams:
    """Which file, and what of it is the value."""

    path: str = field(metadata={"help": "the path of the file"})
    value: Literal["exists", "size", "text", "age"] = field(
        default="exists",
        metadata={"help": "whether it exists, its bytes, its text, or the seconds since it last changed"},
    )

    def __post_init__(self) -> None:
        if not self.path or "\0" in self.path:
            raise ValueError(f"found the path {self.path!r}; write the path of a file")


class File:
    """What a file is like."""

    name = "file"
    about = "whether a file exists, its size, its age or its text"
    value: ValueType = "any"
    Params = FileParams

    def measure(self, params: FileParams, _view: WorkloadView, _timeout: float, /) -> Measurement:
        """An absent file fails every question but whether it exists."""
        path = Path(params.path)
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            if params.value == "exists":
                return Measurement(False, f"{path} does not exist")
            raise ProbeFailed(f"{path} does not exist") from None
        except OSError as error:
            raise ProbeFailed(f"{path} cannot be looked at: {error.strerror}") from None
        match params.value:
            case "exists":
                return Measurement(True, f"{path} exists")
            case "size":
                shown = quantities.format("size", status.st_size)
                return Measurement(status.st_size, f"{path} has {shown}")
            case "age":
                age = max(0.0, time.time() - status.st_mtime)  # a clock set back makes no negative age
                return Measurement(age, f"{path} changed {quantities.format('duration', round(age, 3))} ago")
            case "text":
                text = _text(path, status.st_mode, status.st_size)
                return Measurement(text, f"{path} has {len(text)} characters")


def _text(path: Path, mode: int, size: int) -> str:
    if not stat.S_ISREG(mode):
        raise ProbeFailed(f"{path} is no regular file")
    if size > _MOST_TEXT:
        raise ProbeFailed(f"{path} has {size} bytes, more than a text of {_MOST_TEXT}")
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise ProbeFailed(f"{path} is not UTF-8") from None
    except OSError as error:
        raise ProbeFailed(f"{path} cannot be read: {error.strerror}") from None
