"""Prints measurements: median, percentiles, spread."""

from __future__ import annotations

from collections.abc import Sequence


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which a share of the sorted values lies (nearest rank)."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def show(name: str, values: Sequence[float], unit: str = "ms", must: str = "") -> None:
    """One line: count, median, p95, p99, largest, and what is asked for."""
    figures = "  ".join(
        f"{label} {quantile(values, share):.2f}" for label, share in (("p50", 0.5), ("p95", 0.95), ("p99", 0.99))
    )
    print(f"{name:<44} n {len(values):<5} {figures}  max {max(values):.2f} {unit}  {must}", flush=True)
