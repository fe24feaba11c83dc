"""Everything that the README and the closing notes quote, one after the other."""

from __future__ import annotations

from bench import (
    controller,
    events,
    fault_calls,
    fire_precision,
    keeper_cycles,
    lab_up,
    recovery,
    scorer_noise,
    ssh_agents,
    stopping,
    undisturbed,
    undo,
)


def main() -> None:
    """Run all of them."""
    for module in (
        controller,
        lab_up,
        fault_calls,
        fire_precision,
        stopping,
        undo,
        events,
        ssh_agents,
        undisturbed,
        scorer_noise,
        keeper_cycles,
        recovery,
    ):
        print(f"\n== {module.__name__}: {(module.__doc__ or '').splitlines()[0]}", flush=True)
        module.main()


if __name__ == "__main__":
    main()
