"""No cell is a formula, and none loses what it says."""

from __future__ import annotations

import csv
import re

import openpyxl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from billing.exports.run import export
from streaming.core.spreadsheet import guarded
from tests.billing.exports import books, read_back
from tests.billing.rows import add_tenant

EVIL = (
    "=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "  =1", "\"=1", " \"=cmd|'/c calc'!A0",
    "＝1", "＋1", "－1", "＠1", "ok;=1+1", "ok,=1+1", "ok\t=1", "ok\n=1", "ok|@x", "a;\"=1\"", "=",
)  # fmt: skip
HARMLESS = (
    "refund",
    "Söhne & 山田 🙂",
    'said "no"',
    "a=b",
    "1-2",
    "x@y.example",
    "a, b; c",
    "",
    "'quoted'",
)


@pytest.mark.parametrize("text", EVIL)
def test_what_would_be_a_formula_is_not(text):
    assert is_formula(text)
    assert not is_formula(guarded(text))


@pytest.mark.parametrize("text", HARMLESS)
def test_what_is_none_stays_as_it_is(text):
    assert guarded(text) == text


@given(st.text(alphabet=st.sampled_from("=+-@＝\t\r\n ;,|\"'`aé\x00\x07\ufffe1")))
def test_whatever_is_written(text):
    safe = guarded(text)
    assert not is_formula(safe)
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", safe)
    kept = re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\ufffe\uffff]", "\ufffd", text)
    assert without_apostrophes(safe) == without_apostrophes(kept)


def is_formula(text: str) -> bool:
    """Whether some spreadsheet might calculate it, whatever its separator is."""
    cells = [cell.lstrip(' \t\r\n"') for cell in re.split(r"[;,|\t\r\n]", text)]
    return any(cell.startswith(tuple("=+-@＝＋－＠")) for cell in cells) or text.startswith(
        ("\t", "\r", "\n")
    )


def without_apostrophes(text: str) -> str:
    return text.replace("'", "")


@pytest.mark.django_db
@pytest.mark.parametrize("format", ["csv", "xlsx", "focus"])
def test_in_files(format):
    acme = add_tenant()
    for text in EVIL:
        books.adjust(acme, "-1.5", text)
        books.charge(acme, cost_centre=text[:64], model=f"{text}m", model_requested=text)
    made = export(period_name="2026-11", format=format, actor="user:pat")
    names = {
        "reason", "cost_centre", "model_served", "model_requested", "ChargeDescription", "SkuId",
        "SubAccountId", "x_Reason", "x_ModelServed", "x_ModelRequested", "SkuPriceId", "SubAccountName",
    }  # fmt: skip
    for line in read_back.lines(made):
        for name in names & line.keys():
            assert not is_formula(line[name] or ""), (name, line[name])
    if format == "csv":
        assert {line["amount"] for line in read_back.lines(made)} > {"-1.5"}  # numbers stay numbers


@pytest.mark.django_db
def test_a_workbook_has_text_and_numbers_and_no_formula():
    books.charge(output=1_000_000, cost_centre="_x003D_1+1", model='<&>\x07"')
    books.adjust(add_tenant(), "0.000000000000000001", '=HYPERLINK("http://x")')
    made = export(period_name="2026-11", format="xlsx", actor="user:pat")
    (path,) = read_back.files(made)
    sheet = openpyxl.load_workbook(path).active
    types = {cell.data_type for row in sheet.iter_rows() for cell in row if cell.value is not None}
    assert types == {"s", "n"}
    charged, adjusted = read_back.lines(made)
    # Excel reads _x003D_ as "=", unless its underscore is written that way itself.
    assert charged["cost_centre"] == "_x005F_x003D_1+1"
    assert charged["model_served"] == '<&>\ufffd"'
    assert charged["billed_output_tokens"] == 1_000_000
    assert adjusted["amount"] == "0.000000000000000001"
    assert adjusted["amount_number"] == 1e-18
    assert adjusted["reason"] == '\'=HYPERLINK("http://x")'


@pytest.mark.django_db
def test_lines_and_quotes_within_a_cell():
    text = 'über\r\n"all", 山田; \u2028🙂'
    books.adjust(add_tenant(), "1", text)
    made = export(period_name="2026-11", format="csv", actor="user:pat")
    (path,) = read_back.files(made)
    raw = path.read_bytes()
    assert not raw.startswith(b"\xef\xbb\xbf")
    assert raw.endswith(b"\r\n")
    assert [line["reason"] for line in read_back.lines(made)] == [text]
    with path.open(newline="", encoding="utf-8") as file:
        assert len(list(csv.reader(file))) == 2
    (line,) = read_back.lines(export(period_name="2026-11", format="jsonl", actor="user:pat"))
    assert line["reason"] == text
