"""PostgreSQL arrays in their binary form, built in one go.

psycopg dumps a list element by element through its adapters; the journal sends a dozen arrays with
every flush, many times a second. Format: number of dimensions, "has nulls", the element's type,
then length and lower bound of the dimension, then each element as its length (-1: null) and bytes.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Sequence
from struct import Struct, pack
from uuid import UUID

import psycopg
from psycopg.adapt import Dumper
from psycopg.pq import Format

_HEADER = Struct(">iiIii")
_LENGTH = Struct(">i")
_NULL = _LENGTH.pack(-1)
_INT8 = _LENGTH.pack(8) + bytes(8)
_BIG_ENDIAN = range(7, -1, -1) if sys.byteorder == "little" else range(8)
"""Where this machine has the bytes of an int8."""
_UUID_OID, _INT8_OID, _BYTEA_OID = 2950, 20, 17


class _Array(bytes):
    """Bytes that are an array already."""


class UuidArray(_Array): ...


class Int8Array(_Array): ...


class ByteaArray(_Array): ...


def uuid_array(values: Sequence[UUID]) -> UuidArray:
    """``uuid[]``"""
    length = _LENGTH.pack(16)
    return UuidArray(_header(values, _UUID_OID) + b"".join([length + v.bytes for v in values]))


def int8_array(values: Sequence[int]) -> Int8Array:
    """``int8[]``"""
    native = array("q", values).tobytes()
    elements = bytearray(_INT8) * len(values)
    for byte in range(8):  # of all values at once; ``struct`` takes ten times as long
        elements[4 + byte :: 12] = native[_BIG_ENDIAN[byte] :: 8]
    return Int8Array(_header(values, _INT8_OID) + elements)


def bytea_array(values: Sequence[bytes | None]) -> ByteaArray:
    """``bytea[]``"""
    parts = [_header(values, _BYTEA_OID)]
    for value in values:
        if value is None:
            parts.append(_NULL)
        else:
            parts += (_LENGTH.pack(len(value)), value)
    return ByteaArray(b"".join(parts))


def register(connection: psycopg.AsyncConnection[tuple[object, ...]]) -> None:
    """Teach a connection to send these arrays as they are."""
    for kind, array_oid in ((UuidArray, 2951), (Int8Array, 1016), (ByteaArray, 1001)):
        connection.adapters.register_dumper(
            kind, type(f"{kind.__name__}Dumper", (_AsItIs,), {"oid": array_oid})
        )


class _AsItIs(Dumper):
    format = Format.BINARY

    def dump(self, obj: _Array) -> bytes:
        return bytes(obj)


def _header(values: Sequence[object], oid: int) -> bytes:
    if not values:
        return pack(">iiI", 0, 0, oid)
    return _HEADER.pack(1, 1, oid, len(values), 1)
