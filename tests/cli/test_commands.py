"""The commands, as processes of their own: what they print, how they exit, what they import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

ROOT = Path(__file__).resolve().parents[2]


def chaos(*arguments: str, cwd: Path | None = None, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "chaos", *arguments]
    path = {
        "PATH": "/usr/bin:/bin",
        "PYTHONPATH": str(ROOT),
        "HOME": "/tmp",
        "CHAOS_STORE": os.environ["CHAOS_STORE"],
        **env,
    }
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=cwd or ROOT, env=path)


def test_help_lists_the_commands_and_imports_nothing_heavy():
    assert "validate" in chaos("--help").stdout
    heavy = ("torch", "fastapi", "pydantic", "pyroute2", "httpx", "jinja2", "sqlalchemy")
    code = f"import sys, chaos.cli.main;print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_the_controller_never_imports_torch():
    code = "import sys, chaos.engine.run, chaos.report, chaos.cli.run; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_all_shipped_experiments_are_listed_and_valid_from_any_folder(tmp_path):
    listed = chaos("experiments", cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    names = [path.stem for path in (ROOT / "experiments").glob("*.yaml")]
    assert len(names) >= 6
    for name in names:
        assert name in listed.stdout
    assert chaos("validate", *names, cwd=tmp_path).returncode == 0


def test_validate_prints_every_error_with_its_place_and_exits_2(tmp_path):
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(
        "experiment: wrong\ncluster: lab\nlab: {nodes: 1, gpus: 2}\n"
        "workload: {reference: llama-bytes, step: 20}\nfault: []\n"
    )
    done = chaos("validate", str(wrong))
    assert done.returncode == 2
    assert f"{wrong}:4:42:" in done.stderr
    assert f"{wrong}:5:1:" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_schema_accepts_the_shipped_experiments():
    schema = json.loads(chaos("schema").stdout)
    jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("run", "nosuch"), "no shipped experiment of that name"),
        (("run", "nosuch.yaml"), "nosuch.yaml"),
        (("report", "nosuch"), "there is no run 'nosuch'"),
        (("explain", "nosuch"), "chaos runs lists"),
        (("replay", "nosuch"), "there is no run 'nosuch'"),
        (("run", "nvswitch", "--json"), "--json is for a plan: add --dry-run"),
        (("lab", "show", "nosuch"), "there is no lab 'nosuch'"),
        (("lab", "down", "no/such"), "is no name for a lab"),
        (("lab", "up", "x", "--nodes", "9999"), "1 to 200 nodes are possible"),
        (("runs", "prune", "--size", "5"), "unit"),
        (("run", "nvswitch", "--runs", "/proc/x"), "cannot be written"),
    ],
)
def test_bad_input_is_one_line_with_the_remedy_and_exit_code_2(arguments, expected):
    done = chaos(*arguments)
    assert done.returncode == 2, done.stdout
    assert expected in done.stderr
    assert done.stderr.strip().count("\n") == 0, done.stderr


def test_a_dry_run_prints_the_whole_plan_and_starts_nothing(tmp_path):
    done = chaos("run", "storm", "--dry-run", "--seed", "7", cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    for word in ("seed       7", "dark@2/node", "at an instant", "kill/rank", "pidfd", "nftables", "SIGCONT"):
        assert word in done.stdout
    for guard in ("nodes", "devices", "share", "at_once"):
        assert f"{guard}_at_most" in done.stdout
    assert all(f"\n  {guard} " in done.stdout for guard in ("protect", "allowed", "stop_if"))
    assert "Nothing was started." in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_gives_the_plan_to_machines():
    done = chaos("run", "storm", "--dry-run", "--json", "--seed", "8")
    plan = json.loads(done.stdout)
    assert (plan["schema"], plan["seed"], len(plan["faults"])) == ("chaos.plan/1", 8, 5)
    kill = next(fault for fault in plan["faults"] if fault["name"].startswith("kill/rank"))
    assert kill["params"]["signal"] == "KILL" and kill["drawn"] is True and kill["reality"] is None
    assert 13 <= kill["after_s"] <= 13.5
    assert all(kill[key].endswith(".") for key in ("mechanism", "undo", "residue_check"))
    assert {limit["guard"]: limit["problem"] for limit in plan["limits"]}["at_once_at_most"] is None
    assert plan["stop_if"] == ["workload.alive is false, for 30s"]


def test_a_dry_run_tells_what_chance_left_out_and_which_limit_forbids_the_run(tmp_path):
    path = tmp_path / "over.yaml"
    path.write_text(
        "experiment: over\nlab: {nodes: 2, gpus: 2}\nworkload: {reference: llama-bytes}\n"
        "faults:\n"
        "  - {name: off, inject: power.off, on: {node: all}, pick: one, after: 1s, for: 1s, every: 2s, times: 9}\n"
        "  - {name: never, inject: power.off, on: {node: 0}, after: 1s, for: 1s, probability: 0%}\n"
        "guards: {nodes_at_most: 1}\n"
    )
    done = chaos("run", str(path), "--dry-run", "--seed", "1")
    assert done.returncode == 2
    assert "not drawn: never, on node 0 (probability 0%)" in done.stdout
    assert "OVER" in done.stdout
    assert done.stderr == (
        "chaos: the faults touch 2 nodes (node 0, node 1), guards.nodes_at_most allows 1: "
        "allow that many, or aim at fewer\n"
    )
    refused = chaos("run", str(path), "--seed", "1", "--runs", str(tmp_path / "runs"))
    assert (refused.returncode, refused.stderr) == (2, done.stderr)
    assert not (tmp_path / "runs").exists()


def test_without_torch_a_run_says_how_to_get_it_and_starts_nothing(tmp_path):
    """A finder that hides torch stands in for a machine without it."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Hide:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'torch': raise ModuleNotFoundError(name)\n"
        "import importlib.util as u\n"
        "found = u.find_spec\n"
        "u.find_spec = lambda name, package=None: None if name == 'torch' else found(name, package)\n"
    )
    done = chaos("run", "nvswitch", "--runs", str(tmp_path / "runs"), PYTHONPATH=f"{tmp_path}:{ROOT}")
    assert done.returncode == 2, done.stderr
    assert "cluster-chaos[lab]" in done.stderr
    assert not (tmp_path / "runs").exists()


def test_an_error_of_ours_is_one_line_exit_5_and_a_file_with_the_details(tmp_path):
    code = "from chaos.cli import main; import sys;main.app = lambda: 1 / 0;main.main()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 5
    assert done.stderr.startswith("chaos: internal error: ZeroDivisionError")
    assert "Traceback" not in done.stderr


def test_text_is_utf8_under_the_c_locale(tmp_path):
    """CASES 46."""
    path = tmp_path / "umlaut.yaml"
    path.write_text(
        "experiment: umlaut\nabout: Prüfung der Verbindung → ok\ncluster: lab\nlab: {nodes: 1, gpus: 2}\n"
        "workload: {reference: llama-bytes, step: 20ms}\n",
        encoding="utf-8",
    )
    assert chaos("validate", str(path), LC_ALL="C", PYTHONUTF8="0").returncode == 0
