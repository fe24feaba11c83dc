"""The windows of time in which a run may go on."""

from __future__ import annotations

import difflib
from datetime import UTC, date, datetime, timedelta, tzinfo
from typing import Annotated, Literal, get_args
from zoneinfo import ZoneInfo, available_timezones

from pydantic import AfterValidator, Field, model_validator

from chaos.documents.errors import describe
from chaos.documents.model import Model

Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
_DAYS: tuple[Day, ...] = get_args(Day)
_TIME = r"([01][0-9]|2[0-3]):[0-5][0-9]|24:00"


def _zone(name: str) -> str:
    if name != "UTC" and name not in available_timezones():
        near = difflib.get_close_matches(name, available_timezones(), n=1)
        remedy = f"did you mean '{near[0]}'?" if near else "write one such as Europe/Berlin, or UTC"
        raise ValueError(f"found {describe(name)}, which is no time zone of this machine; {remedy}")
    return name


def _time(text: str) -> str:
    _minutes(text)
    return text


def _minutes(text: str) -> int:
    """Minutes since midnight."""
    hours, colon, minutes = text.partition(":")
    right = len(hours) == len(minutes) == 2 and colon and (hours + minutes).isascii() and (hours + minutes).isdigit()
    if not right or int(minutes) > 59 or (total := int(hours) * 60 + int(minutes)) > 24 * 60:
        raise ValueError(f"found {describe(text)}; write a time of day from 00:00 to 24:00, such as 22:00")
    return total


Time = Annotated[str, AfterValidator(_time), Field(json_schema_extra={"pattern": f"^({_TIME})$"})]


class Window(Model):
    """A time of day on some days, in one time zone."""

    from_: Time = Field(alias="from")
    """When it begins, such as 22:00."""
    to: Time
    """When it ends; a time before ``from`` is one of the next day."""
    days: Annotated[list[Day], Field(min_length=1)] = Field(default_factory=lambda: list(_DAYS))
    """The days on which it begins."""
    zone: Annotated[str, AfterValidator(_zone)] = "UTC"
    """The time zone of its times, such as Europe/Berlin."""

    @model_validator(mode="after")
    def _has_a_length(self) -> Window:
        if self.from_ == self.to:
            raise ValueError(f"found a window from {self.from_} to {self.to}; for a whole day write 00:00 to 24:00")
        return self

    def admits(self, first: datetime, last: datetime) -> bool:
        """Whether everything from ``first`` to ``last`` (both aware) falls into one of its days' windows."""
        zone: tzinfo = UTC if self.zone == "UTC" else ZoneInfo(self.zone)
        begins_on = first.astimezone(zone).date()
        return any(
            self._on(day, zone, self.from_) <= first and last <= self._end(day, zone)
            for day in (begins_on, begins_on - timedelta(days=1))
            if _DAYS[day.weekday()] in self.days
        )

    def _end(self, day: date, zone: tzinfo) -> datetime:
        next_day = _minutes(self.to) < _minutes(self.from_)
        return self._on(day + timedelta(days=1) if next_day else day, zone, self.to)

    @staticmethod
    def _on(day: date, zone: tzinfo, text: str) -> datetime:
        """That time of that day, in UTC: two instants of one zone would be compared by what its clocks show."""
        days, minutes = divmod(_minutes(text), 24 * 60)
        midnight = datetime.combine(day + timedelta(days=days), datetime.min.time(), zone)
        return midnight.replace(hour=minutes // 60, minute=minutes % 60).astimezone(UTC)

    def __str__(self) -> str:
        days = "" if len(set(self.days)) == len(_DAYS) else f" on {', '.join(self.days)}"
        return f"{self.from_} to {self.to} {self.zone}{days}"
