"""Money: exact decimals, and the one place where they are rounded.

A price has at most ``PRICE_PLACES`` decimals and is per million tokens (6 more), a coefficient has
``COEFFICIENT_PLACES``: so every amount has at most ``AMOUNT_PLACES`` decimals and is stored exactly.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from decimal import ROUND_HALF_EVEN, Context, Decimal, Inexact

from billing.core.currencies import minor_digits

PRICE_PLACES = 8
COEFFICIENT_PLACES = 4
AMOUNT_PLACES = 18
AMOUNT_DIGITS = 40

EXACT = Context(prec=AMOUNT_DIGITS + AMOUNT_PLACES, traps=[Inexact])
"""Arithmetic in it raises ``decimal.Inexact`` rather than lose a digit."""

ROUNDING_RULE = "half_even"
"""Once, at the close of a period, per tenant and currency, to the currency's smallest unit."""


_TYPED = re.compile(r"[+-]?([0-9]+(\.[0-9]*)?|\.[0-9]+)([eE][+-]?[0-9]{1,2})?")


@dataclass(frozen=True, slots=True)
class Prices:
    """Per million tokens."""

    input: Decimal
    cached_input: Decimal
    output: Decimal
    coefficient: Decimal = Decimal(1)


def amount(prices: Prices, *, prompt: int, cached: int, output: int) -> Decimal:
    """What tokens cost, exactly. ``cached`` are those of ``prompt`` at the cached price.

    Negative counts give what is to be given back. Raises ``decimal.Inexact`` for prices with more
    decimals than there are columns for.
    """
    per_million = EXACT.add(
        EXACT.add(
            EXACT.multiply(prices.input, Decimal(prompt - cached)),
            EXACT.multiply(prices.cached_input, Decimal(cached)),
        ),
        EXACT.multiply(prices.output, Decimal(output)),
    )
    exact = EXACT.scaleb(EXACT.multiply(per_million, prices.coefficient), -6)
    return EXACT.quantize(exact, Decimal(1).scaleb(-AMOUNT_PLACES))


def cost(per_million: Decimal, tokens: int) -> Decimal:
    """What ``tokens`` cost ourselves."""
    exact = EXACT.scaleb(EXACT.multiply(per_million, Decimal(tokens)), -6)
    return EXACT.quantize(exact, Decimal(1).scaleb(-AMOUNT_PLACES))


def total(amounts: Iterable[Decimal]) -> Decimal:
    """The exact sum."""
    result = Decimal(0)
    for one in amounts:
        result = EXACT.add(result, one)
    return result


def rounded(exact: Decimal, currency: str) -> Decimal:
    """``exact`` in the currency's smallest unit: to the nearest, of two equally near the even one."""
    return exact.quantize(
        Decimal(1).scaleb(-minor_digits(currency)),
        rounding=ROUND_HALF_EVEN,
        context=Context(prec=AMOUNT_DIGITS + AMOUNT_PLACES),
    )


def typed(text: str) -> Decimal:
    """A number as a person has typed it, exactly: ``1.50``, ``-1e3``. Raises ``ValueError`` for all
    else that Python takes for one, such as ``1_0``, ``NaN`` and digits of other scripts."""
    if not _TYPED.fullmatch(text := text.strip()):
        raise ValueError(f"{text!r} is no number")
    return Decimal(text)


def plain(value: Decimal) -> str:
    """As it is written in exports: no exponent, no trailing zeros, no sign of nothing."""
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text in ("", "-0") else text
