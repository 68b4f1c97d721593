"""The test stack itself: what other tests rely on."""

from __future__ import annotations

import httpx
import psycopg
import pytest
import redis


def test_each_stack_has_its_own_database_and_answers(start_stack):
    one, other = start_stack(), start_stack()
    for stack in (one, other):
        assert httpx.get(stack.gateway().url + "/admin/login/").status_code == 200
    one.api_key("acme")
    one.api_key("acme")
    assert one.sql("SELECT count(*) FROM streaming_tenant") == [(1,)]
    assert one.sql("SELECT count(*) FROM streaming_apikey") == [(2,)]
    assert other.sql("SELECT count(*) FROM streaming_tenant") == [(0,)]


def test_a_killed_gateway_starts_again_on_its_port(start_stack):
    gateway = start_stack().gateway()
    url, pid = gateway.url, gateway.pid
    gateway.kill()
    with pytest.raises(httpx.ConnectError):
        httpx.get(url)
    gateway.start_again()
    assert gateway.url == url
    assert gateway.pid != pid
    assert httpx.get(url + "/admin/login/").status_code == 200


@pytest.mark.parametrize("crash", [False, True])
def test_private_servers_stop_and_keep_what_was_committed(start_stack, crash):
    stack = start_stack(gateways=0, private_postgres=True, private_redis=True)
    stack.api_key("acme")
    stack.stop_postgres(kill=crash)
    with pytest.raises(psycopg.OperationalError):
        stack.sql("SELECT 1")
    stack.start_postgres()
    assert stack.sql("SELECT name FROM streaming_tenant") == [("acme",)]
    client = redis.Redis.from_url(stack.redis_url)
    stack.stop_redis()
    with pytest.raises(redis.ConnectionError):
        client.ping()
    stack.start_redis()
    assert client.ping()
