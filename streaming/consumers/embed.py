"""Embed tokens over HTTP, for backends: ``POST /v1/embed-tokens``, ``DELETE /v1/embed-tokens/{id}``."""

from __future__ import annotations

from uuid import UUID

from streaming.consumers.base import StreamConsumer
from streaming.consumers.openai import request_principal
from streaming.consumers.request import Request
from streaming.core.embedding import parse_order
from streaming.errors import NotFound
from streaming.runtime.gateway import current
from streaming.services import embed_tokens
from streaming.services.chat_requests import read_json, read_with


class EmbedTokensConsumer(StreamConsumer):
    """Mints a token for one end user; its text is in the answer and nowhere else."""

    methods = ("POST",)

    async def handle(self, request: Request) -> None:
        gateway = current()
        principal = await request_principal(gateway, request)
        embed_tokens.check_may_mint(principal)
        order = read_with(parse_order, read_json(request.body))
        minted = await embed_tokens.mint(gateway, principal, order)
        await self.respond_json(
            201,
            {
                "id": str(minted.id),
                "object": "embed_token",
                "token": minted.token,
                "user": order.user,
                "expires_at": minted.expires_at.isoformat(timespec="milliseconds"),
                "models": list(order.models),
                "origin": order.origin or None,
            },
            [(b"cache-control", b"no-store")],
        )


class EmbedTokenConsumer(StreamConsumer):
    """Revokes a token."""

    methods = ("DELETE",)

    async def handle(self, request: Request) -> None:
        gateway = current()
        principal = await request_principal(gateway, request)
        try:
            token_id = UUID(request.params["token_id"])
        except ValueError:
            raise NotFound("There is no such embed token.") from None
        await embed_tokens.revoke(gateway, principal, token_id)
        await self.respond_json(
            200, {"id": str(token_id), "object": "embed_token", "deleted": True}
        )
