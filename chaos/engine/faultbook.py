"""What there is to know of each kind of fault, from its injector's own words: for the commands and for the docs."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from chaos import quantities
from chaos.engine.catalogue import danger_of, injectors
from chaos.engine.errors import InputError
from chaos.experiment.catalogue import GPU
from injectors.contract import Injector

GROUNDS = {"lab": "the lab", "node": "machines"}
REVERSALS = {
    "exact": "the former state is brought back",
    "self": "it ends by itself",
    "none": "it cannot be undone",
}
DURATIONS = {
    "required": "`for:` is needed",
    "optional": "`for:` depends on the parameters",
    "none": "it happens at an instant",
}
TARGETS = {
    "node": "{node: 0}",
    "gpu": "{node: 0, gpu: 1}",
    "rank": "{rank: 1}",
    "process": "{process: launcher}",
}


@dataclass(frozen=True)
class Parameter:
    """One parameter of a kind.

    Attributes:
        takes: what may be written, in words.
        default: as it would be written; None where it must be given, or where leaving it out says something of its own.
    """

    name: str
    takes: str
    required: bool
    default: str | None
    help: str


@dataclass(frozen=True)
class Kind:
    """One kind of fault.

    Attributes:
        where: its reality (``real``, ``emulated``, ``telemetry``) by where it can be made: ``lab``, ``node``.
        targets: what ``on:`` takes.
        example: a document that has it, as text.
    """

    kind: str
    about: str
    where: Mapping[str, str]
    reversal: str
    danger: str | None
    targets: tuple[str, ...]
    duration: str
    mechanism: str
    undoing: str
    proof: str
    witnessed: str
    parameters: tuple[Parameter, ...]
    example: str

    @property
    def grounds(self) -> str:
        """Where it can be made and what it is there, in words."""
        return ", ".join(f"{GROUNDS[where]} ({reality})" for where, reality in self.where.items())

    def as_json(self) -> dict[str, Any]:
        """For machines."""
        return asdict(self)


def kinds() -> list[Kind]:
    """All kinds that are installed.

    Raises:
        InputError: an injector of a site cannot be loaded.
    """
    return [_kind(made_by) for _, made_by in sorted(injectors().items())]


def find(name: str) -> Kind:
    """One kind.

    Raises:
        InputError: there is none of that name; says which is near.
    """
    from chaos.documents.errors import suggestion  # noqa: PLC0415 - for the error alone

    if name not in injectors():
        raise InputError(f"there is no fault {name!r}; {suggestion(name, injectors())}")
    return _kind(injectors()[name])


def _kind(made_by: type[Injector]) -> Kind:
    return Kind(
        kind=made_by.kind,
        about=made_by.about,
        where={str(ground): str(reality) for ground, reality in made_by.where.items()},
        reversal=made_by.reversal,
        danger=danger_of(made_by),
        targets=made_by.targets,
        duration=made_by.duration,
        mechanism=made_by.mechanism,
        undoing=made_by.undoing,
        proof=made_by.proof,
        witnessed=made_by.witnessed,
        parameters=tuple(_parameters(made_by.Params)),
        example=example(made_by),
    )


def example(made_by: type[Injector]) -> str:
    """A whole document with one fault of this kind."""
    if "lab" in made_by.where:
        head = "lab: {nodes: 2, gpus: 2, spare_nodes: 1}\nworkload: {reference: llama-bytes, recovery: peer}\n"
    else:
        head = "cluster: inventory.yaml\nworkload: {command: [torchrun, train.py]}\n"
    fault = {"inject": made_by.kind, "after": "2s", **made_by.example}
    if danger_of(made_by) is not None:
        fault["danger"] = "accepted"
    order = ("inject", "on", "with", "after", "for", "danger")
    lines = [f"    {key}: {fault[key]}" for key in order if key in fault]
    return f"experiment: example\n{head}faults:\n" + "\n".join(lines).replace("    ", "  - ", 1) + "\n"


def _parameters(params: type) -> list[Parameter]:
    hints = get_type_hints(params, include_extras=True)
    found = []
    for item in dataclasses.fields(params):
        optional, hint = _without_none(hints[item.name])
        required = item.default is dataclasses.MISSING and item.default_factory is dataclasses.MISSING
        value = item.default if item.default is not dataclasses.MISSING else None
        found.append(
            Parameter(
                name=item.metadata.get("name", item.name),
                takes=_takes(hint),
                required=required,
                default=None if required or (optional and value is None) else _written(hint, value),
                help=item.metadata.get("help", ""),
            )
        )
    return found


def _without_none(hint: Any) -> tuple[bool, Any]:
    if get_origin(hint) in (Union, types.UnionType):
        rest = [each for each in get_args(hint) if each is not type(None)]
        return len(rest) < len(get_args(hint)), rest[0]
    return False, hint


def _note(hint: Any) -> Any:
    notes = getattr(hint, "__metadata__", ())
    return next((note for note in notes if note in quantities.KINDS or note == GPU), None)


def _takes(hint: Any) -> str:
    note = _note(hint)
    if note == GPU:
        return "a GPU of the node, such as gpu0"
    if note is not None:
        return f"a {note}, such as {quantities.example(note)}"
    if get_origin(hint) is Annotated:
        hint = get_args(hint)[0]
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(str(each) for each in get_args(hint))
    if get_origin(hint) is list:
        return f"a list, each {_takes(get_args(hint)[0])}"
    return {str: "text", int: "a whole number", float: "a number", bool: "true or false"}[hint]


def _written(hint: Any, value: object) -> str:
    note = _note(hint)
    if note in quantities.KINDS and isinstance(value, (int, float)):
        return quantities.format(note, value)
    if isinstance(value, bool):
        return str(value).lower()
    return "[]" if value is None else str(value)


def page(kind: Kind) -> str:
    """A kind's page of the docs, in Markdown."""
    lines = [
        f"# {kind.kind}",
        "",
        kind.about,
        "",
        f"| | |\n|---|---|\n| Where | {kind.grounds} |",
        f"| Aimed at | {' or '.join(f'`on: {TARGETS[key]}`' for key in kind.targets) or 'nothing'} |",
        f"| Duration | {DURATIONS[kind.duration]} |",
        f"| Reversal | {kind.reversal}: {REVERSALS[kind.reversal]} |",
        f"| Danger | {kind.danger or 'none'}{'; `danger: accepted` is needed' if kind.danger else ''} |",
        "",
        "## How",
        "",
        f"**Made.** {kind.mechanism}",
        "",
        f"**Witnessed.** {kind.witnessed}",
        "",
        f"**Undone.** {kind.undoing}",
        "",
        f"**Proven gone.** {kind.proof}",
        "",
        "## Parameters",
        "",
    ]
    if kind.parameters:
        lines += ["| Name | Takes | Default | |", "|---|---|---|---|"]
        for each in kind.parameters:
            default = "required" if each.required else "" if each.default is None else f"`{each.default}`"
            lines.append(f"| `{each.name}` | {each.takes} | {default} | {each.help} |".replace("\n", " "))
    else:
        lines.append("None.")
    lines += ["", "## Example", "", "```yaml", kind.example.rstrip(), "```", ""]
    return "\n".join(lines)


def index(every: list[Kind]) -> str:
    """The docs' list of all kinds, in Markdown."""
    rows = [
        f"| [{kind.kind}]({kind.kind}.md) | {kind.about} | {kind.grounds} | {kind.reversal} | {kind.danger or ''} |"
        for kind in every
    ]
    head = [
        "# Faults",
        "",
        "Made by `make docs` from what `chaos faults` shows. A fault is *real* where the hardware or the kernel does",
        "it, *emulated* where something stands in for hardware that is absent.",
        "",
        "| Kind | What | Where | Reversal | Danger |",
        "|---|---|---|---|---|",
    ]
    return "\n".join([*head, *rows, ""])
