"""What an engine wants to see of us, by reference: secrets are never in options, logs or errors.

A reference is ``env:NAME`` or ``file:/path``. Files are read again when they have changed, as the
secrets of Kubernetes and Vault do under a running process.
"""

from __future__ import annotations

import os
import re
import ssl
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, TypeVar

from streaming.core.nodes import NodeOptions

# A rotated file is noticed this much later at most; in between no file is looked at.
LOOK_EVERY = 1.0

T = TypeVar("T")
_Stamp = tuple[tuple[int, int, int] | str | None, ...]


class CredentialMissing(Exception):
    """A secret cannot be had, or is none. Says which reference, never what is behind it."""


class Credentials:
    """The key, certificate and authority of one node, always in their current version."""

    def __init__(self, options: NodeOptions, clock: Callable[[], float] = time.monotonic) -> None:
        key, tls = options.credential, (options.client_cert, options.client_key, options.ca)
        self._options = options
        self._headers = _Kept([key], lambda: _bearer(key), clock)
        self._context = _Kept(tls, lambda: _context(options), clock)

    def __repr__(self) -> str:
        named = {
            name: getattr(self._options, name)
            for name in ("credential", "client_cert", "client_key", "ca")
            if getattr(self._options, name)
        }
        return f"<Credentials {named}>"

    def headers(self) -> dict[str, str]:
        """What proves who we are. Raises ``CredentialMissing``."""
        return self._headers.get() if self._options.credential else {}

    def tls(self) -> ssl.SSLContext | None:
        """The context for HTTPS; None where the system's own will do.

        A new one after a rotation. Raises ``CredentialMissing``.
        """
        wanted = self._options.client_cert or self._options.ca
        return self._context.get() if wanted else None

    def redacted(self, text: bytes) -> bytes:
        """``text`` of an engine without the key, which some engines repeat when they refuse it."""
        key = self._headers.value and self._headers.value["authorization"].removeprefix("Bearer ")
        return text.replace(key.encode(), b"[credential]") if key else text


class _Kept(Generic[T]):
    """A value made from references, made again when one of them has changed."""

    def __init__(
        self,
        references: list[str] | tuple[str, ...],
        make: Callable[[], T],
        clock: Callable[[], float],
    ) -> None:
        self._references = references
        self._make = make
        self._clock = clock
        self._stamp: _Stamp | None = None
        self._looked_at = -LOOK_EVERY
        self.value: T | None = None

    def get(self) -> T:
        now = self._clock()
        if self.value is None or now - self._looked_at >= LOOK_EVERY:
            # The stamp is older than the content: a change between the two is seen next time.
            stamp = tuple(map(_stamp, self._references))
            if self.value is None or stamp != self._stamp:
                self.value = None
                self.value = self._make()
                self._stamp = stamp
            self._looked_at = now
        return self.value


def _stamp(reference: str) -> tuple[int, int, int] | str | None:
    """What changes when the secret does."""
    kind, _, where = reference.partition(":")
    if kind != "file":
        return os.environ.get(where)
    try:
        status = os.stat(where)
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def _secret(name: str, reference: str) -> bytes:
    kind, _, where = reference.partition(":")
    if kind == "env":
        value = os.environ.get(where, "").encode(errors="surrogateescape")
        if not value:
            raise CredentialMissing(f"{name}: the environment has no {where}")
        return value
    try:
        return Path(where).read_bytes()
    except OSError as exc:
        raise CredentialMissing(f"{name}: {where}: {exc.strerror}") from None


def _bearer(reference: str) -> dict[str, str]:
    key = _secret("credential", reference).strip()
    if not re.fullmatch(rb"[\x21-\x7e]+", key):
        raise CredentialMissing(f"credential: {reference} is not one line of printable characters")
    return {"authorization": f"Bearer {key.decode()}"}


def _context(options: NodeOptions) -> ssl.SSLContext:
    try:
        authority = _secret("ca", options.ca).decode() if options.ca else None
        context = ssl.create_default_context(cadata=authority)
    except (ssl.SSLError, ValueError):
        raise CredentialMissing(f"ca: {options.ca} is not a certificate in PEM") from None
    if options.client_cert:
        with (
            _as_file("client_cert", options.client_cert) as cert,
            _as_file("client_key", options.client_key) as key,
        ):
            try:
                # A key with a passphrase would ask for it on the terminal.
                context.load_cert_chain(cert, key, password="")
            except (ssl.SSLError, OSError, ValueError):
                pair = f"{options.client_cert} and {options.client_key}"
                raise CredentialMissing(
                    f"client_cert, client_key: {pair} are not a certificate and its key in PEM"
                ) from None
    return context


@contextmanager
def _as_file(name: str, reference: str) -> Iterator[str]:
    """The secret as a file, which is the only form that ``ssl`` takes it in.

    A copy of what was read: a rotation while it is loaded would mix two versions.
    """
    content = _secret(name, reference)
    with tempfile.NamedTemporaryFile(prefix="unbroken-") as file:
        file.write(content)
        file.flush()
        yield file.name
