"""The probe of an HTTP server: the status of a GET, its body, or one value of its JSON."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from steady_state.contract import Measurement, ProbeFailed, ValueType
from steady_state.view import WorkloadView

if TYPE_CHECKING:
    import httpx

_MOST_BODY = 1 << 20  # bytes


@dataclass(frozen=True)
class HttpParams:
    """What to get, and what of the answer is the value."""

    url: str = field(metadata={"help": "http:// or https://"})
    value: Literal["status", "body", "json"] = field(
        default="status", metadata={"help": "the status code, the text of the body, or a value of its JSON"}
    )
    pointer: str = field(
        default="", metadata={"help": "where in the JSON: names and list indices joined by dots, data.0.value"}
    )

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"found the url {self.url!r}; write one that starts with http:// or https://")
        if self.pointer and self.value != "json":
            raise ValueError("found 'pointer' without 'value: json'; add that, or leave the pointer out")


class Http:
    """What an HTTP server answers."""

    name = "http"
    about = "the status, the body or a value of the JSON that a GET brings"
    value: ValueType = "any"
    Params = HttpParams

    def measure(self, params: HttpParams, _view: WorkloadView, timeout: float, /) -> Measurement:
        """A server that cannot be reached, or does not answer in time, is a failure; a status of 500 is a value."""
        import httpx  # noqa: PLC0415 - slow to import, and most experiments do without

        deadline = time.monotonic() + timeout
        try:
            with httpx.stream("GET", params.url, timeout=timeout) as response:
                body = b"" if params.value == "status" else _body(response, deadline)
                status, encoding = response.status_code, response.encoding or "utf-8"
        except httpx.TimeoutException:
            raise ProbeFailed(f"{params.url} did not answer within {timeout:g} s") from None
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise ProbeFailed(f"{params.url} cannot be reached: {error}") from None
        evidence = {"status": status, "bytes": len(body)}
        if params.value == "status":
            return Measurement(status, f"{params.url} answered {status}", evidence)
        text = body.decode(encoding, "replace")
        if params.value == "body":
            return Measurement(text, f"{params.url} answered {status} with {len(text)} characters", evidence)
        return Measurement(_pointed(text, params), f"{params.pointer or 'the JSON'} of {params.url}", evidence)


def _body(response: httpx.Response, deadline: float) -> bytes:
    body = bytearray()
    for chunk in response.iter_bytes():
        body += chunk
        if len(body) > _MOST_BODY:
            raise ProbeFailed(f"{response.url} answered with more than {_MOST_BODY} bytes")
        if time.monotonic() > deadline:
            raise ProbeFailed(f"{response.url} did not end its answer in time")
    return bytes(body)


def _pointed(text: str, params: HttpParams) -> Any:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProbeFailed(f"{params.url} answered with what is no JSON: {error}") from None
    done: list[str] = []
    for part in params.pointer.split(".") if params.pointer else ():
        done.append(part)
        try:
            value = value[int(part)] if isinstance(value, list) else value[part]
        except (KeyError, IndexError, ValueError, TypeError):
            raise ProbeFailed(f"the JSON of {params.url} has no {'.'.join(done)}") from None
    return value
