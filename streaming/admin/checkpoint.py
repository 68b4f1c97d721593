"""The token log, row by row; without its text, which is content."""

from __future__ import annotations

from django.contrib import admin

from streaming.admin.read_only import ReadOnlyAdmin
from streaming.admin.search import SearchBySession
from streaming.admin.tenancy import OfSession
from streaming.models import TokenCheckpoint


@admin.register(TokenCheckpoint)
class TokenCheckpointAdmin(OfSession, ReadOnlyAdmin, SearchBySession):
    list_display = ["id", "session_link", "first_seq", "last_seq", "attempt", "epoch", "created_at"]
    fields = [
        "session_link", "first_seq", "last_seq", "attempt", "epoch", "closes", "digest_hex",
        "created_at",
    ]  # fmt: skip
    readonly_fields = ["session_link", "closes", "digest_hex"]

    @admin.display(description="closes the log", boolean=True)
    def closes(self, row: TokenCheckpoint) -> bool:
        return row.terminal is not None

    @admin.display(description="digest")
    def digest_hex(self, row: TokenCheckpoint) -> str:
        return bytes(row.digest).hex()
