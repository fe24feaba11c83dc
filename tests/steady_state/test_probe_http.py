"""The probe of an HTTP server, with a real one."""

from __future__ import annotations

import http.server
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from workload_views import View

from steady_state import PROBES, Measurement, ProbeFailed

LONG = 60.0
ANSWERS: dict[str, tuple[int, bytes]] = {
    "/ok": (200, "grüße".encode()),
    "/broken": (500, b"no"),
    "/json": (200, json.dumps({"data": [{"value": 12.5, "up": True}], "none": None}).encode()),
    "/list": (200, b"[1, 2]"),
    "/nonsense": (200, b"{"),
    "/deep": (200, b"[" * 100_000),
    "/huge": (200, b"x" * (2 << 20)),
}


class Handler(http.server.BaseHTTPRequestHandler):
    released = threading.Event()

    def do_GET(self) -> None:
        if self.path == "/hang":
            self.released.wait(LONG)
            return
        status, body = ANSWERS[self.path]
        self.send_response(status)
        self.send_header("Content-Type", "text/plain; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        try:
            self.wfile.write(body)
        except ConnectionError:
            return  # the probe has read enough

    def log_message(self, format: str, *arguments: Any) -> None:
        return


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    Handler.released.set()
    server.shutdown()
    server.server_close()


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def measure(url: str, timeout: float = LONG, **params: Any) -> Measurement:
    probe = PROBES["http"]
    return probe.measure(probe.Params(url=url, **params), View(), timeout)


@pytest.mark.parametrize(
    ("path", "params", "value"),
    [
        ("/ok", {}, 200),
        ("/broken", {}, 500),
        ("/ok", {"value": "body"}, "grüße"),
        ("/json", {"value": "json", "pointer": "data.0.value"}, 12.5),
        ("/json", {"value": "json", "pointer": "data.0.up"}, True),
        ("/json", {"value": "json", "pointer": "none"}, None),
        ("/list", {"value": "json"}, [1, 2]),
        ("/list", {"value": "json", "pointer": "-1"}, 2),
    ],
)
def test_a_server_gives_its_status_body_or_json(url: str, path: str, params: dict[str, str], value: object) -> None:
    """Case 35: the value that is asked for is the one that is judged."""
    assert measure(url + path, **params).value == value


@pytest.mark.parametrize(
    ("path", "params", "words"),
    [
        ("/nonsense", {"value": "json"}, "answered with what is no JSON"),
        ("/deep", {"value": "json"}, "answered with what is no JSON"),
        ("/json", {"value": "json", "pointer": "data.1"}, "has no data.1"),
        ("/json", {"value": "json", "pointer": "data.x"}, "has no data.x"),
        ("/json", {"value": "json", "pointer": "none.x"}, "has no none.x"),
        ("/huge", {"value": "body"}, "answered with more than 1048576 bytes"),
    ],
)
def test_an_answer_that_cannot_be_measured_is_a_failed_probe(
    url: str, path: str, params: dict[str, str], words: str
) -> None:
    with pytest.raises(ProbeFailed, match=words):
        measure(url + path, **params)


def test_a_refused_connection_is_a_failed_probe() -> None:
    """Case 39: litmus took it for an error of its own."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        with pytest.raises(ProbeFailed, match=r"cannot be reached: .*refused"):
            measure(f"http://127.0.0.1:{held.getsockname()[1]}/")


def test_a_server_that_does_not_answer_is_a_failed_probe(url: str) -> None:
    with pytest.raises(ProbeFailed, match=r"did not answer within 0.2 s"):
        measure(url + "/hang", timeout=0.2)


@pytest.mark.parametrize("url", ["http://[::1", "http://a b/", "http://no-such-host.invalid/", "http://"])
def test_an_address_that_leads_nowhere_is_a_failed_probe(url: str) -> None:
    with pytest.raises(ProbeFailed):
        measure(url)


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"url": "ftp://x"}, "write one that starts with http://"),
        ({"url": "http://x", "pointer": "a"}, "found 'pointer' without 'value: json'"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(params: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        PROBES["http"].Params(**params)


def test_httpx_is_imported_only_when_it_is_used() -> None:
    program = "import steady_state, sys; raise SystemExit('httpx' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
