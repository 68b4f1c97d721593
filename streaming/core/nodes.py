"""What can be configured about an engine node, and how a node is written in the environment."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from streaming.core.templates import TEMPLATES

DIALECTS = ("vllm", "llamacpp")
CONTINUATIONS = ("ids", "text", "regenerate")


@dataclass(frozen=True, slots=True)
class NodeOptions:
    """What may be said of a node beyond its address. All values are strings, as in a query string.

    ``continuation``: ids (default), text or regenerate. ``template``: chatml or llama3.
    ``prompt_cache``: on (default) or off. A node whose engine can neither take nor give token ids
    is continued from text, rendered with the named template; ``regenerate`` asks again from the
    start and suppresses what was delivered. Without its prompt cache llama.cpp computes every
    continuation the same way, which makes greedy answers repeatable across a seam; it costs the
    time of a whole prefill.

    ``credential``: the API key of the engine; ``client_cert`` and ``client_key``: our certificate
    (PEM); ``ca``: whom to believe. Each is ``env:NAME`` or ``file:/path``, read when it is needed,
    so that a rotated one needs no restart; never the secret itself.

    ``capacity``: the streams it is to run at once (default: what the engine tells).
    ``exclusive``: on (default) where no other client uses the node, so that every request on it
    must be ours; else off. ``dns``: all has one node for each address of the name (a headless
    service of Kubernetes). ``gpu_metrics``: the URL of its GPU exporter. ``pod``:
    ``namespace/name`` of its pod. ``priority``: on where the engine schedules by the priority of
    requests (vLLM refuses one otherwise); off is the default.
    """

    continuation: str = "ids"
    template: str = ""
    prompt_cache: str = "on"
    credential: str = ""
    client_cert: str = ""
    client_key: str = ""
    ca: str = ""
    capacity: str = ""
    exclusive: str = "on"
    dns: str = ""
    gpu_metrics: str = ""
    pod: str = ""
    priority: str = "off"

    def said(self) -> dict[str, str]:
        """What differs from the defaults: what is stored."""
        return {
            f.name: getattr(self, f.name)
            for f in dataclasses.fields(self)
            if getattr(self, f.name) != f.default
        }

    @classmethod
    def parse(cls, options: Mapping[str, Any]) -> NodeOptions:
        """Raise ``ValueError`` naming the option that is unknown or has an unknown value."""
        if not isinstance(options, Mapping):
            raise ValueError("options must be an object of names and values")
        for name, value in options.items():
            if name not in _ALLOWED:
                raise ValueError(f"unknown node option {name!r}; known: {', '.join(_ALLOWED)}")
            allowed, words = _ALLOWED[name]
            if not isinstance(value, str) or not re.fullmatch(allowed, value):
                raise ValueError(f"{name} must be {words}")
        parsed = cls(**options)
        if parsed.continuation != "ids" and not parsed.template:
            raise ValueError(f"continuation={parsed.continuation} needs a template")
        if bool(parsed.client_cert) != bool(parsed.client_key):
            raise ValueError("client_cert and client_key need each other")
        return parsed


def _one_of(*choices: str) -> tuple[str, str]:
    return "|".join(choices), f"one of {', '.join(choice for choice in choices if choice)}"


_REFERENCE = (r"|env:[A-Za-z_]\w*|file:/\S+", "env:NAME or file:/path (never the secret itself)")
_ALLOWED: dict[str, tuple[str, str]] = {
    "continuation": _one_of(*CONTINUATIONS),
    "template": _one_of("", *TEMPLATES),
    "prompt_cache": _one_of("on", "off"),
    "credential": _REFERENCE,
    "client_cert": _REFERENCE,
    "client_key": _REFERENCE,
    "ca": _REFERENCE,
    "capacity": (r"|[1-9]\d{0,5}", "a number of streams"),
    "exclusive": _one_of("on", "off"),
    "dns": _one_of("", "all"),
    "gpu_metrics": (r"|https?://[^\s/?#@]+([/?#]\S*)?", "a URL without user name and password"),
    "pod": (r"|[a-z0-9.-]+/[a-z0-9.-]+", "namespace/name"),
    "priority": _one_of("on", "off"),
}


def check_address(base_url: str) -> None:
    """Raise ``ValueError`` if an address holds a secret, without repeating it.

    Addresses are shown, logged and stored in the clear.
    """
    if "@" in urlsplit(base_url).netloc:
        raise ValueError(
            "an address must not hold a user name or password: "
            "give the key by reference, as credential=env:NAME or credential=file:/path"
        )


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A configured node: ``[name=]dialect+http://host:port[?option=value&…]``."""

    name: str
    dialect: str
    base_url: str
    options: NodeOptions = NodeOptions()
    weight: float = 1.0

    @classmethod
    def parse(cls, text: str) -> NodeSpec:
        """Read one entry of ENGINE_NODES. Raises ``ValueError`` saying what is wrong with it.

        For example ``gpu-a=vllm+http://10.0.0.7:8000?weight=2&credential=env:GPU_A_KEY``.
        """
        match = re.fullmatch(r"(?:([A-Za-z0-9][\w.-]*)=)?(\w+)\+(https?://\S+)", text.strip())
        if match is None:
            shown = re.sub(r"//[^/\s]*@", "//…@", text)
            raise ValueError(f"{shown!r} is not of the form [name=]dialect+http://host:port")
        name, dialect, url = match.groups()
        if dialect not in DIALECTS:
            raise ValueError(f"unknown dialect {dialect!r}; known: {', '.join(DIALECTS)}")
        check_address(url)
        parts = urlsplit(url)
        if not parts.hostname:
            raise ValueError(f"{text!r} names no host")
        if parts.port == 0:  # asking for it raises ValueError when it is out of range
            raise ValueError(f"{text!r} has port 0")
        options = dict(parse_qsl(parts.query, keep_blank_values=True))
        weight = _weight(options.pop("weight", "1"))
        if options.get("dns") == "all" and _is_address(parts.hostname):
            raise ValueError("dns=all is for names; this is an address already")
        base = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}"
        return cls(name or parts.netloc, dialect, base, NodeOptions.parse(options), weight)


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def _weight(text: str) -> float:
    try:
        weight = float(text)
    except ValueError:
        weight = 0.0
    if not 0.01 <= weight <= 1000:
        raise ValueError("weight must be 0.01 to 1000")
    return weight


def parse_engine_nodes(text: str) -> list[NodeSpec]:
    """Read ENGINE_NODES (comma-separated). Raises ``ValueError`` for a bad or doubled entry."""
    specs = [NodeSpec.parse(part) for part in text.split(",") if part.strip()]
    for attribute in ("name", "base_url"):
        values = [getattr(spec, attribute) for spec in specs]
        doubled = {value for value in values if values.count(value) > 1}
        if doubled:
            raise ValueError(f"{attribute} given twice in ENGINE_NODES: {', '.join(doubled)}")
    return specs
