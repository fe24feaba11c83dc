"""The experiment as a model: SI numbers inside, frozen, nothing unknown.

Where a document spells a field differently (``experiment``, ``with``, ``for``) the alias says so. Built from Python,
the models take the attribute names and SI numbers; ``Experiment.model_validate(experiment.model_dump(mode="json"))``
gives the same experiment back.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from chaos.experiment.fields import (
    Count,
    Name,
    Positive,
    Seconds,
    SecondsAboveZero,
    Seed,
    Share,
    ShareAboveZero,
)

When = Literal["before", "during", "after"]


class Model(BaseModel):
    """What all parts of an experiment have in common."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        validate_by_name=True,
        validate_by_alias=True,
        use_attribute_docstrings=True,
    )


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


def _no_attach(value: object) -> None:
    if value is not None:
        raise ValueError("found 'attach', which this version cannot do; write 'reference' or 'command'")


class Workload(Model):
    """The training job: the built-in reference trainer, or a command."""

    reference: Literal["llama-bytes"] | None = None
    """The built-in trainer: a small LLaMA-style model over bytes of text."""
    command: Annotated[list[str], Field(min_length=1)] | None = None
    """Any job, as a list of arguments; no shell reads it."""
    attach: Annotated[None, BeforeValidator(_no_attach), Field(exclude=True)] = None
    """A job that already runs: not in this version."""
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

    @property
    def without_launcher(self) -> str | None:
        """Why the job has no launcher that a fault could be aimed at; None where it has one."""
        if self.command is not None:
            return "what launches a command is not known"
        if self.recovery == "restart":
            return "a job with recovery restart has none (torchrun on every node starts its ranks)"
        return None

    @model_validator(mode="after")
    def _one_job(self) -> Workload:
        if (self.reference is None) == (self.command is None):
            found = "neither" if self.reference is None else "both"
            raise ValueError(f"found {found} of 'reference' and 'command'; write one of them")
        unused = {"step", "checkpoint_every"} & self.model_fields_set if self.command else ()
        if unused:
            raise ValueError(
                f"found {' and '.join(sorted(unused))} beside 'command'; only the reference trainer has them"
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

    when: Annotated[list[When], Field(min_length=1)] = ["before", "after"]
    """When it must hold."""


class SteadyState(Model):
    """The hypothesis: what holds while the job is well."""

    baseline: Seconds = 5.0
    """How long the undisturbed job is measured before anything is done to it."""
    hold: list[Hold] = []
    """What must hold."""


class Target(Model):
    """What a fault is aimed at. Nodes and GPUs count from 0; rank = node * gpus + gpu."""

    node: Count | None = None
    """A node; spare nodes come after the others."""
    gpu: Count | None = None
    """A GPU of that node."""
    rank: Count | None = None
    """A rank of the job."""
    process: Literal["launcher"] | None = None
    """A process of the job that is no rank: its launcher, which decides who is a member. It is on no node."""


class Fault(Model):
    """One thing that is broken, for a bounded time."""

    name: Name
    """Names the fault in the journal and the scorecard; by default its kind with a number."""
    inject: str
    """The kind of fault."""
    on: Target = Target()
    """What it is aimed at."""
    with_: dict[str, Any] = Field(default_factory=dict, alias="with")
    """The injector's parameters, in SI, by the names of its ``Params`` fields, none left out."""
    after: Seconds
    """When it starts, from the end of the steady-state gate."""
    for_: SecondsAboveZero | None = Field(default=None, alias="for")
    """How long it lasts, from its witnessed effect."""
    probability: Share = 1.0
    """How likely it is to happen at all, drawn from the seed."""


class StopIf(Condition):
    """A condition that ends the run: everything is undone at once."""

    for_: Seconds = Field(default=0.0, alias="for")
    """How long the condition must hold without a break."""


def _as_list(value: object) -> object:
    return [value] if isinstance(value, dict) else value


class Guards(Model):
    """Limits that a run never passes."""

    nodes_at_most: Count | None = None
    """The most nodes that the faults of this experiment may touch between them."""
    stop_if: Annotated[list[StopIf], BeforeValidator(_as_list)] = []
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
    faults: list[Fault] = []
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
