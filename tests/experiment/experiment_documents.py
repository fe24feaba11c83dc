"""A catalogue for the document's tests: three kinds of fault with parameters of their own, and the real probes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Literal, Optional

from chaos.experiment import Catalogue, Experiment, InjectorInfo, ProbeInfo
from steady_state import PROBES


@dataclass(frozen=True)
class BlackholeParams:
    source: Annotated[str, "gpu"] = field(metadata={"name": "from", "help": "the GPU whose traffic is dropped"})
    to: Annotated[str, "gpu"] = field(metadata={"help": "the GPU that it is for"})
    direction: Literal["both", "forward"] = field(default="both", metadata={"help": "both ways, or one"})

    def __post_init__(self) -> None:
        if self.source == self.to:
            raise ValueError(f"found '{self.source}' at both ends; write two GPUs")


@dataclass(frozen=True)
class SignalParams:
    signal: Literal["KILL", "TERM", "STOP", "SEGV", "INT", "HUP", "USR1"]

    def problem(self, duration: float | None) -> str | None:
        if self.signal == "STOP" and duration is None:
            return "found no 'for'; a STOP needs one"
        if self.signal != "STOP" and duration is not None:
            return f"found 'for' with a {self.signal}; leave it out"
        return None


@dataclass(frozen=True)
class PowerOffParams:
    pass


@dataclass(frozen=True)
class NetemParams:
    delay: Annotated[float, "duration"] = 0.0
    loss: Annotated[float, "ratio"] = 0.0
    rate: Optional[Annotated[float, "rate"]] = None  # noqa: UP045 - as injectors for Python 3.9 write it
    limit: Optional[Annotated[int, "size"]] = None  # noqa: UP045
    ports: list[str] = field(default_factory=list)
    correlated: bool = False
    packets: int = 1000


INJECTORS = (
    InjectorInfo("fabric.blackhole", BlackholeParams, "a path drops everything", "self", ("node",), "required"),
    InjectorInfo("process.signal", SignalParams, "a signal", "exact", ("rank", "process"), "optional"),
    InjectorInfo("power.off", PowerOffParams, "a node loses power", "exact", ("node",), "required"),
    InjectorInfo("net.netem", NetemParams, "a slow, lossy link", "exact", ("node", "gpu"), "required"),
    InjectorInfo("device.reset", PowerOffParams, "a GPU is reset", "none", ("gpu",), "none"),
)

CATALOGUE = Catalogue(
    injectors={info.kind: info for info in INJECTORS},
    probes={name: ProbeInfo(name, probe.Params, probe.about, probe.value) for name, probe in PROBES.items()},
)

MINIMAL = """\
experiment: minimal
lab: {nodes: 2, gpus: 2, spare_nodes: 1}
workload: {reference: llama-bytes}
"""

MARK = "»"  # in a test's text: where the problem is to be told; before everything: at the mapping itself

Load = Callable[..., Experiment]
Refused = Callable[..., list[str]]


def placed(before: str, text: str, after: str) -> tuple[str, str]:
    """The document ``before + text + after`` without its mark, and the place of the mark as ``line:column``."""
    if text.startswith(MARK) and before.endswith("{"):
        before, text = before[:-1] + MARK + "{", text.removeprefix(MARK)
    whole = before + text + after
    lines = (MINIMAL + whole[: whole.index(MARK)]).splitlines()
    return whole.replace(MARK, ""), f"{len(lines)}:{len(lines[-1]) + 1}"
