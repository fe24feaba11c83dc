"""Reads documents with all that they may name: injectors, probes, and the nodes of an inventory.

Only a document about machines loads what reads inventories and reaches nodes: it takes longer than everything else.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from chaos.engine.catalogue import catalogue
from chaos.engine.site import Site
from chaos.experiment import Experiment, LabSpec, Nodes, load
from chaos.lab.topology import MAX_GPUS, MAX_NODES


def read(path: Path) -> tuple[Experiment, Site | None]:
    """The experiment in a file, and the machines that it is about; None for a lab. Raises ``DocumentErrors``."""
    site: Site | None = None

    def nodes(cluster: str, workload: Mapping[str, Any]) -> Nodes:
        from chaos.engine import inventories  # noqa: PLC0415 - see above

        nonlocal site
        found, site = inventories.resolve(path, cluster, workload)
        return found

    experiment = load(path, catalogue(), os.environ, nodes)
    return experiment, site


def outline(path: Path) -> Experiment:
    """The same for a list of experiments: the nodes of an inventory, which may not be here, are taken for granted."""
    return load(path, catalogue(), os.environ, anywhere)


def anywhere(cluster: str, _workload: Mapping[str, Any]) -> Nodes:
    """Nodes for a document whose cluster does not matter: there are as many as can be, and any name will do."""
    return Nodes(cluster, (), LabSpec(nodes=MAX_NODES, gpus=MAX_GPUS), lambda _: [0])


def site_of(experiment: Experiment) -> Site | None:
    """The machines on which a recorded experiment runs, in the order in which it numbers them; None for a lab.

    Raises:
        InputError: they cannot be told any more.
    """
    if experiment.cluster == "lab":
        return None
    from chaos.engine import inventories  # noqa: PLC0415 - see above

    return inventories.site_of(experiment)
