"""Where a recovery's time went: its stages end to end, drawn as one bar, and as rows of a table."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from chaos.report import svg, words
from chaos.report.scale import Scale, label
from chaos.scoring.fields import number, objects, text

_MEANING = {
    "symptom": "first sign of trouble, as known in hindsight",
    "detected": "failure noticed by the first process",
    "aborted": "former process group left by all",
    "group": "new process group stands",
    "agreed": "members agree on the step to go on from",
    "restored": "state restored on every member",
    "first step": "first step of the new group complete",
    "recovered": "throughput back at its mark, and staying",
}
COLOURS = 8  # the style sheet has that many for stages


@dataclass(frozen=True)
class Stage:
    """A stage that took ``ms`` and was complete ``end_ms`` after the fault; ``colour`` numbers its place."""

    name: str
    meaning: str
    ms: float
    end_ms: float
    colour: int

    @property
    def took(self) -> str:
        """Its length, with its unit."""
        return words.ms(self.ms)

    @property
    def ended(self) -> str:
        """When it was complete, since the fault."""
        return words.ms(self.end_ms)


def stages(figure: Mapping[str, Any]) -> list[Stage]:
    """The stages of a recovery figure, in order; empty where the job left no marks."""
    found: list[Stage] = []
    for told in objects(figure, "breakdown"):
        name, ms, end = text(told, "stage"), number(told, "ms"), number(told, "end_ms")
        if name is not None and ms is not None and end is not None and ms >= 0:
            found.append(Stage(name, _MEANING.get(name, ""), ms, end, len(found) % COLOURS))
    return found


def bar(found: list[Stage]) -> Markup:
    """The stages as one bar over the milliseconds since the fault; empty without stages."""
    if not found or found[-1].end_ms <= 0:
        return Markup()
    return Markup().join(_draw(found, name, width) for name, width in (("wide", 1080), ("narrow", 370)))


def _draw(found: list[Stage], name: str, width: int) -> Markup:
    x = Scale(0, found[-1].end_ms, 8, width - 16)
    children = []
    for stage in found:
        start, end = x(stage.end_ms - stage.ms), x(stage.end_ms)
        children.append(
            svg.element(
                "rect",
                svg.element("title", f"{stage.name}: {stage.took}"),
                x=start,
                y=8,
                width=max(0.5, end - start),
                height=30,
                class_=f"stage stage-{stage.colour}",
            )
        )
        shown = next((told for told in (f"{stage.name} {stage.took}", stage.name) if _fits(told, end - start)), None)
        if shown:
            children.append(svg.text((start + end) / 2, 27, shown, "stage-name", "middle"))
    for tick in x.ticks(10 if width > 600 else 4):
        children.append(svg.element("line", x1=x(tick), x2=x(tick), y1=40, y2=45, class_="axis"))
        children.append(svg.text(x(tick), 58, label(tick), "tick", "middle"))
    children.append(svg.text(x.last / 2, 76, "ms since the fault took effect", "axis-name", "middle"))
    said = "Stages of the recovery: " + ", ".join(f"{stage.name} {stage.took}" for stage in found)
    return svg.drawing(width, 82, said, f"plot {name}", *children)


def _fits(told: str, width: float) -> bool:
    return width > 7.4 * len(told) + 8
