"""Runs one experiment, phase by phase, and always puts everything back.

lab, workload, baseline, before (the gate), faults, recovery, settle, after, stop: in this order. A failed gate starts
nothing; a pulled stop switch ends the phase that is under way, undoes every fault and goes to the end.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import threading
import time
from contextlib import ExitStack, suppress
from datetime import UTC, datetime
from typing import Any, Protocol

from chaos.engine import folder as folders
from chaos.engine import outcome
from chaos.engine.agents import Agents
from chaos.engine.cluster import Cluster, LabCluster, WorkloadError
from chaos.engine.errors import InputError, RunError
from chaos.engine.faults import Conductor, check_support, holder_of
from chaos.engine.folder import RunFolder
from chaos.engine.guards import Guards
from chaos.engine.journal import Journal
from chaos.engine.ledger import Ledger
from chaos.engine.limits import WARM_UP
from chaos.engine.live import Live
from chaos.engine.plan import Plan, PlannedFault
from chaos.engine.site import SiteCluster
from chaos.engine.stop import Reason, Stop
from chaos.lab.cluster import Lab
from chaos.lab.errors import LabError
from chaos.store import StoreError
from chaos.transport.pipe import AgentError
from chaos.workload.events import merge
from steady_state import Hypothesis

LOOK = 0.25  # seconds between two looks for recovery
AFTER_WINDOW_NS = 2_000_000_000


class Watcher(Protocol):
    """Told what happens while a run goes on: a terminal, or nobody."""

    def phase(self, name: str) -> None:
        """A phase begins."""

    def running(self, live: Live, conductors: list[Conductor]) -> None:
        """The workload runs and the faults are known: what can be shown live."""

    def probes(self, results: list[dict[str, Any]]) -> None:
        """The hypothesis was checked."""


class Run:
    """One run.

    Args:
        plan: what is drawn.
        where: its folder, made by ``folder.create``.
        source: the document's text, for the record.
        watcher: who is told.
        stop: the switch that ends it.
    """

    rehearses = False  # whether nothing is fired

    def __init__(self, plan: Plan, where: RunFolder, *, source: str, watcher: Watcher, stop: Stop) -> None:
        self._plan = plan
        self._experiment = plan.experiment
        self._folder = where
        self._watcher = watcher
        self._stop = stop
        self._journal = Journal(where.journal, plan.run)
        self._hypothesis = Hypothesis(plan.experiment.steady_state.hold)
        self._live = Live(where.work / "events", time.monotonic_ns)
        self._conductors: list[Conductor] = []
        self._gate_failed = False
        self._baseline = (0, 0)
        self._journal.write(
            "plan",
            experiment=self._experiment.model_dump(mode="json"),
            seed=plan.seed,
            source=source,
            faults=[fault.as_json() for fault in plan.faults],
            rehearsal=self.rehearses,
        )

    def execute(self) -> dict[str, Any]:
        """Run it to its end and score it.

        Returns:
            The scorecard; it and the reports lie in the run's folder.

        Raises:
            InputError: something is missing here; nothing of the workload was started, and the folder is gone.
            RunError: the run's folder cannot be written any more; says what is not proven undone.
        """
        self._carry_through()
        self._watcher.phase("score")
        try:
            card = outcome.score(self._folder)
        except OSError as error:
            raise RunError(f"{self._folder.path}: the run cannot be scored: {error.strerror}") from error
        folders.sweep_work(self._folder)
        return card

    def _carry_through(self) -> list[str]:
        """Everything up to the journal's last line. Returns the faults still open. Errors are those of ``execute``."""
        still: list[str] = []
        with self._journal:
            try:
                with self._enlist() as ledger:
                    try:
                        reason = self._go_through(ledger)
                    finally:
                        proofs, still = self._settle(ledger)
                    self._end(ledger, reason, proofs)
            except InputError:
                shutil.rmtree(self._folder.path)
                raise
            except OSError as error:
                undone = f"not proven undone: {', '.join(still)}; see `chaos sweep --all`" if still else "all is undone"
                raise RunError(f"{self._folder.path} cannot be written: {error.strerror}; {undone}") from error
        return still

    def _enlist(self) -> Ledger:
        """The ledger, with this run in it: nothing is broken that cannot be promised to be undone."""
        ledger = Ledger.open()
        try:
            ledger.begin_run(self._plan.run, self._folder.path, os.getpid())
        except StoreError as error:
            ledger.close()
            raise InputError(str(error)) from error
        # On a thread of its own: the store may wait for a disk, and the undo must not.
        self._stop.on_pull(threading.Thread(target=self._acknowledge, args=(ledger,), daemon=True).start)
        return ledger

    def _acknowledge(self, ledger: Ledger) -> None:
        with suppress(StoreError):  # then ``chaos halt`` waits for our end instead
            ledger.stopping(self._plan.run)

    def _go_through(self, ledger: Ledger) -> str:
        """All phases. Returns why the run ended, as far as this alone says it."""
        try:
            with ExitStack() as stack:
                try:
                    self._live_through(stack, ledger)
                finally:
                    self._phase("stop")
        except (LabError, WorkloadError, AgentError, OSError) as error:
            self._complain(str(error))
            return "error"
        return "completed"

    def _settle(self, ledger: Ledger) -> tuple[dict[str, str], list[str]]:
        """What has become of the promises, now that the lab has gone: proofs by fault, and the faults still open."""
        try:
            proofs, left = ledger.reconcile(self._plan.run)
            ledger.end_run(self._plan.run)
        except StoreError as error:  # what is not closed now is told, and closed, by the next command
            return {}, [f"not known, {error}"]
        return proofs, [promise.fault for promise in left]

    def _end(self, ledger: Ledger, reason: str, proofs: dict[str, str]) -> None:
        """Write down how the run ended."""
        for fault, proof in proofs.items():
            self._journal.write("fault", id=fault, what="proven", text=proof)
        merge(self._folder.work / "events", self._folder.steps)
        self._journal.write("end", reason=self._reason(ledger, reason), wall=_now())

    def _reason(self, ledger: Ledger, reason: str) -> str:
        """Why the run ended; whatever stopped it is written down."""
        if reason == "error":
            return reason
        if self._gate_failed:
            return "gate failed"
        why = self._stop.reason
        if why is None:
            return reason
        if why.cause == "signal":
            with suppress(StoreError):
                row = ledger.run(self._plan.run)
                if row is not None and row.halt_requested is not None:
                    why = Reason("halted", row.halt_requested)
        self._journal.write("halt", text=why.text)
        return why.cause

    # -- phases ------------------------------------------------------------------------------------------------------

    def _live_through(self, stack: ExitStack, ledger: Ledger) -> None:
        """All phases up to the last probe; what was started is put on the stack, to be ended in reverse order."""
        guards = Guards(self._experiment, lambda: self._live.view(AFTER_WINDOW_NS), self._journal, self._stop)
        stack.callback(guards.close)
        self._phase("lab" if self._plan.site is None else "nodes")
        agents = Agents(self._cluster(stack))
        stack.callback(agents.close, self._complain)
        realities = check_support(self._plan, agents)
        for fault, reality in realities.items():
            self._journal.write("fault", id=fault, what="possible", reality=reality)
        self._journal.write("clock", uncertainty_ns=agents.uncertainty_ns)
        if not self._stop.pulled:
            self._course(agents, ledger, guards, stack)

    def _cluster(self, stack: ExitStack) -> Cluster:
        """The cluster; what was started for it is put on the stack."""
        if self._plan.site is not None:
            site = SiteCluster(self._plan.site, self._plan.lab, self._folder.logs)
            stack.callback(site.close)
            return site
        try:
            lab = stack.enter_context(Lab.up(self._plan.lab, self._folder.lab))
        except LabError as error:  # what the kernel does not allow is a matter of this machine, not of the run
            raise InputError(str(error)) from error
        return LabCluster(lab, self._plan.lab, self._folder.logs, self._folder.lab / "controller")

    def _course(self, agents: Agents, ledger: Ledger, guards: Guards, stack: ExitStack) -> None:
        """What is done on a cluster that can have the faults."""
        if not self._start_workload(agents.cluster, stack) or not self._establish():
            return
        guards.arm()
        self._break(agents, ledger)
        self._watch_recovery()
        self._prove()

    def _start_workload(self, cluster: Cluster, stack: ExitStack) -> bool:
        """Start the job and wait until every rank has completed a step."""
        self._phase("workload")
        workload = self._experiment.workload
        settings = {
            "seed": self._plan.seed if workload.seed is None else workload.seed,
            "step_s": workload.step,
            "checkpoint_every": workload.checkpoint_every,
            "hash_every": workload.hash_every,
        }
        job = cluster.start(workload, settings, self._folder.work, self._folder.logs)
        stack.callback(self._live.close)
        stack.callback(job.stop)
        self._live.start()
        patience = workload.starts_within
        end = time.monotonic() + patience
        while not self._live.wait_for(lambda live: live.stepping(self._plan.lab.world), 0.1):
            ended = job.ended()
            if self._stop.pulled:
                return False
            if ended or time.monotonic() > end:
                what = ", ".join(f"{name} ended with {code}" for name, code in ended.items())
                raise WorkloadError(
                    f"the workload does not train: {what or f'not all ranks have stepped after {patience:g} s'}; "
                    f"its output is in {self._folder.logs}"
                )
        self._watcher.running(self._live, self._conductors)
        return not self._stop.wait(WARM_UP)

    def _establish(self) -> bool:
        """Measure the baseline, then the gate: nothing is broken unless the hypothesis holds."""
        self._phase("baseline")
        length = self._experiment.steady_state.baseline
        began = time.monotonic_ns()
        if self._stop.wait(length):
            return False
        view = self._live.view(time.monotonic_ns() - began)
        self._live.baseline = self._hypothesis.baseline(view)
        self._baseline = (began, view.now_ns)
        self._journal.write("baseline", from_ns=began, to_ns=view.now_ns)
        self._phase("before")
        self._gate_failed = not self._check("before", view.window_ns)
        return not self._gate_failed and not self._stop.pulled

    def _break(self, agents: Agents, ledger: Ledger) -> None:
        """Let every fault's conductor do its work, and wait for all of them, whatever happens here."""
        self._phase("faults")
        gate_ns = time.monotonic_ns()
        try:
            for fault in sorted(self._plan.faults, key=lambda fault: fault.spec.after):
                self._conduct(fault, gate_ns, agents, ledger)
        except BaseException as error:
            self._stop.pull("error", str(error))
            raise
        finally:
            for conductor in self._conductors:
                conductor.join()

    def _conduct(self, fault: PlannedFault, gate_ns: int, agents: Agents, ledger: Ledger) -> Conductor:
        """Start a fault's conductor; that of an earlier one is started before."""
        there = holder_of(self._plan, fault)
        before = [other for other in self._conductors if holder_of(self._plan, other.fault) == there]
        conductor = Conductor(
            self._plan,
            fault,
            gate_ns=gate_ns,
            agents=agents,
            live=self._live,
            journal=self._journal,
            ledger=ledger,
            stop=self._stop,
            during=self._check_in,
            fires=not self.rehearses,
            before=before[-1] if before else None,
        )
        self._conductors.append(conductor)
        conductor.start()
        return conductor

    def _check_in(self, delay: float) -> None:
        """Check what must hold during a fault, ``delay`` seconds from now, without holding anybody up."""
        if any("during" in hold.when for hold in self._experiment.steady_state.hold):
            timer = threading.Timer(delay, lambda: self._check("during", max(int(delay * 1e9), 1)))
            timer.daemon = True
            timer.start()

    def _watch_recovery(self) -> None:
        """Wait until the throughput has been back for its hold period, or the patience is over."""
        if not self._plan.drawn:
            # A control: watch as long as a fault's recovery would be watched.
            self._stop.wait(self._experiment.score.hold)
            return
        self._phase("recovery")
        end = time.monotonic() + self._experiment.recover_within
        while time.monotonic() < end and not self._stop.wait(LOOK):
            if self._recovered():
                return

    def _recovered(self) -> bool:
        """Whether the throughput is back after every fault, and has stayed there for its hold period."""
        since = [conductor.told.effect_ns for conductor in self._conductors if conductor.told.effect_ns is not None]
        return outcome.recovered(self._experiment.score, self._live.events(), self._baseline, since)

    def _prove(self) -> None:
        """Let it settle, then check the hypothesis once more."""
        if self._stop.pulled:
            return
        self._phase("settle")
        if self._stop.wait(self._experiment.settle):
            return
        self._phase("after")
        self._check("after", AFTER_WINDOW_NS)

    # -- helpers -----------------------------------------------------------------------------------------------------

    def _check(self, when: str, window_ns: int) -> bool:
        """Check the hypothesis; a run that is to end does not wait for a probe that hangs."""
        results: list[dict[str, Any]] = []
        over = threading.Event()

        def evaluate() -> None:
            results.extend(self._hypothesis.evaluate(when, self._live.view(window_ns)))
            over.set()

        threading.Thread(target=evaluate, name=f"probes {when}", daemon=True).start()
        self._stop.on_pull(over.set)
        over.wait()
        found = list(results)
        for result in found:
            self._journal.write("probe", **{key: value for key, value in result.items() if key != "e"})
        self._watcher.probes(found)
        return all(result["ok"] for result in found)

    def _phase(self, name: str) -> None:
        self._journal.write("phase", phase=name)
        self._watcher.phase(name)

    def _complain(self, text: str) -> None:
        self._journal.write("error", text=text)


def preflight(plan: Plan) -> None:
    """What can be known before anything is started.

    Raises:
        InputError: the reference trainer's packages are missing.
    """
    if plan.experiment.workload.reference is None:
        return
    missing = [name for name in ("torch", "xxhash") if importlib.util.find_spec(name) is None]
    if missing:
        raise InputError(f"the reference trainer needs {' and '.join(missing)}: pip install 'cluster-chaos[lab]'")


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
