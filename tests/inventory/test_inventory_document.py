"""Inventories: read strictly, merged from defaults, groups and nodes, selected by name, range, label and group."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chaos.inventory.access import Access, Secret, SecretError
from chaos.inventory.load import DocumentErrors, load, loads
from chaos.inventory.model import Inventory
from chaos.inventory.presence import gaps
from chaos.inventory.ranges import RangeError, expand, fold
from chaos.inventory.select import SelectionError, select, select_devices

POD = """
inventory: pod
defaults: {user: ops, become: sudo, become_password: {env: SUDO_WORD}, labels: {site: x}}
jumps:
  outer: {address: outer.example, port: 2222}
  bastion: {address: bastion.example, user: jumper, jump: outer}
groups:
  h100:
    gpus: 8
    jump: bastion
    labels: {rack: r7}
    nics: [{name: "rail[0-1]", role: data, rdma: "mlx5_[0-1]"}, {name: eth0, role: control}]
  empty: {}
nodes:
  node[01-03]:
    groups: [h100]
    address: "{name}.pod"
    bmc: {address: "{name}-bmc", user: admin, password: {file: bmc.word}}
  odd: {address: 10.0.0.9, port: 22022, user: root, become: none, become_password: none, labels: {rack: r8}}
"""


@pytest.fixture
def pod() -> Inventory:
    return loads(POD, {})


def test_a_node_has_what_its_groups_and_the_defaults_say_and_its_own_word_counts_most(pod: Inventory) -> None:
    assert [node.name for node in pod.nodes] == ["node01", "node02", "node03", "odd"]
    first, odd = pod.nodes[0], pod.nodes[3]
    assert first.access.host == "node01.pod"
    assert (first.access.user, first.access.become) == ("ops", "sudo")
    assert dict(first.labels) == {"site": "x", "rack": "r7"}
    assert first.gpus is not None
    assert first.gpus.number == 8
    assert first.bmc is not None
    assert (first.bmc.address, first.bmc.user) == ("node01-bmc", "admin")
    assert (odd.access.user, odd.access.port, odd.access.become, odd.access.become_password) == (
        "root",
        22022,
        "none",
        None,
    )
    assert dict(odd.labels) == {"site": "x", "rack": "r8"}


def test_jump_hosts_are_a_chain(pod: Inventory) -> None:
    jump = pod.nodes[0].access.jump
    assert jump == Access("bastion.example", user="jumper", jump=Access("outer.example", port=2222))
    assert pod.nodes[3].access.jump is None


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("all", ["node01", "node02", "node03", "odd"]),
        ("node02", ["node02"]),
        ("node[01-02]", ["node01", "node02"]),
        ("h100", ["node01", "node02", "node03"]),
        ("rack=r8", ["odd"]),
        ("odd,node03,odd", ["node03", "odd"]),
    ],
)
def test_a_selection_names_nodes_once_and_in_order(pod: Inventory, text: str, names: list[str]) -> None:
    assert [node.name for node in select(pod, text)] == names


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("node1", "did you mean 'node01'?"),
        ("h10", "did you mean 'h100'?"),
        ("nod", "did you mean 'node[01-03]'?"),
        ("node09", "there are node[01-03], odd, groups h100, empty"),
        ("node[01-04]", "node04 is not in pod"),
        ("rack=r9", "its values are r[7-8]"),
        ("rak=r7", "did you mean 'rack'?"),
        ("empty", "no node is in the group 'empty'"),
        ("", "the selection is empty"),
        ("node01:gpu0", "leave out what stands behind the colon"),
        ("node[3-1]", "3-1"),
    ],
)
def test_a_selection_that_means_nothing_says_what_there_is(pod: Inventory, text: str, said: str) -> None:
    with pytest.raises(SelectionError, match=re.escape(said)):
        select(pod, text)


def test_devices_are_selected_but_never_a_control_nic(pod: Inventory) -> None:
    found = select_devices(pod, "node[01-02]:rail1,node01:gpu[0-1]")
    assert [(node.name, device.name) for node, device in found] == [
        ("node01", "rail1"),
        ("node01", "gpu0"),
        ("node01", "gpu1"),
        ("node02", "rail1"),
    ]
    with pytest.raises(SelectionError, match=r"eth0 of node01 is a control NIC, and never a target: its data NICs are"):
        select_devices(pod, "node01:eth0")
    with pytest.raises(SelectionError, match="has no device 'gpu8'"):
        select_devices(pod, "node01:gpu8")


SMALL = "inventory: x\nnodes:\n  a: {}\n"


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("inventory: x\nnodes: {}\n", "2:", "found no node"),
        (SMALL + "node: {}\n", "4:1", "did you mean 'nodes'?"),
        (SMALL + "  a: {}\n", "4:3", "'a'"),
        ("inventory: x\nnodes:\n  a: {port: 70000}\n", "3:13", "70000"),
        ("inventory: x\nnodes:\n  a: {groups: [g]}\n", "3:16", "'g', which is no group"),
        ("inventory: x\nnodes:\n  a: {jump: j}\n", "3:13", "'j', which is no jump host"),
        ("inventory: x\njumps: {j: {jump: k}, k: {jump: j}}\nnodes:\n  a: {}\n", "2:", "a loop: j -> k -> j"),
        ("inventory: x\nnodes:\n  a: {address: h}\n  b: {address: h}\n", "4:", "which is that of 'a'"),
        ("inventory: x\nnodes:\n  'a[1-2]': {address: h}\n", "3:", "1 address for 2 nodes"),
        ("inventory: x\nnodes:\n  a1: {}\n  'a[1-2]': {}\n", "4:3", "found 'a1'"),
        ("inventory: x\nnodes:\n  a: {become: doas}\n", "3:15", "doas"),
        ("inventory: x\nnodes:\n  a: {become_password: {env: W}}\n", "3:", "no 'become'"),
    ],
)
def test_a_mistake_is_told_with_its_place_and_what_would_be_right(text: str, place: str, said: str) -> None:
    with pytest.raises(DocumentErrors) as told:
        loads(text, {})
    assert len(told.value.problems) == 1, str(told.value)
    assert str(told.value).startswith(f"<text>:{place}")
    assert said in str(told.value)


@pytest.mark.parametrize("key", ["password", "passphrase", "become_password"])
def test_a_secret_in_the_open_is_refused_and_not_repeated(key: str) -> None:
    """CASES 47."""
    become = "become: sudo, " if key == "become_password" else ""
    with pytest.raises(DocumentErrors) as told:
        loads(f"inventory: x\nnodes:\n  a: {{{become}{key}: hunter2}}\n", {})
    assert "hunter2" not in str(told.value)
    assert "env" in str(told.value)


def test_secrets_are_references_and_their_values_appear_nowhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WORD", "hunter2")
    (tmp_path / "word").write_text("hunter3\nsecond line\n")
    told = tmp_path / "inventory.yaml"
    told.write_text(
        "inventory: x\nnodes:\n"
        "  a: {password: {env: WORD}, bmc: {address: b, user: u, password: {file: word}}}\n"
        "  c: {password: {command: [printf, 'hunter4']}}\n"
    )
    inventory = load(told, {})
    secrets = [secret for node in inventory.nodes for secret in node.secrets().values()]
    assert sorted(secret.value() for secret in secrets) == ["hunter2", "hunter3", "hunter4"]
    shown = repr(inventory) + str([node.as_dict() for node in inventory.nodes]) + str(list(map(str, secrets)))
    assert "hunter" not in shown.replace("printf", "")
    assert gaps(inventory) == [] or all(not gap.fatal for gap in gaps(inventory))
    monkeypatch.delenv("WORD")
    (tmp_path / "word").unlink()
    missing = {gap.what: gap.problem for gap in gaps(inventory) if gap.fatal}
    assert "WORD is not set" in missing["password"]
    assert "No such file" in missing["bmc.password"]


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        (Secret(env="NO_SUCH"), "environment variable NO_SUCH is not set"),
        (Secret(command=("false",)), "command false ended with 1"),
        (Secret(command=("true",)), "command true is empty"),
        (Secret(command=("/no/such",)), "command /no/such: No such file or directory"),
    ],
)
def test_a_secret_that_cannot_be_had_names_its_reference(secret: Secret, said: str) -> None:
    with pytest.raises(SecretError, match=f"^{said}$"):
        secret.value()


def test_a_secret_is_one_thing() -> None:
    with pytest.raises(ValueError, match="a secret is one of"):
        Secret(env="A", file=Path("b"))


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a", ["a"]),
        ("n[1-3]", ["n1", "n2", "n3"]),
        ("n[08-10]", ["n08", "n09", "n10"]),
        ("r[1-2]n[1,3]", ["r1n1", "r1n3", "r2n1", "r2n3"]),
    ],
)
def test_ranges_expand_and_fold_back(text: str, names: list[str]) -> None:
    assert expand(text) == names
    assert expand(fold(names)) == names


@pytest.mark.parametrize("text", ["n[1-", "n[]", "n[b-a]", "n[5-1]", "n[1-99999999]"])
def test_what_is_no_range_is_refused(text: str) -> None:
    with pytest.raises(RangeError):
        expand(text)
