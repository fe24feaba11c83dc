"""What a journal says, read once into typed pieces; what is torn or missing is `None` or empty, never an exception."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from chaos.scoring.fields import Event, flag, integer, mapping, number, objects, text, texts
from chaos.scoring.rto import Terms


@dataclass
class FaultRecord:
    """One fault: what was planned, and what its node reported. Instants are ns, None where nothing was reported.

    `witness` holds the witness event of each phase (before, during, after); `proven` is the proof that nothing is left
    where it came from elsewhere than the agent that held the fault.
    """

    id: str
    plan: Event
    reality: str | None = None
    scheduled: int | None = None
    effect: int | None = None
    end_scheduled: int | None = None
    ended: int | None = None
    undone: bool = False
    residue: list[str] = field(default_factory=list)
    error: str | None = None
    skipped: str | None = None
    promised: bool = False
    armed: bool = False
    proven: str | None = None
    unproven: str | None = None
    witness: dict[str, Event] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The name in the document."""
        return text(self.plan, "name") or self.id

    @property
    def drawn(self) -> bool:
        """Whether chance let it happen."""
        return flag(self.plan, "drawn") is not False

    @property
    def effective(self) -> bool | None:
        """Whether it was witnessed in effect."""
        return flag(self.witness.get("during", {}), "effective")

    @property
    def gone(self) -> bool | None:
        """Whether it was witnessed gone."""
        seen = flag(self.witness.get("after", {}), "effective")
        return None if seen is None else not seen

    @property
    def open(self) -> bool:
        """Whether something of it may be left."""
        if self.proven is not None:
            return False
        return bool(self.residue) or ((self.promised or self.armed) and not self.undone)

    @property
    def last(self) -> int | None:
        """The instant from which it was over: its end, or its effect where it had no end to make."""
        return self.effect if self.ended is None else self.ended


@dataclass(frozen=True)
class Marks:
    """The pass marks of an experiment, in seconds and ratios."""

    rto_s: float
    consistency: float
    required: str
    terms: Terms


@dataclass
class Record:
    """A run's journal. `last` is its last instant, `stopped` the one at which the workload began to be ended (ns)."""

    head: Event
    plan: Event
    faults: list[FaultRecord]
    probes: list[Event]
    baseline: tuple[int, int] | None
    clock_uncertainty: int
    errors: list[str]
    halts: list[str]
    findings: list[Event]
    end: Event | None
    last: int
    stopped: int | None = None

    @property
    def experiment(self) -> Event:
        """The experiment, in SI, by attribute names."""
        return mapping(self.plan, "experiment")

    @property
    def until(self) -> int:
        """The end of observation (ns)."""
        return self.last if self.stopped is None else self.stopped

    @property
    def reason(self) -> str | None:
        """Why the run ended; None where the journal is cut."""
        return None if self.end is None else text(self.end, "reason")

    @property
    def marks(self) -> Marks:
        """The pass marks, with the defaults of the document for what is missing."""
        score = mapping(self.experiment, "score")
        defaults = Terms()
        terms = Terms(
            recovered_at=_given(score, "recovered_at", defaults.recovered_at),
            hold_s=_given(score, "hold", defaults.hold_s),
        )
        return Marks(
            _given(score, "rto", 0.8), _given(score, "consistency", 0.9999), text(score, "require") or "", terms
        )


def _given(event: Event, key: str, default: float) -> float:
    value = number(event, key)
    return default if value is None else value


def read(journal: Sequence[Event]) -> Record:
    """Read a journal."""
    record = Record({}, {}, [], [], None, 0, [], [], [], None, 0)
    faults: dict[str, FaultRecord] = {}
    for event in journal:
        record.last = max(record.last, integer(event, "t") or 0)
        match text(event, "e"):
            case "journal":
                record.head = event
            case "plan":
                record.plan = event
                for planned in objects(event, "faults"):
                    key = text(planned, "id") or ""
                    faults[key] = FaultRecord(key, planned, reality=text(planned, "reality"))
            case "baseline":
                first, last = integer(event, "from_ns"), integer(event, "to_ns")
                record.baseline = None if first is None or last is None else (first, last)
            case "clock":
                record.clock_uncertainty = integer(event, "uncertainty_ns") or 0
            case "probe":
                record.probes.append(event)
            case "fault":
                key = text(event, "id") or ""
                _read_fault(faults.setdefault(key, FaultRecord(key, {})), event)
            case "error":
                record.errors.append(text(event, "text") or "an error without a text")
            case "halt" | "guard":
                record.halts.append(text(event, "text") or "stopped without a reason")
            case "finding":
                record.findings.append(event)
            case "end":
                record.end = event
            case "phase" if text(event, "phase") == "stop":
                record.stopped = integer(event, "t")
    record.faults = list(faults.values())
    return record


def _read_fault(fault: FaultRecord, event: Event) -> None:
    match text(event, "what"):
        case "possible":
            fault.reality = text(event, "reality")
        case "promised":
            fault.promised = True
        case "armed":
            fault.armed = True
        case "fired":
            fault.scheduled, fault.effect = integer(event, "scheduled_ns"), integer(event, "effect_ns")
        case "witness":
            fault.witness[text(event, "phase") or ""] = event
        case "ended":
            fault.end_scheduled, fault.ended = integer(event, "scheduled_ns"), integer(event, "ended_ns")
        case "undone":
            fault.undone, fault.residue = True, texts(event, "residue")
        case "proven":
            fault.proven = text(event, "text") or "proven without a word"
        case "unproven":
            fault.unproven = text(event, "why") or "no proof came"
        case "failed":
            fault.error = text(event, "error") or "failed without a reason"
        case "skipped":
            fault.skipped = text(event, "why") or "skipped"


def probes_of(record: Record, when: str) -> list[Mapping[str, object]]:
    """The results of the hypothesis in one phase."""
    return [probe for probe in record.probes if probe.get("when") == when]
