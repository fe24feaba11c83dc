"""`chaos doctor`: what this machine lacks, each with its remedy; the lab; and the nodes of an inventory over SSH."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from cli_help import chaos
from sshd import Sshd, keygen, needs_sshd

from chaos.agent.examine import examine
from chaos.engine.catalogue import injectors


def doctor(*words: str) -> subprocess.CompletedProcess[str]:
    return chaos("doctor", *words)


def told(*words: str) -> list[dict[str, Any]]:
    nodes: list[dict[str, Any]] = json.loads(doctor(*words, "--json").stdout)["nodes"]
    return nodes


@pytest.mark.lab
def test_every_kind_is_possible_here_or_in_the_lab_or_says_what_is_missing() -> None:
    machine, lab = told()
    assert {each["kind"] for each in machine["faults"]} == {
        k for k, made in injectors().items() if "node" in made.where
    }
    assert {each["kind"] for each in lab["faults"]} == {k for k, made in injectors().items() if "lab" in made.where}
    in_lab = {each["kind"]: each for each in lab["faults"]}
    for kind in ("fabric.blackhole", "pcie.throttle", "power.off", "process.signal"):
        assert in_lab[kind]["missing"] == [], "the shipped experiments have it"
    assert in_lab["power.off"]["reality"] == "emulated"


def test_whatever_is_missing_has_a_remedy_and_nothing_stays() -> None:
    links = sorted(Path("/sys/class/net").iterdir())
    checks = {each["name"]: each for each in examine()}
    for each in checks.values():
        assert each["found"]
        assert (each["remedy"] is None) == each["ok"], each
    assert {"netem qdisc", "tbf qdisc", "ifb interface", "nftables", "RDMA", "IPMI from inside", "PCI"} <= set(checks)
    assert sorted(Path("/sys/class/net").iterdir()) == links


def test_what_the_kernel_has_is_tried_and_not_guessed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A program in the way is found out by its absence of effect: tools are found by PATH, kernel features are not."""
    monkeypatch.setenv("PATH", str(tmp_path))
    checks = {each["name"]: each for each in examine()}
    assert not checks["tool tc"]["ok"]
    if os.geteuid() == 0:
        assert checks["veth interface"]["ok"]
        assert checks["nftables"]["ok"]


def test_the_page_for_people_names_the_remedy() -> None:
    page = doctor()
    missing = [each for each in examine() if not each["ok"]]
    for each in missing:
        assert each["name"] in page.stdout
    assert "Traceback" not in page.stdout
    assert page.returncode == (0 if all(each["well"] for each in told()) else 1)


def test_node_without_cluster_is_told() -> None:
    assert doctor("--node", "a").returncode == 2


INVENTORY = """
inventory: two
defaults: {{user: root, key: {key}, python: {python}, known_hosts: [{known}]}}
nodes:
  alpha: {{address: 127.0.0.1, port: {port}}}
  beta: {{address: 127.0.0.1, port: 1}}
"""


@needs_sshd
def test_the_nodes_of_an_inventory_are_asked_and_one_that_cannot_be_is_told(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    key = keygen(tmp_path / "key")
    server = Sshd(tmp_path / "server", key.with_suffix(".pub"))
    try:
        known = server.known(tmp_path / "known")
        inventory = tmp_path / "two.yaml"
        inventory.write_text(INVENTORY.format(key=key, python=sys.executable, known=known, port=server.port))
        alpha, beta = told("--cluster", str(inventory))
        assert alpha["error"] is None
        assert {each["kind"]: each["missing"] for each in alpha["faults"]}["process.signal"] == []
        assert abs(alpha["clock"]["wall_offset_s"]) < 5
        assert "Connection refused" in beta["error"]
        assert doctor("--cluster", str(inventory)).returncode == 1
        [only] = told("--cluster", str(inventory), "--node", "alpha")
        assert only["name"] == "alpha"
        assert "'gamma' is no node" in doctor("--cluster", str(inventory), "--node", "gamma").stdout
    finally:
        server.stop()
