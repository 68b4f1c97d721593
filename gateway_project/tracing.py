"""Traces by OpenTelemetry, for gateways whose environment names an OTLP endpoint.

Without one nothing of it is imported. The packages are in ``requirements-tracing.txt``; the SDK reads its
other ``OTEL_*`` variables itself. Names of attributes follow OpenTelemetry's conventions for HTTP and for
generative AI where these have one, and begin with ``unbroken.`` else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from django.conf import settings
from opentelemetry import propagate, trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import Span, SpanKind, Status, StatusCode, Tracer

from streaming.ports import ports
from streaming.tracing import AttemptSpan, Attribute, ReaderSpan

CARRIED = frozenset({b"traceparent", b"tracestate"})
"""Of a request's headers."""

# Where conventions have a name of their own.
_NAMES = {
    "engine": "gen_ai.provider.name",
    "input_tokens": "gen_ai.usage.input_tokens",
    "output_tokens": "gen_ai.usage.output_tokens",
    "path": "url.path",
    "method": "http.request.method",
}


def begin() -> Callable[[], None]:
    """Trace from now on what this process does; returns what sends the rest and ends it."""
    provider = TracerProvider(resource=_resource())
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    ports.tracing = OpenTelemetryTracing(provider.get_tracer("unbroken"))
    return provider.shutdown


def _resource() -> Resource:
    """What OTEL_SERVICE_NAME and OTEL_RESOURCE_ATTRIBUTES say, over our own name."""
    made = Resource.create()
    named = not str(made.attributes[SERVICE_NAME]).startswith("unknown_service")
    return made if named else made.merge(Resource({SERVICE_NAME: settings.TRACES_SERVICE}))


def _named(attributes: dict[str, Attribute]) -> dict[str, Attribute]:
    return {_NAMES.get(name, f"unbroken.{name}"): value for name, value in attributes.items()}


class OpenTelemetryTracing:
    """``streaming.tracing.Tracing``."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer

    @contextmanager
    def reader(
        self, name: str, headers: Iterable[tuple[bytes, bytes]], **attributes: Attribute
    ) -> Iterator[ReaderSpan]:
        carrier = {
            key.decode(): value.decode("latin-1") for key, value in headers if key in CARRIED
        }
        with self._tracer.start_as_current_span(
            name,
            context=propagate.extract(carrier),
            kind=SpanKind.SERVER,
            attributes=_named(attributes),
            # An exception's words may quote what was asked.
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            yield _Reader(span)

    def here(self) -> str:
        carrier: dict[str, str] = {}
        propagate.inject(carrier)
        return carrier.get("traceparent", "")

    def attempt(self, within: str, model: str, **attributes: Attribute) -> AttemptSpan:
        url = urlsplit(str(attributes.pop("url", "")))
        return _Attempt(
            self._tracer.start_span(
                f"text_completion {model}",
                # Without one it begins a trace: whoever happens to run us is not its parent.
                context=propagate.extract({"traceparent": within} if within else {}),
                kind=SpanKind.CLIENT,
                attributes={
                    "gen_ai.operation.name": "text_completion",
                    "gen_ai.request.model": model,
                    "server.address": url.hostname or "",
                    "server.port": url.port or (443 if url.scheme == "https" else 80),
                    **_named(attributes),
                },
            )
        )


class _Reader:
    def __init__(self, span: Span) -> None:
        self._span = span

    def note(self, **attributes: Attribute) -> None:
        self._span.set_attributes(_named(attributes))

    def answered(self, status: int) -> None:
        self._span.set_attribute("http.response.status_code", status)
        if status >= 500:
            self._span.set_status(Status(StatusCode.ERROR))


class _Attempt:
    def __init__(self, span: Span) -> None:
        self._span = span
        carrier: dict[str, str] = {}
        propagate.inject(carrier, trace.set_span_in_context(span))
        self.traceparent = carrier.get("traceparent", "")

    def first_token(self) -> None:
        self._span.add_event("first token")

    def end(self, reason: str, *, is_failure: bool, **attributes: Attribute) -> None:
        self._span.set_attributes(_named({"end_reason": reason, **attributes}))
        if is_failure:
            self._span.set_status(Status(StatusCode.ERROR, reason))
        self._span.end()
