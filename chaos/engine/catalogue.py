"""The injectors and probes there are: ours and those that a site has added by entry point."""

from __future__ import annotations

from functools import cache

from chaos.engine.errors import InputError
from chaos.engine.kinds import installed
from chaos.experiment import Catalogue, InjectorInfo, ProbeInfo
from injectors.contract import Injector
from steady_state import PROBES


@cache
def injectors() -> dict[str, type[Injector]]:
    """The injectors by kind.

    Raises:
        InputError: none is installed, or one cannot be imported.
    """
    found: dict[str, type[Injector]] = {}
    for point in installed():
        try:
            found[point.name] = point.load()
        except Exception as error:  # a site's module may raise anything when it is imported
            raise InputError(f"the injector {point.name} ({point.value}) cannot be loaded: {error}") from error
    if not found:
        raise InputError("no injectors are installed: install this project as a package (pip install -e .)")
    return found


def implementation(kind: str) -> str:
    """``module:Class`` of an injector, by which an agent loads it."""
    made_by = injectors()[kind]
    return f"{made_by.__module__}:{made_by.__qualname__}"


def danger_of(injector: type[Injector]) -> str | None:
    """What a fault of this kind may destroy, in words; None for one that leaves nothing behind."""
    if injector.danger is None and injector.reversal == "none":
        return "it cannot be undone"
    return injector.danger


@cache
def catalogue() -> Catalogue:
    """What an experiment may name."""
    return Catalogue(
        injectors={
            kind: InjectorInfo(
                kind=kind,
                params=made_by.Params,
                about=made_by.about,
                reversal=made_by.reversal,
                target=made_by.targets,
                duration=made_by.duration,
                danger=danger_of(made_by),
            )
            for kind, made_by in sorted(injectors().items())
        },
        probes={
            name: ProbeInfo(name=name, params=probe.Params, about=probe.about, value=probe.value)
            for name, probe in sorted(PROBES.items())
        },
    )
