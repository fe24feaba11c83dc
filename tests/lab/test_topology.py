"""Sizes, places and names in a lab."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.lab import topology
from chaos.lab.topology import LabSpec, parse_target


@pytest.mark.parametrize(
    ("nodes", "gpus", "spares"), [(0, 1, 0), (-1, 1, 3), (1, 0, 0), (1, 65, 0), (1, 1, -1), (200, 1, 1), (201, 1, 0)]
)
def test_a_size_out_of_range_is_refused_with_the_range(nodes: int, gpus: int, spares: int) -> None:
    with pytest.raises(ValueError, match=r"1 to \d+ are possible|1 to 200 nodes are possible"):
        LabSpec(nodes, gpus, spares)


@pytest.mark.parametrize(("nodes", "gpus", "spares"), [(1, 1, 0), (200, 64, 0), (1, 1, 199)])
def test_the_ends_of_the_range_belong_to_it(nodes: int, gpus: int, spares: int) -> None:
    spec = LabSpec(nodes, gpus, spares)
    assert LabSpec(**spec.as_dict()) == spec
    assert spec.world == nodes * gpus
    assert len(spec.all_nodes) == nodes + spares


@given(st.integers(1, 20), st.integers(1, 16))
def test_ranks_are_numbered_node_by_node_and_never_share_a_gpu(nodes: int, gpus: int) -> None:
    spec = LabSpec(nodes, gpus, spare_nodes=1)
    places = [spec.place(rank) for rank in range(spec.world)]
    assert places == [(node, gpu) for node in range(nodes) for gpu in range(gpus)]
    assert not any(spec.is_spare(node) for node, _ in places)
    assert spec.is_spare(nodes)


def test_every_address_of_the_largest_lab_is_its_own() -> None:
    spec = LabSpec(topology.MAX_NODES, topology.MAX_GPUS)
    found = [topology.HEAD_ADDRESS]
    for node in spec.all_nodes:
        found += [topology.rail_address(node), topology.management_address(node)]
        for gpu in range(spec.gpus):
            found += [topology.nvlink_address(node, gpu), topology.pcie_address(node, gpu)]
    assert len(set(found)) == len(found)
    assert all(0 < int(part) < 255 for address in found for part in address.split(".")[3:])


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("0", (0, None)),
        ("node2", (2, None)),
        ("1:1", (1, 1)),
        ("node1:gpu0", (1, 0)),
        ("1:gpu1", (1, 1)),
        ("head", (None, None)),
    ],
)
def test_a_target_is_read_as_people_type_it(text: str, place: tuple[int | None, int | None]) -> None:
    assert parse_target(text, LabSpec(2, 2, 1)) == place


@pytest.mark.parametrize("text", ["", "x", "-1", "1:", ":0", "gpu0", "node1:0:0", "1 ", "1.0"])
def test_what_names_no_node_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(ValueError, match="names no node: NODE or NODE:GPU is expected, such as 0, node1 or 1:0"):
        parse_target(text, LabSpec(2, 2))


def test_a_place_that_this_lab_lacks_is_refused_with_those_it_has() -> None:
    spec = LabSpec(2, 2, 1)
    with pytest.raises(ValueError, match="there is no node 3: this lab has nodes 0 to 2"):
        parse_target("3", spec)
    with pytest.raises(ValueError, match="there is no GPU 2 on node 1: it has GPUs 0 to 1"):
        parse_target("1:2", spec)
    with pytest.raises(ValueError, match="there is no GPU -1 on node 1"):
        spec.check(1, -1)
