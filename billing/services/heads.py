"""The end of the audit log, signed and told to the world outside of the database.

Who cuts entries off the log cannot cut them off the log lines and export manifests that were written
before: there a later head is found.
"""

from __future__ import annotations

import hmac
import json
import logging
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from django.conf import settings
from django.utils.crypto import salted_hmac

from billing.conf import conf
from billing.core.chain import GENESIS, signature
from billing.models import AuditHead

logger = logging.getLogger("billing.audit")

_SALT = "billing.audit.head"
_LINE = re.compile(r"audit head seq=(\d+) sha256=([0-9a-f]{64}) signature=([0-9a-f]{64})")
MANIFEST_BYTES = 16 * 2**20
"""A larger file is no manifest."""


@dataclass(frozen=True, slots=True)
class Head:
    """The last entry's number and hash, as somebody with the key has seen them."""

    seq: int
    hash_hex: str
    signature: str

    def __str__(self) -> str:
        return f"audit head seq={self.seq} sha256={self.hash_hex} signature={self.signature}"

    @property
    def is_ours(self) -> bool:
        """Whether one of our keys has signed it."""
        head = bytes.fromhex(self.hash_hex)
        return any(
            hmac.compare_digest(signature(key, self.seq, head), self.signature) for key in _keys()
        )

    def for_manifest(self) -> dict[str, Any]:
        """As a manifest holds it under ``audit_head``."""
        return {"seq": self.seq, "hash": self.hash_hex, "signature": self.signature}


def publish() -> Head:
    """The head as it is now, also as a line of the log.

    Not to be called within a transaction that has appended: what is undone would be published.
    """
    row = AuditHead.objects.filter(pk=1).first()
    seq, last = (0, GENESIS) if row is None else (row.seq, bytes(row.hash))
    head = Head(seq, last.hex(), signature(_keys()[0], seq, last))
    logger.info("%s", head)
    return head


def parse(line: str) -> Head | None:
    """The head that a log line tells of, whatever stands around it."""
    found = _LINE.search(line)
    return None if found is None else Head(int(found[1]), found[2], found[3])


def of_manifest(manifest: dict[str, Any]) -> Head:
    """The head in an export's manifest. Raises ``ValueError`` for one without."""
    match manifest.get("audit_head"):
        case {"seq": int(seq), "hash": str(hash_hex), "signature": str(signed)}:
            head = parse(str(Head(seq, hash_hex, signed)))
            if head is not None:
                return head
    raise ValueError("the manifest has no audit head")


def read(path: Path) -> Iterator[Head]:
    """All heads in a log file or a manifest. Raises ``ValueError`` when there is none."""
    manifest = _manifest(path)
    if manifest is not None:
        try:
            yield of_manifest(manifest)
        except ValueError as exc:
            raise ValueError(f"{path}: {exc}") from exc
        return
    found = False
    with path.open(errors="replace") as lines:
        for line in lines:
            if head := parse(line):
                found = True
                yield head
    if not found:
        raise ValueError(f"{path} tells of no audit head")


def kept() -> Iterator[Head]:
    """The heads in the manifests of the exports that this machine keeps."""
    for path in sorted((settings.DATA_DIR / "exports").glob("[!.]*/manifest.json")):
        try:
            yield from read(path)
        except (FileNotFoundError, ValueError) as exc:
            # It proves nothing; all that the others prove has still to be looked at.
            logger.warning("a manifest without an audit head: %s", exc)


def _manifest(path: Path) -> dict[str, Any] | None:
    if path.stat().st_size > MANIFEST_BYTES:
        return None
    text = path.read_text(errors="replace")
    if not text.lstrip().startswith("{"):
        return None
    try:
        return json.loads(text)
    except ValueError:  # a log whose lines are JSON
        return None


def _keys() -> list[bytes]:
    """Those that are accepted; the first signs."""
    named = [key.strip() for key in conf().audit_key.split(",") if key.strip()]
    if named:
        return [key.encode() for key in named]
    secrets = [settings.SECRET_KEY, *settings.SECRET_KEY_FALLBACKS]
    return [salted_hmac(_SALT, "", secret=key, algorithm="sha256").digest() for key in secrets]
