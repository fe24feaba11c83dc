"""Who was a member of the job when: which step events count.

A rank that was stopped and wakes two seconds later reports its last step as if nothing had happened, while the others
have long built a new group without it. Neither throughput nor agreement may be measured on what it says.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping

from chaos.scoring.fields import Event, integer, text

Members = Mapping[int, set[str]]  # incarnations by generation

_FIRST = ("hello", "member")  # at one instant, membership comes before the step that it allows


def members(events: Iterable[Event]) -> Members:
    """The processes that became members of each generation, whenever they did."""
    found: dict[int, set[str]] = defaultdict(set)
    for event in events:
        if event.get("e") == "member":
            gen, inc = integer(event, "gen"), text(event, "inc")
            if gen is not None and inc is not None:
                found[gen].add(inc)
    return dict(found)


def is_current(inc: str, gen: int, joined: Members, begun: int, stepped: int) -> bool:
    """Whether a step counts that process `inc` completed in generation `gen`.

    Args:
        joined: all members by generation.
        begun: the newest generation that anybody had joined by then.
        stepped: the newest generation in which anybody had completed a step by then.

    From the first step of a generation on nothing older counts. Between the first join and the first step the older
    one may still finish steps (a new group is built in the background), but only its members that belong to the new
    one too do. A job that says nothing of membership is believed.
    """
    if gen < stepped:
        return False
    if not joined:
        return True
    return inc in joined.get(gen, ()) and (begun <= gen or inc in joined.get(begun, ()))


def current_steps(events: Iterable[Event]) -> list[Event]:
    """The step events that count, in order of time."""
    known = list(events)
    timed = [
        (t, event.get("e") not in _FIRST, k) for k, event in enumerate(known) if (t := integer(event, "t")) is not None
    ]
    joined = members(known)
    begun = stepped = -1
    kept: list[Event] = []
    for _, _, k in sorted(timed):
        event = known[k]
        gen = integer(event, "gen")
        if gen is None:
            continue
        if event.get("e") == "member":
            begun = max(begun, gen)
        elif event.get("e") == "step" and is_current(text(event, "inc") or "", gen, joined, begun, stepped):
            stepped = max(stepped, gen)
            kept.append(event)
    return kept
