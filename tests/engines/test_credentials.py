"""Keys and certificates by reference: used, renewed while running, and never shown."""

from __future__ import annotations

import logging
import os
from pathlib import Path

import pytest

from streaming.core.failures import AttemptFailed, Cause
from streaming.core.nodes import NodeOptions
from streaming.engines import credentials
from streaming.engines.access import Access
from streaming.engines.credentials import CredentialMissing, Credentials
from streaming.engines.http import EngineClient
from streaming.engines.registry import dialect_for
from tests.engine_simulator.certificates import Authority
from tests.engines.client import Recording, generation

SECRET = "sk-very-secret"


@pytest.fixture(autouse=True)
def every_look_is_fresh(monkeypatch):
    monkeypatch.setattr(credentials, "LOOK_EVERY", 0.0)


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(f"{SECRET}\n")
    return path


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def tls_options(authority: Authority, client: tuple[Path, Path] | None = None) -> NodeOptions:
    cert, key = (f"file:{path}" for path in client) if client else ("", "")
    return NodeOptions(ca=f"file:{authority.path}", client_cert=cert, client_key=key)


def test_a_key_from_the_environment(monkeypatch):
    ours = Credentials(NodeOptions(credential="env:GPU_A_KEY"))
    with pytest.raises(CredentialMissing, match="the environment has no GPU_A_KEY"):
        ours.headers()
    monkeypatch.setenv("GPU_A_KEY", SECRET)
    assert ours.headers() == {"authorization": f"Bearer {SECRET}"}
    assert SECRET not in repr(ours)


def test_a_node_that_wants_nothing_gets_nothing():
    ours = Credentials(NodeOptions())
    assert (ours.headers(), ours.tls()) == ({}, None)


def test_a_key_is_read_again_when_its_file_has_changed(key):
    ours = Credentials(NodeOptions(credential=f"file:{key}"))
    first = ours.headers()
    assert ours.headers() is first  # not read again
    # As Kubernetes does it: another file under the same name, here of the same size and time.
    other = key.with_name("other")
    other.write_text(f"{SECRET[::-1]}\n")
    times = key.stat()
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    other.replace(key)
    assert ours.headers() == {"authorization": f"Bearer {SECRET[::-1]}"}


def test_files_are_looked_at_now_and_then_only(key, monkeypatch):
    monkeypatch.setattr(credentials, "LOOK_EVERY", 1.0)
    now = 100.0
    ours = Credentials(NodeOptions(credential=f"file:{key}"), lambda: now)
    ours.headers()
    key.unlink()
    now += 0.9
    assert ours.headers()
    now += 0.2
    with pytest.raises(CredentialMissing, match="No such file"):
        ours.headers()


@pytest.mark.parametrize("content", ["", "two\nlines", "sp ace", "nön", "\x00"])
def test_what_is_no_key_is_refused_and_not_shown(key, content):
    key.write_text(content)
    with pytest.raises(CredentialMissing) as caught:
        Credentials(NodeOptions(credential=f"file:{key}")).headers()
    assert str(caught.value) == f"credential: file:{key} is not one line of printable characters"


def test_a_certificate_and_its_key_from_the_environment(authority, monkeypatch):
    cert, key = authority.sign("client")
    monkeypatch.setenv("CLIENT_CERT", cert.read_text())
    monkeypatch.setenv("CLIENT_KEY", key.read_text())
    options = NodeOptions(client_cert="env:CLIENT_CERT", client_key="env:CLIENT_KEY")
    ours = Credentials(options)
    assert ours.tls() is ours.tls()
    monkeypatch.setenv("CLIENT_KEY", authority.sign("another")[1].read_text())
    with pytest.raises(CredentialMissing) as caught:
        ours.tls()
    reason = "env:CLIENT_CERT and env:CLIENT_KEY are not a certificate and its key in PEM"
    assert str(caught.value) == f"client_cert, client_key: {reason}"


def test_an_authority_that_is_none(key):
    with pytest.raises(CredentialMissing, match="is not a certificate in PEM"):
        Credentials(NodeOptions(ca=f"file:{key}")).tls()


@pytest.mark.parametrize("address", [f"http://me:{SECRET}@h:1", f"https://{SECRET}@h"])
def test_an_address_with_a_secret_is_refused(address, client):
    with pytest.raises(ValueError, match="credential=env:NAME") as caught:
        dialect_for("vllm", client, address, NodeOptions())
    assert SECRET not in str(caught.value)


async def test_a_key_opens_an_engine_and_its_rotation_needs_no_restart(start, key, client):
    engine, closed = start("vllm", api_key=SECRET)
    with pytest.raises(AttemptFailed) as caught:
        await closed.probe(5)
    assert caught.value.cause is Cause.BAD_STATUS
    dialect = dialect_for("vllm", client, engine.url, NodeOptions(credential=f"file:{key}"))
    assert (await dialect.probe(5)).can.token_ids
    engine.close()
    start("vllm", port=engine.port, api_key="sk-next")
    with pytest.raises(AttemptFailed, match="HTTP 401"):
        await dialect.probe(5)
    key.write_text("sk-next")
    await dialect.probe(5)
    await dialect.pulse("sim-model", 5)


async def test_a_missing_key_fails_the_probe_with_its_reason(start):
    _, dialect = start("llamacpp", NodeOptions(credential="file:/nowhere/key"), api_key=SECRET)
    with pytest.raises(AttemptFailed, match="credential: /nowhere/key: No such file") as caught:
        await dialect.probe(5)
    assert caught.value.cause is Cause.REFUSED


async def test_a_key_is_in_no_message_and_no_log(key, caplog, client):
    caplog.set_level(logging.DEBUG)
    body = f'{{"error":{{"message":"Incorrect API key provided: {SECRET}."}}}}'.encode()
    options = NodeOptions(credential=f"file:{key}")
    engine = Recording("vllm", body, status=401, options=options)
    with pytest.raises(AttemptFailed, match=r"provided: \[credential\]\.") as caught:
        await engine.chunks(generation())
    assert SECRET not in repr(caught.value)
    assert SECRET not in caplog.text
    assert SECRET not in repr(Access(client, "http://h", options))


async def test_a_client_certificate_opens_an_engine(start, authority):
    cert, key = authority.sign("engine")
    flags = {"tls_cert": cert, "tls_key": key, "client_ca": authority.path}
    engine, stranger = start("vllm", tls_options(authority), **flags)
    with pytest.raises(AttemptFailed):
        await stranger.probe(5)
    engine.close()
    _, dialect = start("vllm", tls_options(authority, authority.sign("client")), **flags)
    assert (await dialect.probe(5)).can.token_ids


async def test_an_engine_that_another_authority_vouches_for_is_not_asked(start, authority):
    cert, key = authority.sign("engine")
    other = Authority(authority.path.parent, "other")
    _, dialect = start("vllm", tls_options(other), tls_cert=cert, tls_key=key)
    with pytest.raises(AttemptFailed, match="certificate verify failed") as caught:
        await dialect.probe(5)
    assert caught.value.cause is Cause.REFUSED


async def test_a_certificate_is_rotated_without_a_restart(
    start, authority: Authority, client: EngineClient
):
    """The engine starts to believe another authority, which has signed our next certificate."""
    cert, key = authority.sign("engine")
    ours = authority.sign("client")
    flags = {"tls_cert": cert, "tls_key": key}
    engine, dialect = start("vllm", tls_options(authority, ours), client_ca=authority.path, **flags)
    await dialect.probe(5)
    await client.keep_spares(engine.url, 2)
    engine.close()
    next_one = Authority(authority.path.parent, "next")
    start("vllm", port=engine.port, client_ca=next_one.path, **flags)
    with pytest.raises(AttemptFailed):
        await dialect.probe(5)
    for old, new in zip(ours, next_one.sign("renewed"), strict=True):
        new.replace(old)
    await client.keep_spares(engine.url, 2)
    await dialect.probe(5)
    await dialect.pulse("sim-model", 5)


async def test_an_address_found_by_a_name_has_the_certificate_of_the_name(
    start, authority, client: EngineClient
):
    cert, key = authority.sign("engine", host="engines.example")
    engine, dialect = start("vllm", tls_options(authority), tls_cert=cert, tls_key=key)
    with pytest.raises(AttemptFailed, match="certificate verify failed"):
        await dialect.probe(5)
    client.names.remember(engine.url, f"https://engines.example:{engine.port}")
    await dialect.probe(5)
    await client.keep_spares(engine.url, 2)
    connector = client._connector
    assert connector is not None
    assert [len(spares) for spares in connector._spares.values()] == [2]
    await dialect.pulse("sim-model", 5)
