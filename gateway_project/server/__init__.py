"""The gateway's ASGI server: Daphne where it serves well, our own rules where streams need them."""

from gateway_project.server.server import SOCKET_EXTENSION, GatewayServer

__all__ = ["SOCKET_EXTENSION", "GatewayServer"]
