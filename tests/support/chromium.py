"""Headless Chromium (Debian's package chromium), driven over a pipe by its DevTools protocol: no socket, no library.

By hand: python -m tests.support.chromium PAGE.html PICTURE.png ID HEIGHT takes a picture of a page from an element on.
"""

from __future__ import annotations

import base64
import contextlib
import fcntl
import json
import os
import select
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROGRAM = "chromium"
SWITCHES = (
    "--headless=new",
    "--remote-debugging-pipe",
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-extensions",
    "--no-first-run",
    "--hide-scrollbars",
    "--font-render-hinting=none",
)
SECONDS = 60.0  # the time limit of an answer


def is_installed() -> bool:
    """Return whether Chromium is on PATH."""
    return shutil.which(PROGRAM) is not None


class Browser:
    """A running Chromium. JSON messages that end in a zero byte go to its descriptor 3 and come from descriptor 4."""

    def __init__(self, reading: int, writing: int, log: Path) -> None:
        self._reading, self._writing, self._log = reading, writing, log
        self._buffer = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def call(self, method: str, session: str | None = None, **parameters: Any) -> dict[str, Any]:
        """Return the answer to a command; store events that arrive before it.

        Raises:
            RuntimeError: the command failed.
        """
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session is not None:
            message["sessionId"] = session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(time.monotonic() + SECONDS)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return dict(answer["result"])
            self.events.append(answer)

    def _next(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._reading], [], [], max(0.0, deadline - time.monotonic()))
            more = os.read(self._reading, 1 << 20) if ready else b""
            if not more:
                what = "ended" if ready else f"said nothing for {SECONDS} s"
                raise RuntimeError(f"chromium {what}\n{self._log.read_text(errors='replace')[-2000:]}")
            self._buffer += more
        message, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(message))

    @contextlib.contextmanager
    def page(self, path: Path | str, *, width: int = 1200, height: int = 900, dark: bool = False) -> Iterator[Page]:
        """Open a file or an address in a new tab, and wait until it is loaded."""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        page = Page(self, session)
        for domain in ("Page", "Runtime", "Log", "Network"):
            page.call(f"{domain}.enable")
        page.resize(width, height)
        page.prefer(dark=dark)
        page.call("Page.navigate", url=path if isinstance(path, str) else path.absolute().as_uri())
        page.wait("document.readyState === 'complete' && location.href !== 'about:blank'")
        yield page
        self.call("Target.closeTarget", targetId=target)


class Page:
    """A tab."""

    def __init__(self, browser: Browser, session: str) -> None:
        self._browser, self._session = browser, session

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Return the answer to a command to this tab."""
        return self._browser.call(method, self._session, **parameters)

    def resize(self, width: int, height: int) -> None:
        """Give the tab a size in CSS pixels."""
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def prefer(self, *, dark: bool) -> None:
        """Set the user's preferred colour scheme."""
        value = "dark" if dark else "light"
        self.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": value}])

    def evaluate(self, expression: str) -> Any:
        """Return the awaited value of a JavaScript expression.

        Raises:
            RuntimeError: the expression threw an exception.
        """
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{expression}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def wait(self, condition: str, seconds: float = SECONDS) -> None:
        """Wait until an expression is true.

        Raises:
            RuntimeError: it was not true within `seconds`.
        """
        deadline = time.monotonic() + seconds
        while not self.evaluate(condition):
            if time.monotonic() > deadline:
                raise RuntimeError(f"not so after {seconds} s: {condition}")
            time.sleep(0.02)

    def press(self, key: str) -> None:
        """Press a key: Tab, Enter, PageDown, or a letter."""
        codes = {"Tab": 9, "Enter": 13, "PageDown": 34, "End": 35}
        facts: dict[str, Any] = {"key": key, "code": key, "windowsVirtualKeyCode": codes.get(key, 0)}
        text = "\r" if key == "Enter" else key if len(key) == 1 else None
        self.call("Input.dispatchKeyEvent", type="keyDown", **facts, **({"text": text} if text else {}))
        self.call("Input.dispatchKeyEvent", type="keyUp", **facts)

    def type(self, text: str) -> None:
        """Type a text into the focused element."""
        self.call("Input.insertText", text=text)

    def complaints(self) -> list[str]:
        """Return what was logged to the console, thrown, or refused by the page's policy."""
        methods = ("Runtime.consoleAPICalled", "Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(event["params"])[:500] for event in self._events() if event["method"] in methods]

    def requests(self) -> list[str]:
        """Return the requests of the page, except for resources that it embeds."""
        addresses = [
            str(event["params"]["request"]["url"])
            for event in self._events()
            if event["method"] == "Network.requestWillBeSent"
        ]
        return [address for address in addresses if not address.startswith("data:")]

    def _events(self) -> Iterator[dict[str, Any]]:
        self.evaluate("0")  # after this, all earlier events have arrived
        return (event for event in self._browser.events if event.get("sessionId") == self._session)

    def screenshot(self, *, whole: bool = False) -> bytes:
        """Return a PNG of the visible part of the page, or of all of it."""
        answer = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(answer["data"])

    def pdf(self) -> bytes:
        """Return the page as it is printed, on A4."""
        answer = self.call("Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=True)
        return base64.b64decode(answer["data"])


@contextlib.contextmanager
def browser() -> Iterator[Browser]:
    """Run Chromium with a temporary profile."""
    program = shutil.which(PROGRAM)
    if program is None:
        raise RuntimeError(f"{PROGRAM} is not on PATH: apt install chromium")
    # Chromium takes long to remove its files; remains of its profile may be removed later.
    with (
        tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True) as home,
        contextlib.ExitStack() as stack,
    ):
        from_us, to_child = _pipe()
        from_child, to_us = _pipe()
        stack.callback(os.close, to_child)
        stack.callback(os.close, from_child)
        log = Path(home) / "log"
        child = os.posix_spawn(
            program,
            [program, *SWITCHES, f"--user-data-dir={home}/profile", "about:blank"],
            {**os.environ, "HOME": home},
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
                (os.POSIX_SPAWN_DUP2, 1, 2),
                (os.POSIX_SPAWN_DUP2, from_us, 3),
                (os.POSIX_SPAWN_DUP2, to_us, 4),
            ],
            setpgroup=0,
        )
        os.close(from_us)
        os.close(to_us)
        try:
            yield Browser(from_child, to_child, log)
        finally:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)


def _pipe() -> tuple[int, int]:
    """Return the two ends of a pipe, with descriptors from 10 on, which differ from those that a child is given."""
    ends = os.pipe()
    reading, writing = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in ends)
    for end in ends:
        os.close(end)
    return reading, writing


if __name__ == "__main__":
    import sys

    with browser() as running, running.page(Path(sys.argv[1]).absolute(), height=int(sys.argv[4])) as shown:
        shown.evaluate(f"document.getElementById({sys.argv[3]!r}).scrollIntoView()")
        Path(sys.argv[2]).write_bytes(shown.screenshot())
