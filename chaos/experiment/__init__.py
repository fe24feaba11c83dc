"""The experiment: a YAML document read strictly into a frozen model.

``load`` (a file) and ``loads`` (text) give an ``Experiment`` with SI numbers inside, or raise ``DocumentErrors`` with
everything that is wrong, each problem with its line and column and with what would be right. Injectors and probes are
known only through the ``Catalogue`` that the caller brings. ``json_schema`` is the same for editors.
"""

from __future__ import annotations

import pathlib
from collections.abc import Mapping

from chaos.documents.errors import DocumentErrors, Problem
from chaos.documents.nodes import locate, plain
from chaos.documents.reader import Form, compose, read
from chaos.experiment.catalogue import Catalogue, InjectorInfo, ProbeInfo
from chaos.experiment.check import check
from chaos.experiment.model import (
    Condition,
    Experiment,
    Fault,
    Guards,
    Hold,
    LabSpec,
    Occurrence,
    Place,
    Score,
    SteadyState,
    StopIf,
    Target,
    Workload,
)
from chaos.experiment.named import Nodes, Resolver
from chaos.experiment.schema import json_schema

__all__ = [
    "Catalogue",
    "Condition",
    "DocumentErrors",
    "Experiment",
    "Fault",
    "Guards",
    "Hold",
    "InjectorInfo",
    "LabSpec",
    "Nodes",
    "Occurrence",
    "Place",
    "ProbeInfo",
    "Problem",
    "Resolver",
    "Score",
    "SteadyState",
    "StopIf",
    "Target",
    "Workload",
    "json_schema",
    "load",
    "loads",
    "read",
]


_FORM = Form("one experiment", "experiment: NAME")


def load(
    path: str | pathlib.Path,
    catalogue: Catalogue,
    environ: Mapping[str, str],
    clusters: Resolver | None = None,
) -> Experiment:
    """The experiment in a file. Raises ``DocumentErrors``.

    Args:
        environ: where its variables come from.
        clusters: finds the nodes of a cluster that is no lab.
    """
    return loads(read(path), catalogue, environ, file=str(path), clusters=clusters)


def loads(
    text: str,
    catalogue: Catalogue,
    environ: Mapping[str, str],
    *,
    file: str = "<text>",
    clusters: Resolver | None = None,
) -> Experiment:
    """The experiment in a text; ``file`` is what problems call it, the rest is as for ``load``."""
    document = compose(text, file, environ, _FORM)
    values = plain(document.root)
    assert isinstance(values, dict)
    experiment, findings = check(values, catalogue, clusters)
    told = list(document.problems)
    for finding in findings:
        mark = locate(document.root, finding.path, at_key=finding.at_key)
        if mark not in document.unread:
            told.append((mark, finding.message))
    if told or experiment is None:
        raise DocumentErrors(
            Problem(file, mark.line, mark.column, document.variables.redact(message)) for mark, message in told
        )
    return experiment
