"""Static files under ASGI."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse
from whitenoise.middleware import WhiteNoiseMiddleware


class StaticFiles(WhiteNoiseMiddleware):
    """WhiteNoise, answering with the whole file at once.

    Its own response is a synchronous iterator, which Django under ASGI reads to the end anyway,
    with a warning per request. The files are small.
    """

    @staticmethod
    def serve(static_file: object, request: HttpRequest) -> HttpResponse:
        streamed = WhiteNoiseMiddleware.serve(static_file, request)
        response = HttpResponse(streamed.getvalue(), status=streamed.status_code)
        response.headers = streamed.headers
        return response
