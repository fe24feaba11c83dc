"""The experiments that come with the package: found by name, wherever it is installed."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from chaos.engine.errors import InputError


def everything() -> dict[str, Path]:
    """The shipped experiments by name."""
    folder = Path(str(resources.files("experiments")))
    return {file.stem: file for file in sorted(folder.glob("*.yaml"))}


def find(name: str) -> Path:
    """A document: a file, or the name of a shipped experiment.

    Raises:
        InputError: there is neither.
    """
    path = Path(name)
    if path.is_file():
        return path
    shipped = everything()
    # `experiments/nvswitch.yaml` names the shipped one from any folder.
    known = shipped.get(path.stem) if path.parent in (Path(), Path("experiments")) else None
    if known is None:
        raise InputError(f"there is no file {name}, and no shipped experiment of that name: {', '.join(shipped)}")
    return known
