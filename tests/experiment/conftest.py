"""Loads documents for the tests, and tells what is wrong with those that must not load."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from experiment_documents import CATALOGUE, MINIMAL, Load, Refused

from chaos.experiment import Catalogue, DocumentErrors, Experiment, loads


@pytest.fixture(scope="session")
def catalogue() -> Catalogue:
    return CATALOGUE


@pytest.fixture(scope="session")
def load_text() -> Load:
    """Loads a text after the smallest document there is; ``whole=True`` takes the text as it is."""

    def load(text: str = "", environ: Mapping[str, str] | None = None, *, whole: bool = False) -> Experiment:
        return loads(text if whole else MINIMAL + text, CATALOGUE, environ or {}, file="x.yaml")

    return load


@pytest.fixture(scope="session")
def refused(load_text: Load) -> Refused:
    """The problems of a text that must not load, one line each, without the file's name."""

    def problems(text: str = "", environ: Mapping[str, str] | None = None, *, whole: bool = False) -> list[str]:
        with pytest.raises(DocumentErrors) as caught:
            load_text(text, environ, whole=whole)
        lines = str(caught.value).splitlines()
        assert len(lines) == len(caught.value.problems)  # a problem is one line
        assert all(line.startswith("x.yaml:") for line in lines)
        return [line.removeprefix("x.yaml:") for line in lines]

    return problems
