"""Names in ranges: ``node[001-064]`` is 64 names, ``a,b,rack[1-2]n[1,3-4]`` is eight; as Slurm writes them.

An own grammar and not a library's: the order that is written stays, so that names and addresses can be paired, and how
many names a text stands for is known before the first of them is made.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterable, Sequence

MOST = 16_384  # names that one text may stand for

_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"([0-9]{1,9})(?:-([0-9]{1,9}))?")
_DIGITS = re.compile(r"[0-9]{1,9}")


class RangeError(ValueError):
    """A text that is no list of names; the message says what was found and what would be right."""


def terms(text: str) -> list[str]:
    """The parts of a list, split at the commas outside of brackets, without spaces around them.

    Raises:
        RangeError: a part is empty, or brackets do not match.
    """
    parts, depth = [""], 0
    for character in text:
        depth += (character == "[") - (character == "]")
        if depth not in (0, 1):
            raise RangeError(f"found '{text}', whose brackets do not match; write a range such as node[001-064]")
        if character == "," and depth == 0:
            parts.append("")
        else:
            parts[-1] += character
    parts = [part.strip() for part in parts]
    if depth or not all(parts):
        what = "whose brackets do not match" if depth else "in which a name is missing"
        raise RangeError(f"found '{text}', {what}; write names such as a,b,node[001-064]")
    return parts


def expand(text: str) -> list[str]:
    """The names that a text stands for, in the order that is written; a name given twice stays twice.

    Raises:
        RangeError: it cannot be read, or stands for more than ``MOST`` names.
    """
    split = [_split(term) for term in terms(text)]
    many = sum(math.prod(len(numbers) for _, numbers in one) for one in (part[0] for part in split))
    if many > MOST:
        raise RangeError(f"found '{text}', which stands for {many} names; write at most {MOST}")
    names = []
    for parts, last in split:
        for numbers in itertools.product(*(numbers for _, numbers in parts)):
            before = (prefix for prefix, _ in parts)
            names.append("".join(itertools.chain.from_iterable(zip(before, map(str, numbers), strict=True))) + last)
    return names


class _Numbers(Sequence[str]):
    """The numbers of one pair of brackets, as text; each is made when it is asked for."""

    def __init__(self, written: str) -> None:
        self._ranges: list[tuple[range, int]] = []
        for part in written.split(","):
            match = _RANGE.fullmatch(part.strip())
            if match is None:
                raise RangeError(f"found '[{written}]'; write numbers and ranges of them, such as [1-4,7]")
            first, last = match[1], match[2] or match[1]
            if int(last) < int(first):
                raise RangeError(f"found '[{written}]', a range that runs backwards; write [{last}-{first}]")
            if len(last) != len(first) and (last[0] == "0" or len(last) < len(first)):
                raise RangeError(f"found '[{written}]'; write both ends with as many digits, such as [001-064]")
            width = len(first) if first[0] == "0" else 0
            self._ranges.append((range(int(first), int(last) + 1), width))

    def __len__(self) -> int:
        return sum(len(numbers) for numbers, _ in self._ranges)

    def __getitem__(self, index: int) -> str:  # type: ignore[override]
        for numbers, width in self._ranges:
            if index < len(numbers):
                return f"{numbers[index]:0{width}d}"
            index -= len(numbers)
        raise IndexError(index)


def _split(term: str) -> tuple[list[tuple[str, _Numbers]], str]:
    """What stands before each pair of brackets, what they hold, and what stands after the last."""
    pieces = _BRACKETS.split(term)
    return [(before, _Numbers(held)) for before, held in zip(pieces[::2], pieces[1::2], strict=False)], pieces[-1]


def fold(names: Iterable[str]) -> str:
    """The shortest list that ``expand`` makes these names of, up to their order: ``node[1-3],spare``."""
    wanted = sorted(set(names), key=natural)
    most = max((len(_DIGITS.findall(name)) for name in wanted), default=0)
    texts = [_fold_at(wanted, place) for place in range(most)] or [list(wanted)]
    return ",".join(sorted(texts, key=len)[0])


def natural(name: str) -> tuple[tuple[str, int], ...]:
    """A key that sorts ``node2`` before ``node10``."""
    return tuple((text, int(digits or 0)) for text, digits in re.findall(r"([^0-9]*)([0-9]{0,18})", name))


def _fold_at(names: list[str], place: int) -> list[str]:
    """Folds the numbers that have so many numbers after them in their name."""
    found: dict[tuple[str, str], list[str]] = {}
    for name in names:
        numbers = list(_DIGITS.finditer(name))
        if place >= len(numbers):
            found.setdefault((name, ""), [])
            continue
        match = numbers[-1 - place]
        found.setdefault((name[: match.start()], name[match.end() :]), []).append(match[0])
    texts = []
    for (before, after), numbers_of in found.items():
        if not numbers_of:
            texts.append(before)
            continue
        padded = {len(digits) for digits in numbers_of if digits[0] == "0" and len(digits) > 1}
        by_width: dict[int, list[int]] = {}
        for digits in numbers_of:
            by_width.setdefault(len(digits) if len(digits) in padded else 0, []).append(int(digits))
        for width, values in by_width.items():
            written = _runs(sorted(values), width)
            single = len(values) == 1
            texts.append(f"{before}{written}{after}" if single else f"{before}[{written}]{after}")
    return texts


def _runs(values: list[int], width: int) -> str:
    runs: list[list[int]] = []
    for value in values:
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ",".join(
        f"{first:0{width}d}" if first == last else f"{first:0{width}d}-{last:0{width}d}" for first, last in runs
    )
