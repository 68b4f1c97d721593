"""Whose part a span is."""

from __future__ import annotations

from opentelemetry.sdk.trace import TracerProvider

from gateway_project.tracing import OpenTelemetryTracing


def test_an_attempt_belongs_to_the_request_of_its_session_and_to_no_other():
    tracing = OpenTelemetryTracing(TracerProvider().get_tracer("tests"))
    with tracing.reader("GET /elsewhere", []):  # it takes over a session that nobody traced
        here = tracing.here()
        of_the_session = tracing.attempt(f"00-{'a' * 32}-{'b' * 16}-01", "m").traceparent
        of_nobody = tracing.attempt("", "m").traceparent
    assert of_the_session.split("-")[1] == "a" * 32
    assert of_nobody.split("-")[1] not in here
