"""What every injector that is installed keeps to, ours and a site's."""

from __future__ import annotations

import dataclasses
import inspect
import json
import typing

import pytest

from chaos.engine import catalogue
from injectors.contract import RECORD_VERSION, Injector, InjectorError, Order, Support, Target, TargetKey, UndoRecord

INJECTORS = catalogue.injectors()
EACH = pytest.mark.parametrize("made_by", INJECTORS.values(), ids=list(INJECTORS))
EXAMPLES = {
    "fabric.blackhole": {"source": "gpu0", "to": "gpu1"},
    "pcie.throttle": {"rate": 20e6},
    "process.limit": {"cpu": 0.25},
    "process.oom": {},
    "process.signal": {"signal": "STOP"},
    "power.off": {},
}


def test_ours_are_installed() -> None:
    assert set(INJECTORS) >= set(EXAMPLES)


@EACH
def test_it_says_what_it_is(made_by: type[Injector]) -> None:
    assert INJECTORS[made_by.kind] is made_by
    for told in (made_by.about, made_by.mechanism, made_by.undoing, made_by.proof):
        assert told.endswith(".") and told[0].isupper()
    assert made_by.reversal in ("exact", "self", "none")
    assert made_by.duration in ("required", "optional", "none")
    assert made_by.runs_on in ("node", "controller")
    assert made_by.targets
    assert set(made_by.targets) <= set(typing.get_args(TargetKey))


@EACH
def test_its_parameters_are_a_dataclass_whose_annotations_can_be_read(made_by: type[Injector]) -> None:
    assert dataclasses.is_dataclass(made_by.Params)
    hints = typing.get_type_hints(made_by.Params, include_extras=True)
    for field in dataclasses.fields(made_by.Params):
        assert field.name in hints
        assert field.metadata.get("help"), f"{field.name} has no help"


@EACH
def test_it_has_every_call_of_the_contract_with_its_parameters(made_by: type[Injector]) -> None:
    for name, call in inspect.getmembers(Injector, inspect.isfunction):
        if not name.startswith("_"):
            assert list(inspect.signature(getattr(made_by, name)).parameters) == list(
                inspect.signature(call).parameters
            )
    made_by()  # an agent makes it without arguments


@EACH
def test_the_catalogue_that_documents_see_is_the_same(made_by: type[Injector]) -> None:
    info = catalogue.catalogue().injectors[made_by.kind]
    assert (info.params, info.reversal, info.duration) == (made_by.Params, made_by.reversal, made_by.duration)


@pytest.mark.parametrize("kind", sorted(EXAMPLES))
def test_a_record_survives_json(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made_by = INJECTORS[kind]
    monkeypatch.setattr(made_by, "devices", lambda self, order: ("a device",))  # the real ones look at the node
    order = Order("f1", made_by.Params(**EXAMPLES[kind]), Target(node=0, namespaces={"gpu0": "/proc/1/fd/5"}), 0.5)
    record = UndoRecord.of(made_by(), order, {"former": [1, "two", None]})
    again = UndoRecord.from_dict(json.loads(json.dumps(record.as_dict())))
    assert again == record
    assert again.devices == ["a device"]
    assert again.implementation == catalogue.implementation(kind)
    assert made_by.Params(**again.params) == order.params
    assert Target(**again.target) == order.target


@pytest.mark.parametrize("version", [None, 0, "1", True])
def test_what_has_no_version_is_no_record(version: object) -> None:
    with pytest.raises(InjectorError, match="this is no undo record: it has no version"):
        UndoRecord.from_dict({"version": version})


def test_a_record_of_a_newer_version_is_refused_and_says_who_wrote_it() -> None:
    told = rf"version {RECORD_VERSION + 1} \(written by agent 9\.1\), this program reads up to {RECORD_VERSION}"
    with pytest.raises(InjectorError, match=told):
        UndoRecord.from_dict({"version": RECORD_VERSION + 1, "agent": "9.1"})


def test_what_is_no_record_is_refused() -> None:
    with pytest.raises(InjectorError, match=r"this is no undo record: .*'fault'"):
        UndoRecord.from_dict({"version": RECORD_VERSION})
    with pytest.raises(InjectorError, match=r"this is no undo record: .*surprise"):
        UndoRecord.from_dict({"version": RECORD_VERSION, "surprise": 1})


def test_possible_is_what_misses_nothing() -> None:
    assert Support("real").possible
    assert not Support("real", ("a thing: its remedy",)).possible
