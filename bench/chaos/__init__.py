"""Readers of real streams while nodes, gateways, Redis and PostgreSQL are really killed."""
