"""A whole run on two machines that are reached by SSH: real sshds, each with processes and folders of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_help import chaos
from sshd import Sshd, keygen, needs_sshd

from chaos.engine.ledger import Ledger
from injectors import kernel
from tests.engine.runs import Started
from tests.engine.test_site import JOB

pytestmark = [needs_sshd, pytest.mark.usefixtures("nothing_left")]

ROOT = Path(__file__).parents[2]

INVENTORY = """
inventory: two
defaults: {{user: root, key: {key}, python: {python}, known_hosts: [{known}]}}
nodes:
  alpha: {{address: 127.0.0.1, port: {first}, labels: {{rack: a}}}}
  beta: {{address: 127.0.0.1, port: {second}, labels: {{rack: b}}}}
"""

DOCUMENT = """
experiment: over-ssh
cluster: two.yaml
workload: {{command: [{python}, {job}], ranks_per_node: 1}}
steady_state:
  baseline: 2s
  hold:
    - {{probe: workload.throughput, at_least: 50%, of: baseline}}
faults:
  - {{name: stop, inject: process.signal, on: {{rank: 1}}, with: {{signal: STOP}}, after: 500ms, for: {length}}}
guards: {guards}
score: {{rto: 3s, hold: 1s}}
settle: 500ms
"""


class Site:
    """Two machines, an inventory and a document."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        key = keygen(folder / "key")
        self.machines = [Sshd(folder / name, key.with_suffix(".pub")) for name in ("alpha", "beta")]
        known = folder / "known_hosts"
        for each in self.machines:
            each.known(known)
        self.job = folder / "job.py"
        self.job.write_text(textwrap.dedent(JOB).format(root=str(ROOT)))
        first, second = (each.port for each in self.machines)
        (folder / "two.yaml").write_text(
            INVENTORY.format(key=key, known=known, python=sys.executable, first=first, second=second)
        )

    def document(self, length: str = "300ms", guards: str = "{}") -> Path:
        path = self.folder / "document.yaml"
        path.write_text(DOCUMENT.format(python=sys.executable, job=self.job, length=length, guards=guards))
        return path

    def ranks(self) -> list[int]:
        """The processes of the job, on both machines."""
        return [pid for each in self.machines for pid in each.processes(str(self.job))]


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    tmp_path.chmod(0o755)
    made = Site(tmp_path)
    yield made
    for each in made.machines:
        each.stop()


def test_a_run_names_breaks_mends_and_scores(site: Site) -> None:
    finished = Started(site.document(), site.folder / "runs").finish()
    assert finished.code == 0, finished.output
    assert finished.card["cleanup"]["verdict"] == "clean"
    [during] = [event for event in finished.faults("witness") if event["phase"] == "during"]
    assert during["effective"]
    assert site.ranks() == [], "the job has ended with the run"
    folder = finished.folder
    assert folder is not None
    assert (folder / "logs/output-beta.log").read_text() == "rank starts\n"


def test_a_replay_breaks_the_same_rank(site: Site) -> None:
    assert Started(site.document(), site.folder / "runs").finish().code == 0
    again = chaos("replay", "last", "--runs", str(site.folder / "runs"))
    assert again.returncode == 0, again.stdout


def test_a_dry_run_starts_nothing_and_a_rehearsal_fires_nothing(site: Site) -> None:
    planned = chaos("run", str(site.document()), "--dry-run", "--json")
    assert planned.returncode == 0, planned.stdout
    assert json.loads(planned.stdout)["nodes"] == ["alpha", "beta"]
    rehearsed = Started(site.document(), site.folder / "runs", "--rehearse").finish()
    assert rehearsed.code == 0, rehearsed.output
    assert rehearsed.faults("fired") == []


def test_a_protected_machine_is_not_touched(site: Site) -> None:
    told = chaos("validate", str(site.document(guards="{protect: {labels: [rack=b]}}")))
    assert told.returncode == 2
    assert "which 'protect' keeps from all faults" in told.stdout


def stopped(site: Site) -> list[int]:
    states = {pid: kernel.stat_fields(pid) for pid in site.ranks()}
    return [pid for pid, fields in states.items() if fields and fields[0] in "Tt"]


def test_a_killed_controller_leaves_nothing_and_the_sweep_proves_it(site: Site, store_file: Path) -> None:
    started = Started(site.document(length="60s"), site.folder / "runs")
    started.wait_for("phase", "during")
    assert stopped(site)
    started.signal(signal.SIGKILL)
    started.process.wait()
    end = time.monotonic() + 20
    while stopped(site) or site.ranks():
        assert time.monotonic() < end, "the machines mend themselves, and end what was started there"
        time.sleep(0.01)
    with Ledger.open(store_file) as ledger:
        [promise] = ledger.open_promises()
    assert (promise.place["transport"], promise.place["node"]) == ("ssh", "beta")
    swept = chaos("sweep", "--all")
    assert swept.returncode == 0, swept.stdout
    assert "beta of " in swept.stdout
    with Ledger.open(store_file) as ledger:
        assert ledger.open_promises() == []


def test_an_inventorys_machines_are_swept_whatever_the_ledger_says(site: Site, store_file: Path) -> None:
    """CASES 12: nobody reboots nodes to get rid of what a dead controller has left, whose ledger is lost as well."""
    inventory = str(site.folder / "two.yaml")
    swept = chaos("sweep", "--cluster", inventory)
    assert swept.returncode == 0, swept.stdout
    assert [f"{name} of {inventory}: clean" in swept.stdout for name in ("alpha", "beta")] == [True, True]
    assert not store_file.exists()
    damaged = site.machines[1].inside("/var/lib/chaos/faults/cut-short.json")
    damaged.parent.mkdir(parents=True, exist_ok=True)
    damaged.write_text('{"fault": ')
    swept = chaos("sweep", "--cluster", inventory, "--node", "rack=b", "--json")
    assert swept.returncode == 1
    [place] = json.loads(swept.stdout)["places"]
    assert place["name"] == f"beta of {inventory}"
    assert "cut-short" in place["unknown"][0]
    none = chaos("sweep", "--cluster", inventory, "--node", "gamma")
    assert none.returncode == 2
    assert "gamma" in none.stdout


def test_a_machine_that_cannot_be_reached_keeps_its_promise_open(site: Site, store_file: Path) -> None:
    """Unknown is not clean: CASES 10."""
    started = Started(site.document(length="60s"), site.folder / "runs")
    started.wait_for("phase", "during")
    started.signal(signal.SIGKILL)
    started.process.wait()
    site.machines[1].stop()
    swept = chaos("sweep", "--all")
    assert swept.returncode == 1
    assert "unknown: beta" in swept.stdout
    shutil.move(site.folder / "two.yaml", site.folder / "moved.yaml")
    swept = chaos("sweep", "--all")
    assert swept.returncode == 1
    assert "there is no" in swept.stdout or "No such file" in swept.stdout
    with Ledger.open(store_file) as ledger:
        assert len(ledger.open_promises()) == 1


def test_a_machine_that_does_not_let_us_in_is_told_before_anything_starts(site: Site) -> None:
    os.truncate(site.folder / "known_hosts", 0)
    finished = Started(site.document(), site.folder / "runs").finish()
    assert finished.code == 5, finished.output
    assert "alpha" in finished.output or "beta" in finished.output
    assert "Traceback" not in finished.output
    assert site.ranks() == []
