"""An OTLP receiver: what gateways export over HTTP arrives here as protobuf and is kept as spans."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.common.v1.common_pb2 import AnyValue
from opentelemetry.proto.trace.v1 import trace_pb2


@dataclass(frozen=True, slots=True)
class SpanSeen:
    service: str
    name: str
    kind: str
    trace_id: str
    span_id: str
    parent_id: str
    failed: bool
    attributes: dict[str, Any]
    events: list[str]


class Collector:
    """``endpoint`` is what OTEL_EXPORTER_OTLP_ENDPOINT is set to."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spans: list[SpanSeen] = []
        self.bytes = b""
        """All that has come, for what must not be in it."""
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                collector.take(body)
                answer = ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("content-type", "application/x-protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, format: str, *args: object) -> None:
                """Nobody reads it."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def __enter__(self) -> Self:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def spans(self, trace_id: str) -> list[SpanSeen]:
        with self._lock:
            return [span for span in self._spans if span.trace_id == trace_id]

    def all_spans(self) -> list[SpanSeen]:
        with self._lock:
            return list(self._spans)

    def take(self, body: bytes) -> None:
        request = ExportTraceServiceRequest.FromString(body)
        with self._lock:
            self.bytes += body
            for resource in request.resource_spans:
                about = {item.key: _value(item.value) for item in resource.resource.attributes}
                for scope in resource.scope_spans:
                    self._spans += [_seen(about["service.name"], span) for span in scope.spans]


def _seen(service: str, span: trace_pb2.Span) -> SpanSeen:
    return SpanSeen(
        service=service,
        name=span.name,
        kind=trace_pb2.Span.SpanKind.Name(span.kind).removeprefix("SPAN_KIND_"),
        trace_id=span.trace_id.hex(),
        span_id=span.span_id.hex(),
        parent_id=span.parent_span_id.hex(),
        failed=span.status.code == trace_pb2.Status.STATUS_CODE_ERROR,
        attributes={item.key: _value(item.value) for item in span.attributes},
        events=[event.name for event in span.events],
    )


def _value(value: AnyValue) -> Any:
    return getattr(value, str(value.WhichOneof("value")))
