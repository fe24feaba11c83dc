"""`net.netem` and `net.rdma_jitter` without netem: what is asked for, how it is encoded, what is refused.

What they do on a kernel that has it is in tests/kernel/test_vm_netem.py.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path
from typing import Any

import pytest

from injectors import _netem
from injectors._netem import Shape
from injectors._netlink import attributes
from injectors.contract import InjectorError, Order, Target
from injectors.netem import JitterParams, Netem, NetemParams, RdmaJitter

PLAIN: dict[str, Any] = {
    "delay": 0,
    "jitter": 0,
    "normal": False,
    "loss": 0.0,
    "burst": 0.0,
    "duplicate": 0.0,
    "corrupt": 0.0,
    "reorder": 0.0,
    "rate": 0,
    "limit": 5000,
    "handle": 0xC0010000,
}


@pytest.mark.parametrize(
    ("params", "told"),
    [
        ({}, "write a delay, loss, duplicate, corrupt or rate"),
        ({"delay": -1.0}, "zero or more"),
        ({"delay": 0.001, "jitter": 0.002}, "write a delay of at least that"),
        ({"loss": 1.5}, "loss: write a share"),
        ({"loss": 0.1, "burst": 0.5}, "burst: write 1 or more"),
        ({"delay": 0.1, "burst": 3}, "burst: write 1 or more, beside a loss"),
        ({"loss": 0.1, "reorder": 0.1}, "reorder: write a delay too"),
        ({"delay": 0.1, "peer": "node7"}, "peer: found 'node7'; write an address"),
        ({"delay": 0.1, "rate": -1.0}, "rate: write a rate above zero"),
    ],
)
def test_what_cannot_be_meant_is_refused(params: dict[str, Any], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        NetemParams("eth1", **params)


def test_a_jitter_needs_a_delay() -> None:
    with pytest.raises(ValueError, match="write a delay"):
        JitterParams("rdma0")


def test_parameters_are_encoded_as_the_kernel_declares_them() -> None:
    """struct tc_netem_qopt and TCA_NETEM_* of include/uapi/linux/pkt_sched.h."""
    shape = Shape(**PLAIN | {"delay": 20_000_000, "jitter": 64_000, "loss": 0.5, "duplicate": 0.25, "rate": 1 << 33})
    options = shape.options()
    assert struct.unpack_from("=6I", options) == (312_500, 5000, 0x80000000, 0, 0x40000000, 1000)
    told = attributes(options[24:])
    assert struct.unpack("=q", told[10]) == (20_000_000,)
    assert struct.unpack("=q", told[11]) == (64_000,)
    assert struct.unpack("=I", told[6][:4]) == (0xFFFFFFFF,)
    assert struct.unpack("=Q", told[8]) == (1 << 33,)
    assert 5 not in told, "losses by chance"


def test_losses_in_bursts_have_the_share_and_the_length_that_were_asked_for() -> None:
    options = Shape(**PLAIN | {"loss": 0.2, "burst": 4.0}).options()
    assert struct.unpack_from("=6I", options)[2] == 0, "not by chance as well"
    there, back, passing, lost = struct.unpack("=4I", attributes(attributes(options[24:])[5])[2])
    assert (passing, lost) == (0, 0)
    assert 0xFFFFFFFF / back == pytest.approx(4)
    assert there / (there + back) == pytest.approx(0.2)


def test_a_normal_distribution_has_its_mean_and_deviation() -> None:
    table = attributes(Shape(**PLAIN | {"normal": True}).options()[24:])[2]
    values = [value / 8192 for value in struct.unpack(f"={len(table) // 2}h", table)]
    assert sum(values) / len(values) == pytest.approx(0, abs=0.001)
    assert (sum(value**2 for value in values) / len(values)) ** 0.5 == pytest.approx(1, abs=0.01)


def test_what_is_taken_back_leaves_no_parameter_of_before() -> None:
    """The kernel keeps what a message does not mention."""
    shape = Shape(**PLAIN | {"delay": 1000, "corrupt": 0.5, "rate": 1000, "loss": 0.5, "burst": 2.0, "reorder": 0.5})
    assert {4, 6, 10, 11} <= attributes(shape.neutral().options()[24:]).keys()
    assert struct.unpack_from("=6I", shape.neutral().options()) == (0, 5000, 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("delay", "rate", "speed", "packets"),
    [
        (0.01, 0.0, 10e9, 0.01 * 10e9 / 8 / 512),
        (0.0, 0.0, 10e9, 1000),
        (100.0, 0.0, 400e9, 1 << 22),
        (0.01, 1e9, 400e9, 0.11 * 1e9 / 8 / 512),
    ],
)
def test_a_limit_follows_from_delay_and_speed(delay: float, rate: float, speed: float, packets: float) -> None:
    assert _netem.limit(delay, 0.0, rate, speed) == pytest.approx(packets)


def test_rdma_that_bypasses_the_kernel_is_refused_with_what_would_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """CASES 32."""
    monkeypatch.setattr(_netem, "bypass", lambda name: "mlx5_0 (mlx5_core)")
    with pytest.raises(InjectorError, match=r"goes by mlx5_0 \(mlx5_core\).*What works there"):
        RdmaJitter().plan(Order("f1", JitterParams("eth0", 0.001), Target(node=0), 1.0))


def test_hardware_is_found_by_the_device_that_both_belong_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    device = tmp_path / "devices/0000:41:00.0"
    device.mkdir(parents=True)
    (device / "driver").symlink_to(tmp_path / "drivers/mlx5_core")
    for name in ("net/eth0", "infiniband/mlx5_0", "net/eth1", "infiniband/rxe0"):
        (tmp_path / "class" / name).mkdir(parents=True)
    for name in ("net/eth0", "infiniband/mlx5_0"):
        (tmp_path / "class" / name / "device").symlink_to(device)
    monkeypatch.setattr(_netem, "CLASSES", str(tmp_path / "class"))
    assert _netem.bypass("eth0") == "mlx5_0 (mlx5_core)"
    assert _netem.bypass("eth1") is None, "a Soft-RoCE device has no hardware"


@pytest.mark.skipif(os.geteuid() != 0, reason="NOT RUN: to see whether a kernel has netem takes a namespace, so root")
def test_a_kernel_without_netem_is_told_with_what_would_enable_it(monkeypatch: pytest.MonkeyPatch) -> None:
    params = NetemParams("eth1", delay=0.1)
    there = _netem.available()
    assert Netem().support(params, Target(node=0)).possible is there
    monkeypatch.setattr(_netem, "available", lambda: False)
    [missing] = Netem().support(params, Target(node=0)).missing
    assert "modprobe sch_netem" in missing
    with pytest.raises(InjectorError, match=r"net\.netem is not possible here; missing: netem: modprobe sch_netem"):
        Netem().plan(Order("f1", params, Target(node=0), 1.0))
