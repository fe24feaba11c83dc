"""The probes that ship, by name: of the workload, of a command, of an HTTP server, of a file."""

from __future__ import annotations

from collections.abc import Mapping

from steady_state.contract import Probe
from steady_state.probes.command import Command
from steady_state.probes.file import File
from steady_state.probes.http import Http
from steady_state.probes.workload import Alive, Loss, ReplicasAgree, Throughput

_ALL: tuple[Probe, ...] = (Throughput(), Loss(), ReplicasAgree(), Alive(), Command(), Http(), File())

PROBES: Mapping[str, Probe] = {probe.name: probe for probe in _ALL}
