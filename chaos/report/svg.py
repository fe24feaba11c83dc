"""Elements of SVG, escaped."""

from collections.abc import Iterable

from markupsafe import Markup, escape

Attribute = str | float | int


def element(name: str, *children: str, **attributes: Attribute) -> Markup:
    """One element. Text children are escaped; in the attributes' names a last ``_`` is dropped, others become ``-``."""
    shown = "".join(
        f' {key.removesuffix("_").replace("_", "-")}="{escape(number(value))}"' for key, value in attributes.items()
    )
    inner = Markup().join(children)
    return Markup(f"<{name}{shown}/>") if not children else Markup(f"<{name}{shown}>{inner}</{name}>")


def number(value: Attribute) -> str:
    """A coordinate to a tenth of a pixel."""
    return value if isinstance(value, str) else f"{value:.1f}".removesuffix(".0")


def polyline(points: Iterable[tuple[float, float]], class_: str) -> Markup:
    """A line through points."""
    path = "L".join(f"{number(x)} {number(y)}" for x, y in points)
    return element("path", d="M" + path, class_=class_) if path else Markup()


def dots(points: Iterable[tuple[float, float]], class_: str) -> Markup:
    """A dot at each point, as one path of zero-length strokes with round ends: eight bytes a dot."""
    path = "".join(f"M{x:.0f} {y:.0f}h0" for x, y in dict.fromkeys((round(x), round(y)) for x, y in points))
    return element("path", d=path, class_=class_) if path else Markup()


def text(x: float, y: float, content: str, class_: str, anchor: str = "start") -> Markup:
    """A line of text."""
    return element("text", content, x=x, y=y, class_=class_, text_anchor=anchor)


def drawing(width: int, height: int, label: str, class_: str, *children: str) -> Markup:
    """A whole drawing, as wide as its place, with ``label`` as its description for those who do not see it."""
    return element(
        "svg", *children, viewBox=f"0 0 {width} {height}", role="img", aria_label=label, class_=class_, width="100%"
    )
