"""The experiment as a model: SI numbers inside, frozen, nothing unknown.

Where a document spells a field differently (``experiment``, ``with``, ``for``) the alias says so. Built from Python,
the models take the attribute names and SI numbers; ``Experiment.model_validate(experiment.model_dump(mode="json"))``
gives the same experiment back.
"""

from __future__ import annotations

import math
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from chaos.documents.model import Model
from chaos.experiment.base import as_list
from chaos.experiment.fields import (
    Count,
    Name,
    Numbers,
    Pick,
    Positive,
    Seconds,
    SecondsAboveZero,
    Seed,
    Share,
    ShareAboveZero,
    Times,
)
from chaos.experiment.windows import Window
from chaos.quantities import format as show

When = Literal["before", "during", "after"]


class LabSpec(Model):
    """The emulated cluster that is made for the run."""

    nodes: Positive
    """Nodes that the job runs on."""
    gpus: Positive
    """GPUs a node; one rank each."""
    spare_nodes: Count = 0
    """Nodes beyond these, kept ready to take over. They are numbered after the others."""

    @property
    def all_nodes(self) -> int:
        """Nodes in the lab, spare ones included."""
        return self.nodes + self.spare_nodes

    @property
    def ranks(self) -> int:
        """Ranks of the job. Rank = node * gpus + gpu."""
        return self.nodes * self.gpus


def _several(value: object) -> object:
    """A single text where a list of them may stand; an empty list says nothing."""
    if value == []:
        raise ValueError("found an empty list; write at least one node, or leave 'nodes' out")
    return [value] if isinstance(value, str) else value


def _absolute(value: str) -> str:
    if not value.startswith("/"):
        raise ValueError(f"found {value!r}; write an absolute path, since it is one on the nodes")
    return value


class Attach(Model):
    """Where a job that runs already is observed. It is neither started nor stopped."""

    events: Annotated[str, AfterValidator(_absolute)]
    """The folder, the same on every node, into which its processes write their step events."""


class Workload(Model):
    """The training job: the built-in reference trainer, a command, or a job that runs already."""

    reference: Literal["llama-bytes"] | None = None
    """The built-in trainer: a small LLaMA-style model over bytes of text."""
    command: Annotated[list[str], Field(min_length=1)] | None = None
    """Any job, as a list of arguments; no shell reads it."""
    attach: Attach | None = None
    """A job that runs already on the nodes, and tells of its steps."""
    nodes: Annotated[list[str] | None, BeforeValidator(_several)] = None
    """Which nodes of an inventory the job runs on, by name, range, label or group; all if it is not given."""
    ranks_per_node: Positive | None = None
    """Ranks that the job has on each node; as many as it has GPUs if it is not given."""
    recovery: Literal["none", "restart", "checkpoint", "peer"] = "none"
    """How the job comes back: not at all, restarted from a checkpoint, in place from one, or from a living replica."""
    step: SecondsAboveZero | None = None
    """Paces the reference trainer to one step in this time, so that a busy machine's steps are even."""
    checkpoint_every: Positive = 50
    """Steps between two checkpoints of the reference trainer."""
    hash_every: Positive = 1
    """Steps between two hashes of a replica's parameters."""
    seed: Seed | None = None
    """Seed of the data order and the parameters."""
    starts_within: SecondsAboveZero = 60.0
    """How long the job may take until every rank has completed a step."""

    @property
    def without_launcher(self) -> str | None:
        """Why the job has no launcher that a fault could be aimed at; None where it has one."""
        if self.reference is None:
            return "what launches a job that is not ours is not known"
        if self.recovery == "restart":
            return "a job with recovery restart has none (torchrun on every node starts its ranks)"
        return None

    @model_validator(mode="after")
    def _one_job(self) -> Workload:
        jobs = [name for name in ("reference", "command", "attach") if getattr(self, name) is not None]
        if len(jobs) != 1:
            found = " and ".join(jobs) if jobs else "none"
            raise ValueError(f"found {found} of 'reference', 'command' and 'attach'; write one of them")
        theirs, whose = (
            (("nodes", "ranks_per_node"), "a job on an inventory's nodes")
            if self.reference
            else (("step", "checkpoint_every"), "the reference trainer")
        )
        # By value, since a run's own record of it names every field.
        unused = [name for name in theirs if getattr(self, name) != type(self).model_fields[name].default]
        if unused:
            raise ValueError(
                f"found {' and '.join(unused)} beside '{jobs[0]}'; "
                f"only {whose} has {'it' if len(unused) == 1 else 'them'}"
            )
        return self


class Condition(Model):
    """A probe with a tolerance. In a document the tolerance and the probe's parameters stand beside ``probe``."""

    probe: str
    """What is measured."""
    params: dict[str, Any] = Field(default_factory=dict)
    """The probe's parameters, in SI, by the names of its ``Params`` fields, none left out."""
    tolerance: dict[str, Any]
    """One entry: at_least, at_most, between, is, one_of or matches, with its operand in SI."""
    of: Literal["baseline"] | None = None
    """The tolerance is a ratio of what the probe measured during the baseline."""
    timeout: SecondsAboveZero = 2.0
    """A probe that takes longer has failed."""


class Hold(Condition):
    """A condition of the steady state."""

    when: Annotated[list[When], Field(min_length=1)] = Field(default_factory=lambda: list[When](("before", "after")))
    """When it must hold."""


class SteadyState(Model):
    """The hypothesis: what holds while the job is well."""

    baseline: Seconds = 5.0
    """How long the undisturbed job is measured before anything is done to it."""
    hold: list[Hold] = Field(default_factory=list)
    """What must hold."""


class Target(Model):
    """What a fault is aimed at: one, several (a list) or all. Nodes and GPUs count from 0; rank = node * gpus + gpu."""

    node: Numbers | None = None
    """Nodes; spare nodes come after the others, and ``all`` are those that the job runs on."""
    gpu: Numbers | None = None
    """GPUs of each of those nodes."""
    rank: Numbers | None = None
    """Ranks of the job."""
    process: Literal["launcher"] | None = None
    """A process of the job that is no rank: its launcher, which decides who is a member. It is on no node."""


class Place(Target):
    """A single target."""

    node: Count | None = None
    """A node."""
    gpu: Count | None = None
    """A GPU of that node."""
    rank: Count | None = None
    """A rank of the job."""


class Fault(Model):
    """One thing that is broken, for a bounded time, once or several times, at one target or at several."""

    name: Name
    """Names the fault in the journal and the scorecard; by default its kind with a number."""
    inject: str
    """The kind of fault."""
    on: Target = Target()
    """What it is aimed at: all of it at the same instant, unless ``pick`` says otherwise."""
    with_: dict[str, Any] = Field(default_factory=dict, alias="with")
    """The injector's parameters, in SI, by the names of its ``Params`` fields, none left out."""
    after: Seconds
    """When it starts, from the end of the steady-state gate."""
    for_: SecondsAboveZero | None = Field(default=None, alias="for")
    """How long it lasts, from its witnessed effect."""
    probability: Share = 1.0
    """How likely each occurrence is to happen at all, drawn from the seed."""
    every: SecondsAboveZero | None = None
    """From the start of one occurrence to the start of the next, where there are several."""
    times: Times | None = None
    """How many occurrences there are."""
    jitter: Seconds = 0.0
    """Each occurrence starts up to so much later, drawn evenly from the seed."""
    danger: Literal["accepted"] | None = None
    """``accepted`` where the kind may destroy something for good: `chaos faults KIND` says what."""
    pick: Pick | None = None
    """How many of the targets are hit (``one``, a number, a share), drawn from the seed for each occurrence."""

    @model_validator(mode="after")
    def _repeats(self) -> Fault:
        if (self.every is None) != (self.times is None):
            found, lacks = ("every", "times") if self.times is None else ("times", "every")
            raise ValueError(f"found '{found}' without '{lacks}'; write both, such as every: 2s, times: 5")
        longest = (self.for_ or 0.0) + self.jitter
        if self.every is not None and self.every <= longest:
            raise ValueError(
                f"found every {show('duration', self.every)}, but an occurrence may take until "
                f"{show('duration', round(longest, 9))} later ('for' and 'jitter'); write more than that"
            )
        return self

    def number_of(self, targets: int) -> int:
        """How many of so many targets an occurrence hits; a share is rounded to the nearest, and is at least one."""
        if self.pick is None:
            return targets
        return self.pick if isinstance(self.pick, int) else max(1, math.floor(self.pick * targets + 0.5))


class Occurrence(Fault):
    """One occurrence of a fault at one of its targets, as it was drawn: ``after`` is the drawn instant."""

    name: str
    """The fault's name, which occurrence it is, and at which target: ``kill@2/rank3``."""
    on: Place = Place()
    """What it is aimed at."""

    @property
    def end(self) -> float:
        """When it is over (s from the gate)."""
        return self.after + (self.for_ or 0.0)


class StopIf(Condition):
    """A condition that ends the run: everything is undone at once."""

    for_: Seconds = Field(default=0.0, alias="for")
    """How long the condition must hold without a break."""


class Protect(Model):
    """What no fault may touch."""

    nodes: list[Count] = Field(default_factory=list)
    """Nodes by number."""
    labels: list[str] = Field(default_factory=list)
    """Nodes by label. In the lab each has one: ``job`` or ``spare``."""


class Guards(Model):
    """Limits that a run never passes."""

    nodes_at_most: Count | None = None
    """The most nodes that the faults of this experiment may touch between them."""
    devices_at_most: Count | None = None
    """The most GPUs that they may touch. A rank counts as its GPU, a node as all of its GPUs."""
    share_at_most: Share | None = None
    """The largest share of the job's nodes that they may touch."""
    at_once_at_most: Count | None = None
    """The most faults that may be in effect at the same time."""
    protect: Protect = Protect()
    """What no fault may touch."""
    allowed: Annotated[list[Window], BeforeValidator(as_list)] = Field(default_factory=list)
    """When faults may be made: the run begins in one of these windows, and its last fault ends in the same one."""
    stop_if: Annotated[list[StopIf], BeforeValidator(as_list)] = Field(default_factory=list)
    """Conditions that end the run. A single one needs no list."""


class Score(Model):
    """The pass marks."""

    rto: SecondsAboveZero = 0.8
    """From the fault to recovered throughput."""
    recovered_at: ShareAboveZero = 0.95
    """The share of the baseline's throughput that counts as recovered."""
    consistency: Share = 0.9999
    """The share of replica hashes that must agree across ranks."""
    hold: Seconds = 2.0
    """How long the throughput must stay recovered."""
    require: Literal["observed", "demonstrated"] = "observed"
    """The evidence that a pass needs: one run, or enough runs for a 95 % bound."""


class Experiment(Model):
    """One experiment: what runs, what must hold, what is broken, and what is a pass."""

    name: Name = Field(alias="experiment")
    """Names the experiment and its runs."""
    about: str = ""
    """One sentence for the reader of a scorecard."""
    cluster: Annotated[str, Field(min_length=1)] = "lab"
    """``lab`` (an emulated cluster, made for the run), or the path of an inventory."""
    lab: LabSpec | None = None
    """The size of the emulated cluster."""
    workload: Workload
    """The training job."""
    steady_state: SteadyState = SteadyState()
    """What holds while the job is well."""
    faults: list[Fault] = Field(default_factory=list)
    """What is broken. Without any the run is a control."""
    guards: Guards = Guards()
    """Limits that the run never passes."""
    score: Score = Score()
    """The pass marks."""
    settle: Seconds = 1.0
    """How long the run goes on after everything has recovered."""
    at_most: SecondsAboveZero = 120.0
    """Bounds the whole run."""
    recover_within: SecondsAboveZero = 10.0
    """How long to wait for recovery after the last fault."""
    seed: Seed | None = None
    """Seed of every random choice; drawn and recorded if it is not given."""
