"""The content hash: what must change it, and what must not."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chaos.workload.fingerprint import XXH3, Hash, Mix64, hash_for

HASHES = [XXH3(), Mix64()]
named = pytest.mark.parametrize("digest", HASHES, ids=lambda h: h.name)


def values(count: int = 70_000) -> torch.Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(3))


@named
def test_equal_content_has_equal_digests_in_any_layout(digest: Hash) -> None:
    tensor = values().view(-1, 7)
    assert digest([tensor]) == digest([tensor.clone()]) == digest([tensor.t().contiguous().t()])
    assert digest([tensor]) == digest([torch.cat([tensor.new_zeros(1, 7), tensor])[1:]])
    assert len(digest([tensor])) == 16
    assert int(digest([tensor]), 16) >= 0


@named
@pytest.mark.control
def test_corruptions_that_simple_sums_miss_are_seen(digest: Hash) -> None:
    """Each would keep an XOR or a weighted sum of the values as it was."""
    good = values()
    seen = {digest([good])}
    for name in ("bit", "swap", "equal flips", "sign pair", "move", "zero"):
        bad = good.clone()
        bits = bad.view(torch.int32)
        if name == "bit":
            bits[40_000] ^= 1
        elif name == "swap":
            bad[[5, 60_000]] = bad[[60_000, 5]]
        elif name == "equal flips":
            bits[7] ^= 1 << 20
            bits[9] ^= 1 << 20
        elif name == "sign pair":
            bits[11] ^= -(1 << 31)
            bits[13] ^= -(1 << 31)
        elif name == "move":
            bad = bad.roll(1)
        else:
            bad[69_999] = 0
        seen.add(digest([bad]))
    assert len(seen) == 7


@named
def test_the_order_and_the_borders_of_tensors_count(digest: Hash) -> None:
    a, b = values(100), values(50)
    assert digest([a, b]) != digest([b, a])
    assert digest([a, b]) == digest([a.clone(), b.clone()])


@given(st.lists(st.integers(0, 255), min_size=1, max_size=40), st.data())
def test_any_single_byte_counts(data: list[int], draw: st.DataObject) -> None:
    tensor = torch.tensor(data, dtype=torch.uint8)
    position = draw.draw(st.integers(0, len(data) - 1))
    other = tensor.clone()
    other[position] ^= draw.draw(st.integers(1, 255))
    for digest in HASHES:
        assert digest([tensor]) != digest([other])


def test_trailing_zeros_count() -> None:
    for digest in HASHES:
        assert digest([torch.zeros(3)]) != digest([torch.zeros(4)])


def test_mixing_needs_no_particular_size() -> None:
    sizes = (0, 1, 2, 65_535, 65_536, 131_072, 131_073)
    assert len({Mix64()([torch.ones(n)]) for n in sizes}) == len(sizes)


def test_the_library_is_preferred_for_the_cpu_and_replaced_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    assert hash_for("cpu").name == "xxh3_64"
    assert hash_for("cuda").name == "mix64"
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    assert hash_for("cpu").name == "mix64"


def test_digests_are_those_of_the_published_algorithm() -> None:
    """The empty digest of XXH3-64 is part of its specification's test vectors."""
    assert XXH3()([]) == "2d06800538d394c2"
