"""The address of the browser's pages, and which requests it refuses: only those with its token, from its own pages."""

from __future__ import annotations

import hmac
import secrets
from dataclasses import dataclass, field

HOST = "127.0.0.1"
NAMES = (HOST, "localhost")
TOKEN_BYTES = 32
DIGITS = 18  # of the largest number in a request
OWN_SITE = ("same-origin", "none")  # values of Sec-Fetch-Site: a request of the page, or of the address bar


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """The address of a browser on this machine.

    Attributes:
        port: The port.
        token: A secret that the path of each request begins with. Other users of this machine do not know it.
    """

    port: int
    token: str = field(default_factory=lambda: secrets.token_urlsafe(TOKEN_BYTES), repr=False)

    @property
    def url(self) -> str:
        """The address of the page."""
        return f"http://{HOST}:{self.port}/{self.token}/"

    def resource(self, path: str) -> str | None:
        """Return the part of a request's path after the token. None: the token is wrong."""
        token, slash, rest = path.removeprefix("/").partition("/")
        right = hmac.compare_digest(token.encode("utf-8", "replace"), self.token.encode())
        return rest if right and slash and path.startswith("/") else None

    def refusal(self, *, host: str | None, origin: str | None, site: str | None) -> str | None:
        """Return why a request is refused, or None if it is not.

        A page of another site can send requests to this machine, or give this machine a name of its own (DNS
        rebinding). Its requests name another host or another origin.

        Args:
            host: The header Host.
            origin: The header Origin. Browsers send it with POST.
            site: The header Sec-Fetch-Site.
        """
        hosts = {f"{name}:{self.port}" for name in NAMES}
        if host is None or host.lower() not in hosts:
            return f"this browser answers to {' and '.join(sorted(hosts))} only; a tunnel must keep the port"
        if origin is not None and origin.lower() not in {f"http://{host}" for host in hosts}:
            return "this request comes from another site"
        if site is not None and site.lower() not in OWN_SITE:
            return "this request comes from another site"
        return None


def whole_number(text: str) -> int | None:
    """Return the number that a part of a request is. None: it is none, or has too many digits."""
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= DIGITS else None
