"""Shows a run while it goes on: the phases, the live throughput, each fault's countdown, then the verdict."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console, Group
from rich.live import Live as Display
from rich.text import Text

if TYPE_CHECKING:
    from chaos.engine.faults import Conductor
    from chaos.engine.live import Live

STYLES = {"pass": "bold green", "fail": "bold red", "inconclusive": "bold yellow", "aborted": "bold magenta"}
_ABOUT = {
    "lab": "the emulated cluster comes up",
    "nodes": "agents start on the nodes",
    "workload": "the training job starts",
    "baseline": "the undisturbed job is measured",
    "before": "the steady state is checked: the gate",
    "faults": "faults",
    "recovery": "waiting for recovery",
    "settle": "settling",
    "after": "the steady state is checked again",
    "stop": "everything is ended and put back",
    "score": "the run is scored",
}
_RATE_WINDOW_NS = 500_000_000
_MANY = 6  # faults that have a line each; of more, only those that are under way


class Quiet:
    """Shows nothing."""

    def phase(self, name: str) -> None:
        """Nothing."""

    def running(self, live: Live, conductors: list[Conductor]) -> None:
        """Nothing."""

    def probes(self, results: list[dict[str, Any]]) -> None:
        """Nothing."""


class Terminal(Quiet):
    """Lines for what has happened, and below them, on a real terminal, a status that moves."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._phase = ""
        self._live: Live | None = None
        self._conductors: list[Conductor] = []

    def phase(self, name: str) -> None:
        """A line for the new phase."""
        self._phase = name
        stamp = f"{time.monotonic() - self._began:6.1f} s  "
        self._console.print(Text.assemble((stamp, "dim"), (f"{name:<9}", "bold"), (_ABOUT[name], "")))

    def running(self, live: Live, conductors: list[Conductor]) -> None:
        """From now on there is a throughput to show."""
        self._live, self._conductors = live, conductors

    def probes(self, results: list[dict[str, Any]]) -> None:
        """A line for each probe."""
        for result in results:
            mark = ("holds  ", "green") if result["ok"] else ("FAILS  ", "bold red")
            self._console.print(
                Text.assemble(
                    " " * 10, mark, f"{result['probe']} {result['tolerance']}", (f"  {result['text']}", "dim")
                )
            )

    def __rich__(self) -> Group:
        lines = []
        if self._live is not None and self._phase not in ("stop", "score"):
            rate = self._live.rate(_RATE_WINDOW_NS)
            lines.append(
                Text.assemble(
                    " " * 10,
                    ("throughput ", "dim"),
                    f"{rate:6.1f} steps/s",
                    ("  step ", "dim"),
                    str(self._live.last_step()),
                )
            )
        shown = self._conductors
        if len(shown) > _MANY:
            shown = [each for each in shown if each.told.state not in ("waiting", "skipped", "undone")]
            counts = Counter(each.told.state for each in self._conductors)
            told = ", ".join(f"{counts[state]} {state}" for state in sorted(counts))
            lines.append(Text.assemble(" " * 10, ("faults ", "dim"), told))
        lines += [self._fault(conductor) for conductor in shown]
        return Group(*lines)

    @staticmethod
    def _fault(conductor: Conductor) -> Text:
        told, spec = conductor.told, conductor.fault.spec
        if told.state == "active" and told.ends_ns is not None:
            left = max(0.0, (told.ends_ns - time.monotonic_ns()) / 1e9)
            status = Text(f"in effect, {left:.2f} s left", style="bold red")
        else:
            status = Text(told.state, style="dim")
        return Text.assemble(" " * 10, ("fault ", "dim"), f"{spec.name} ({spec.inject})  ", status)


@contextmanager
def watcher(console: Console, *, quiet: bool) -> Iterator[Quiet]:
    """The watcher for a run: lines and, on a terminal, a live status."""
    if quiet:
        yield Quiet()
        return
    terminal = Terminal(console)
    if not console.is_terminal:
        yield terminal
        return
    with Display(terminal, console=console, refresh_per_second=5, transient=True):
        yield terminal


def show_verdict(console: Console, card: dict[str, Any], folder: Path) -> None:
    """The verdict, the two figures, and where the scorecard lies."""
    verdict = card["verdict"]
    console.print()
    console.print(Text.assemble((verdict.upper(), STYLES.get(verdict, "bold red")), f"  {card['reason']}"))
    cleanup, measured = card.get("cleanup"), card.get("measured")
    if measured:
        console.print(f"  measured     {measured['verdict']}: {measured['reason']}", markup=False)
    if cleanup:
        console.print(f"  clean-up     {cleanup['verdict']}: {cleanup['text']}", markup=False)
    rto, consistency = card.get("rto"), card.get("consistency")
    if rto:
        console.print(_rto_line(rto))
    if consistency and consistency.get("ratio") is not None:
        bound = consistency.get("lower_bound")
        console.print(
            f"  consistency  {consistency['ratio']:.4%} of {consistency['compared']} replica hashes agree"
            f" (95 % sure of {bound:.4%} or more; {consistency['level']}; pass mark {consistency['pass']:.2%})"
        )
    for finding in card.get("findings", []):
        console.print(f"  {finding['priority']}  {finding['text']}", markup=False)
    console.print(f"  scorecard    {folder / 'scorecard.html'}", markup=False)


def _rto_line(rto: dict[str, Any]) -> str:
    if rto.get("ms") is None:
        return f"  RTO          not recovered (pass mark {rto['pass_ms']:.0f} ms)"
    return (
        f"  RTO          {rto['ms']:.0f} ms (between {rto['low_ms']:.0f} and {rto['high_ms']:.0f}; {rto['level']}; "
        f"pass mark {rto['pass_ms']:.0f} ms)"
    )
