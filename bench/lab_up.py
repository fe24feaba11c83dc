"""How long does a lab take to come up, and a node to go off and boot? From the call to the last node's readiness,
the keeper's interpreter included."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path

from bench.figures import show
from chaos.lab.cluster import Lab
from chaos.lab.topology import LabSpec


def main(rounds: int = 20) -> None:
    """Bring labs of two sizes up and down."""
    for spec, must in ((LabSpec(2, 2, 1), "must be < 200"), (LabSpec(8, 8, 0), "must be < 1000")):
        ups, downs, offs, boots = [], [], [], []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory() as folder:
                began = time.perf_counter()
                lab = Lab.up(spec, Path(folder))
                up = time.perf_counter()
                lab.power(1, "off")
                lab.wait_power(1, "off")
                off = time.perf_counter()
                lab.power(1, "on")
                boot = time.perf_counter()
                lab.close()
                down = time.perf_counter()
            for series, first, last in ((ups, began, up), (offs, up, off), (boots, off, boot), (downs, boot, down)):
                series.append((last - first) * 1e3)
        size = f"{spec.nodes} x {spec.gpus}" + (f" + {spec.spare_nodes}" if spec.spare_nodes else "")
        show(f"lab {size} up", ups, must=must)
        show(f"lab {size}: a node off", offs)
        show(f"lab {size}: a node booted", boots)
        show(f"lab {size} down", downs)


if __name__ == "__main__":
    main()
