"""Writes the reports of a run into its folder."""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from chaos.report import html, junit, markdown


def render(
    card: Mapping[str, Any], journal: Sequence[Mapping[str, Any]], steps: Sequence[Mapping[str, Any]], folder: Path
) -> list[Path]:
    """Write ``scorecard.html``, ``scorecard.md`` and ``junit.xml``; each is replaced as a whole or not at all.

    Args:
        card: the scorecard.
        journal: the run's journal, in order.
        steps: its step events, in any order.
        folder: an existing folder.

    Returns:
        The files, in that order.

    Raises:
        OSError: a file cannot be written.
    """
    pages = {
        "scorecard.html": html.page(card, journal, steps),
        "scorecard.md": markdown.page(card),
        "junit.xml": junit.document(card),
    }
    return [_replace(folder / name, text) for name, text in pages.items()]


def _replace(path: Path, text: str) -> Path:
    fresh = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        # A lone surrogate (a file name that was no UTF-8, say) must not cost the report.
        fresh.write_text(text, encoding="utf-8", errors="backslashreplace")
        fresh.replace(path)
    finally:
        fresh.unlink(missing_ok=True)
    return path
