"""A run on machines that are no lab: agents and a command over pipes, step events back over a channel of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from lab_help import eventually

from chaos.cli.terminal import Quiet
from chaos.engine import folder as folders
from chaos.engine import plan as plans
from chaos.engine.catalogue import catalogue
from chaos.engine.machines import ThisMachine
from chaos.engine.run import Run
from chaos.engine.site import Site
from chaos.engine.stop import Stop
from chaos.experiment import LabSpec, Nodes, loads

ROOT = Path(__file__).parents[2]

# A job of one rank a node, in a process of its own, that steps every 20 ms; a rank that was killed is started again.
JOB = """
import os, subprocess, sys, time
sys.path.insert(0, {root!r})
if len(sys.argv) == 1:
    generation = 0
    while True:
        generation += 1
        print("rank starts", flush=True)
        subprocess.run([sys.executable, __file__, str(generation)])
from chaos.workload.events import StepWriter
node, nodes, generation = int(os.environ["CHAOS_NODE"]), int(os.environ["CHAOS_NODES"]), int(sys.argv[1])
writer = StepWriter(os.environ["CHAOS_EVENTS"])
writer.hello(node=99, gpu=0, hash_alg="x")
writer.member(rank=node, gen=1, world=nodes)
step = int(time.monotonic() / 0.02)
while True:
    step += 1
    time.sleep(max(0, step * 0.02 - time.monotonic()))
    t = time.monotonic_ns()
    writer.step(t=t, rank=node, gen=1, world=nodes, step=step, tokens=10, loss=2.0, gnorm=1.0, work_ns=1, digest="aa")
"""

DOCUMENT = """
experiment: site
cluster: machines.yaml
workload: {{command: [{python}, {job}], ranks_per_node: 1}}
steady_state:
  baseline: 2s
  hold:
    - {{probe: workload.throughput, at_least: 50%, of: baseline}}
    - {{probe: workload.loss, is: finite}}
faults:
  - {{name: stop, inject: process.signal, on: {{rank: 1}}, with: {{signal: STOP}}, after: 500ms, for: 300ms}}
score: {{rto: 3s, hold: 1s}}
settle: 500ms
"""


def nodes_of(cluster: str, workload: Any) -> Nodes:
    names = ("alpha", "beta")
    return Nodes(cluster, names, LabSpec(nodes=2, gpus=1), lambda text: [names.index(text)])


@pytest.mark.usefixtures("nothing_left")
def test_a_rank_of_a_command_on_two_machines_is_stopped_and_continued(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(textwrap.dedent(JOB).format(root=str(ROOT)))
    source = DOCUMENT.format(python=sys.executable, job=job)
    experiment = loads(source, catalogue(), os.environ, clusters=nodes_of)
    site = Site(tuple(ThisMachine(name, tmp_path / name) for name in ("alpha", "beta")))
    plan = plans.draw(experiment, datetime.now(UTC), 1, site)
    folder = folders.create(tmp_path / "runs", plan.run)
    card = Run(plan, folder, source=source, watcher=Quiet(), stop=Stop()).execute()
    journal = folder.read_journal()
    told = json.dumps([event for event in journal if event["e"] in ("error", "halt", "fault")], indent=1)
    assert card["cleanup"]["verdict"] == "clean", told
    [fired] = [event for event in journal if event["e"] == "fault" and event["what"] == "fired"]
    [during] = [e for e in journal if e["e"] == "fault" and e["what"] == "witness" and e["phase"] == "during"]
    assert during["effective"], told
    assert card["verdict"] == "pass", json.dumps(card, indent=1)
    steps = list(folder.read_steps())
    assert {event["node"] for event in steps if event["e"] == "hello"} == {0, 1}, "as the plan numbers the nodes"
    stopped = [event["t"] for event in steps if event["e"] == "step" and event["rank"] == 1]
    gap = max(after - before for before, after in zip(sorted(stopped), sorted(stopped)[1:], strict=False))
    assert gap >= 0.25e9
    assert fired["effect_ns"] > 0
    assert (folder.logs / "output-alpha.log").read_text() == "rank starts\n"


@pytest.mark.usefixtures("nothing_left")
def test_a_job_that_others_have_started_is_broken_observed_and_left_running(tmp_path: Path) -> None:
    job = tmp_path / "job.py"
    job.write_text(textwrap.dedent(JOB).format(root=str(ROOT)))
    events = tmp_path / "events"
    ranks = [
        subprocess.Popen(
            [sys.executable, str(job), "1"],
            env=os.environ | {"CHAOS_EVENTS": str(events), "CHAOS_NODE": str(rank), "CHAOS_NODES": "2"},
        )
        for rank in range(2)
    ]
    try:
        source = DOCUMENT.format(python=sys.executable, job=job).replace(
            f"{{command: [{sys.executable}, {job}], ranks_per_node: 1}}",
            f"{{attach: {{events: {events}}}, ranks_per_node: 2}}",
        )
        eventually(events.is_dir, "the job's folder")
        experiment = loads(
            source,
            catalogue(),
            os.environ,
            clusters=lambda cluster, _: Nodes(cluster, ("alpha",), LabSpec(nodes=1, gpus=2), lambda _: [0]),
        )
        plan = plans.draw(experiment, datetime.now(UTC), 1, Site((ThisMachine("alpha", tmp_path / "alpha"),)))
        folder = folders.create(tmp_path / "runs", plan.run)
        card = Run(plan, folder, source=source, watcher=Quiet(), stop=Stop()).execute()
        assert card["verdict"] == "pass", json.dumps(card, indent=1)
        assert card["cleanup"]["verdict"] == "clean"
        hellos = [event for event in folder.read_steps() if event["e"] == "hello"]
        assert {event["pid"] for event in hellos} == {rank.pid for rank in ranks}
        assert [rank.poll() for rank in ranks] == [None, None], "the job goes on"
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()


def carried_out(tmp_path: Path, command: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A run without faults of some command: its card and its journal."""
    source = DOCUMENT.format(python=sys.executable, job=tmp_path / "job.py").partition("faults:")[0]
    source = source.replace(f"[{sys.executable}, {tmp_path / 'job.py'}]", command)
    experiment = loads(source, catalogue(), os.environ, clusters=nodes_of)
    site = Site(tuple(ThisMachine(name, tmp_path / name) for name in ("alpha", "beta")))
    plan = plans.draw(experiment, datetime.now(UTC), 1, site)
    folder = folders.create(tmp_path / "runs", plan.run)
    card = Run(plan, folder, source=source, watcher=Quiet(), stop=Stop()).execute()
    return card, folder.read_journal()


@pytest.mark.usefixtures("nothing_left")
@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("[/no/such/program]", "the workload does not start on alpha: /no/such/program: No such file or directory"),
        (
            "[sh, -c, 'test $CHAOS_NODE = 0 || exit 3; sleep 1000']",
            "the workload does not train: the command on beta ended with 3; its output is in ",
        ),
    ],
)
def test_a_command_that_does_not_run_everywhere_ends_the_run(tmp_path: Path, command: str, said: str) -> None:
    """And all of it is ended on the other nodes."""
    card, journal = carried_out(tmp_path, command)
    assert card["verdict"] == "error"
    [error] = [event["text"] for event in journal if event["e"] == "error"]
    assert error.startswith(said)
