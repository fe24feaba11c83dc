"""The figures of a scorecard as rows of text: each with its value, interval, pass mark, verdict, level and evidence."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from chaos.report import reading, words
from chaos.report.steady import Hypothesis, hypotheses
from chaos.scoring.fields import flag, integer, mapping, number, objects, text

_MOST_SURVIVORS = 16  # that are listed one by one


@dataclass(frozen=True)
class Figure:
    """A judged figure. ``facts`` are pairs of a name and a value that belong to it and are not judged by themselves.

    ``gauge`` is the value as a share of its pass mark, where less is better; None where there is no such thing.
    """

    name: str
    value: str
    interval: str
    resolution: str
    mark: str
    verdict: str
    level: str
    evidence: str
    facts: tuple[tuple[str, str], ...] = ()
    gauge: float | None = None


def figures(card: Mapping[str, Any]) -> list[Figure]:
    """All judged figures: recovery of each fault, consistency, steady state."""
    found = [_recovery(each) for each in reading.recoveries(card)]
    consistency = mapping(card, "consistency")
    if consistency:
        found.append(_consistency(consistency))
    told = hypotheses(card)
    if told:
        found.append(_steady(told))
    return found


def headline(card: Mapping[str, Any]) -> list[tuple[str, str, str, str | None, float | None]]:
    """What is shown large: (name, value, note, verdict or None, gauge or None), the worst fault's recovery first."""
    rto, consistency = mapping(card, "rto"), mapping(card, "consistency")
    shown: list[tuple[str, str, str, str | None, float | None]] = []
    if rto:
        figure = _recovery(rto)
        several = len(reading.recoveries(card)) > 1
        name = "Worst recovery time (RTO)" if several else "Recovery time (RTO)"
        shown.append((name, figure.value, f"pass mark {figure.mark}", figure.verdict, figure.gauge))
        shown.append(("From the fault's end", *_from_end(rto), None, None))
    else:
        shown.append(("Recovery time (RTO)", words.NONE, "no fault took effect", None, None))
    if consistency:
        figure = _consistency(consistency)
        shown.append(("State consistency", figure.value, f"pass mark {figure.mark}", figure.verdict, None))
    told = hypotheses(card)
    if told:
        figure = _steady(told)
        shown.append(("Steady state", figure.value, "checks that held", figure.verdict, None))
    return shown


def _from_end(rto: Mapping[str, Any]) -> tuple[str, str]:
    value = number(rto, "from_end_ms")
    if value is None:
        return words.NONE, "not recovered" if number(rto, "ms") is None else "not measured"
    return words.ms(value), "recovered while the fault lasted" if value < 0 else "after the fault had ended"


def _recovery(rto: Mapping[str, Any]) -> Figure:
    ms, mark = number(rto, "ms"), number(rto, "pass_ms")
    name = text(rto, "fault")
    observed = number(rto, "observed_s")
    held = {True: "and stayed back for the hold period", False: "but was not seen to stay back"}
    evidence = [] if text(rto, "reason") is None else [str(text(rto, "reason"))]
    if observed is not None:
        seen = f"observed for {words.seconds(observed)}"
        evidence.append(f"{seen}, {held[flag(rto, 'held') is True]}" if ms is not None else seen)
    value = words.ms(ms) if ms is not None else "not recovered" if reading.verdict(rto) == "fail" else words.NONE
    return Figure(
        name="Recovery time" if name is None else f"Recovery time, {name}",
        value=value,
        interval=words.interval(number(rto, "low_ms"), number(rto, "high_ms")),
        resolution=words.ms(number(rto, "resolution_ms")),
        mark=words.NONE if mark is None else f"under {words.nominal(mark / 1e3)}",
        verdict=reading.verdict(rto),
        level=text(rto, "level") or words.NONE,
        evidence="; ".join(evidence),
        facts=tuple(_recovery_facts(rto)),
        gauge=ms / mark if ms is not None and mark else None,
    )


def _recovery_facts(rto: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    from_end = number(rto, "from_end_ms")
    if from_end is not None:
        during = " (recovered while the fault lasted)" if from_end < 0 else ""
        yield "counted from the end of the fault", words.ms(from_end) + during
    strict, ms = number(rto, "strict_ms"), number(rto, "ms")
    if ms is not None and strict != ms and "strict_ms" in rto:
        yield "if no isolated dip is forgiven", "not observed to hold" if strict is None else words.ms(strict)
    for dip in objects(rto, "dips"):
        lost = words.ms(number(dip, "lost_ms"))
        yield "dip of throughput", f"{words.ms(number(dip, 'at_ms'))} after the fault took effect, {lost} lost"
    for key, span in (("trailing_200ms_ms", "200 ms"), ("trailing_1s_ms", "1 s")):
        if number(rto, key) is not None:
            yield f"on a dashboard that averages over {span}", words.ms(number(rto, key))
    seen = [_survivor(each) for each in objects(rto, "survivors")]
    if seen:
        more = f" and {len(seen) - _MOST_SURVIVORS} more" if len(seen) > _MOST_SURVIVORS else ""
        yield "as seen by each process that survived", "; ".join(seen[:_MOST_SURVIVORS]) + more
    world = mapping(rto, "world")
    before, least, after = (integer(world, key) for key in ("before", "least", "after"))
    if before is not None and after is not None and (before != after or before != (least or before)):
        fewer = "" if least is None or least >= min(before, after) else f"{words.count(least)} at the least, "
        yield "ranks of the job", f"{words.count(before)} before, {fewer}{words.count(after)} after"
    replayed = integer(rto, "replayed_steps")
    if replayed is not None:
        yield "steps done a second time", words.count(replayed)


def _survivor(each: Mapping[str, Any]) -> str:
    rank, own = integer(each, "rank"), number(each, "ms")
    who = f"rank {rank}" if rank is not None else text(each, "inc") or "a process"
    return f"{who} {'not back' if own is None else words.ms(own)}"


def _consistency(found: Mapping[str, Any]) -> Figure:
    compared, disagreed = integer(found, "compared"), integer(found, "disagreed")
    lower = number(found, "lower_bound")
    evidence = text(found, "reason") or ""
    if compared and disagreed is not None:
        evidence = f"{words.count(compared)} replica hashes compared, {words.count(disagreed)} disagree"
        if text(found, "verdict") != "pass" and text(found, "reason"):
            evidence += f"; {text(found, 'reason')}"
    return Figure(
        name="State consistency",
        value=words.ratio(number(found, "ratio")),
        interval=words.NONE if lower is None else f"at least {words.ratio(lower)} (95 % bound)",
        resolution=words.NONE if not compared else f"1 in {words.count(compared)}",
        mark=words.NONE if number(found, "pass") is None else f"at least {words.ratio(number(found, 'pass'))}",
        verdict=reading.verdict(found),
        level=text(found, "level") or words.NONE,
        evidence=evidence,
        facts=tuple(_consistency_facts(found)),
    )


def _consistency_facts(found: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    first = mapping(found, "first_disagreement")
    if first:
        sides = "; ".join(
            f"{digest}: {'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"
            for digest, ranks in mapping(first, "ranks").items()
            if isinstance(ranks, list)
        )
        yield "first disagreement", f"step {first.get('step')}, generation {first.get('gen')} ({sides})"
    replayed = mapping(found, "replayed")
    compared = integer(replayed, "compared")
    if compared:
        differ = words.count(integer(replayed, "disagreed") or 0)
        yield "steps done again and compared with the first time", f"{words.count(compared)} compared, {differ} differ"


def _steady(told: list[Hypothesis]) -> Figure:
    checks = [check for each in told for check in each.checks.values()]
    ok, total = sum(check.held for check in checks), sum(check.made for check in checks)
    broken = next((check for check in checks if check.held < check.made), None)
    # A gate that fails says that the job was unwell, not that it recovers badly.
    gate = any(
        each.checks[when].held < each.checks[when].made for each in told for when in each.checks if when == "before"
    )
    return Figure(
        name="Steady state",
        value=f"{ok} of {total}",
        interval=words.NONE,
        resolution=words.NONE,
        mark="every check",
        verdict="pass" if broken is None else "inconclusive" if gate else "fail",
        level="observed",
        evidence=f"{len(told)} hypotheses held wherever they were checked" if broken is None else broken.text,
    )
