"""What one reference job is told: the launcher's JSON file, strictly read."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

RecoveryName = Literal["none", "checkpoint", "restart", "peer"]


class ConfigError(ValueError):
    """The job's configuration is wrong; the message names the key and what would be right."""


@dataclass(frozen=True, order=True)
class Place:
    """A GPU of a node: where one rank runs."""

    node: int
    gpu: int

    def __str__(self) -> str:
        return f"node {self.node} GPU {self.gpu}"


@dataclass(frozen=True)
class ModelShape:
    """Sizes of the decoder and of one rank's batch.

    The defaults were chosen by measurement: on two cores, four ranks, two spares and the controller share 40 ms of CPU
    in a step of 20 ms. There a step of one rank costs 4 to 5 ms: 3 ms for the model, 0.5 ms for the optimizer,
    1 ms for the all-reduce, 0.1 ms for the heartbeat. After a pause a model of this size costs twice what it costs in
    a tight loop (1.6 ms), and that is the price of its operations, not of arithmetic: a second layer adds 2 ms, half
    the width or half the batch saves next to nothing. ``bench/events.py`` prints what events and hash add.
    """

    dim: int = 48
    layers: int = 1
    heads: int = 3
    hidden: int = 128
    context: int = 32
    batch: int = 2
    tied: bool = True

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name != "tied" and (type(value) is not int or value < 1):
                raise ConfigError(f"model.{field.name} is {value!r}: a whole number of 1 or more is needed")
        if self.dim % (2 * self.heads):
            raise ConfigError(f"model.dim is {self.dim}: it must be a multiple of twice the heads ({self.heads})")


@dataclass(frozen=True)
class JobConfig:
    """One job.

    Attributes:
        events_dir, logs_dir, checkpoint_dir: made when missing; ``checkpoint_dir`` stands for shared storage.
        seed: of the parameters and of the data's order.
        recovery: what is done when a rank is lost.
        step_s: period of a step in seconds; ``None``: as fast as it goes.
        checkpoint_every: steps between checkpoints.
        hash_every: steps between content hashes.
        model: sizes.
        world: the places of ranks 0, 1, ...
        spares: places of spare processes.
        lab_socket: the lab's keeper (its socket or its folder); ``None``: all ranks on this host.
        max_steps: the job is done after so many steps; ``None``: it goes on until it is stopped.
        collective_timeout_s: how long a collective may take. A backstop: losses are noticed long before.
        hang_timeout_s: a process that was silent for so long is replaced.
        keep_checkpoints: how many are kept.
    """

    events_dir: Path
    logs_dir: Path
    checkpoint_dir: Path
    seed: int
    recovery: RecoveryName
    world: tuple[Place, ...]
    spares: tuple[Place, ...] = ()
    step_s: float | None = None
    checkpoint_every: int = 50
    hash_every: int = 1
    model: ModelShape = ModelShape()
    lab_socket: Path | None = None
    max_steps: int | None = None
    collective_timeout_s: float = 3.0
    hang_timeout_s: float = 0.3
    keep_checkpoints: int = 3

    @property
    def control_socket(self) -> Path:
        """Where launcher and ranks meet: in a folder that all of them see."""
        return self.events_dir / "launcher.sock"

    @classmethod
    def load(cls, path: Path) -> JobConfig:
        """Read the file.

        Raises:
            ConfigError: it is no JSON, has unknown or missing keys, or a value is out of range.
            OSError: it cannot be read.
        """
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except ValueError as error:
            raise ConfigError(f"{path}: not JSON: {error}") from error
        try:
            return cls.parse(data)
        except ConfigError as error:
            raise ConfigError(f"{path}: {error}") from error

    @classmethod
    def parse(cls, data: Any) -> JobConfig:
        """Check and convert what the file holds.

        Raises:
            ConfigError: as ``load``.
        """
        known = _checked_keys("the configuration", data, cls)
        values = {key: value for key, value in known.items() if not (key == "model" and value is None)}
        for key in ("events_dir", "logs_dir", "checkpoint_dir"):
            values[key] = Path(_typed(key, values[key], str)).absolute()
        values["world"] = _places("world", values["world"])
        values["spares"] = _places("spares", values.get("spares", []))
        if not values["world"]:
            raise ConfigError("world is empty: at least one place is needed")
        places = [*values["world"], *values["spares"]]
        if len(set(places)) != len(places):
            raise ConfigError("a place is listed twice in world and spares: each takes one process")
        if "model" in values:
            values["model"] = ModelShape(**_checked_keys("model", values["model"], ModelShape))
        if values.get("lab_socket") is not None:
            values["lab_socket"] = Path(_typed("lab_socket", values["lab_socket"], str)).absolute()
        if values["recovery"] not in get_args(RecoveryName):
            raise ConfigError(
                f"recovery is {values['recovery']!r}: one of {', '.join(get_args(RecoveryName))} is needed"
            )
        _typed("seed", values["seed"], int)
        for key in ("checkpoint_every", "hash_every", "keep_checkpoints", "max_steps"):
            _at_least_one(key, values)
        for key in ("step_s", "collective_timeout_s", "hang_timeout_s"):
            _positive(key, values)
        return cls(**values)


def _checked_keys(where: str, data: Any, model: type) -> dict[str, Any]:
    if not isinstance(data, Mapping):
        raise ConfigError(f"{where} is {data!r}: a JSON object is needed")
    allowed = {field.name: field for field in fields(model)}
    unknown = sorted(set(data) - set(allowed))
    if unknown:
        raise ConfigError(f"{where} has an unknown key {unknown[0]!r}: known are {', '.join(allowed)}")
    needed = [
        name
        for name, f in allowed.items()
        if f.default is MISSING and f.default_factory is MISSING and name not in data
    ]
    if needed:
        raise ConfigError(f"{where} lacks {', '.join(needed)}")
    return dict(data)


def _typed(key: str, value: Any, kind: type) -> Any:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ConfigError(f"{key} is {value!r}: {'a whole number' if kind is int else 'a string'} is needed")
    return value


def _places(key: str, data: Any) -> tuple[Place, ...]:
    if not isinstance(data, list):
        raise ConfigError(f'{key} is {data!r}: a list of places is needed, such as [{{"node": 0, "gpu": 0}}]')
    places = []
    for item in data:
        values = _checked_keys(f"a place in {key}", item, Place)
        places.append(Place(_typed("node", values["node"], int), _typed("gpu", values["gpu"], int)))
    return tuple(places)


def _at_least_one(key: str, values: Mapping[str, Any]) -> None:
    value = values.get(key)
    if value is not None and _typed(key, value, int) < 1:
        raise ConfigError(f"{key} is {value}: 1 or more is needed")
    if value is None and key in values and key != "max_steps":
        raise ConfigError(f"{key} is null: a whole number is needed")


def _positive(key: str, values: Mapping[str, Any]) -> None:
    value = values.get(key)
    if value is None:
        if key in values and key != "step_s":
            raise ConfigError(f"{key} is null: seconds are needed")
        return
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise ConfigError(f"{key} is {value!r}: seconds above 0 are needed")
