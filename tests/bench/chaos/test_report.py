"""The report as text, JSON and a page: empty, undisturbed, hurt, and with hostile names."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from bench.chaos import modes, report
from bench.chaos.definitions import DEFINITIONS
from tests.bench.chaos.made import broken, fault, gap, joined, run, session, stream, write_run

HOSTILE = "</title><script>alert(1)</script>\"'&"
DOCS = Path(__file__).resolve().parents[3] / "docs" / "chaos.md"
VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """Reads a page as strictly as one can: every element closed in its turn."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.ids: list[str] = []
        self.words = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        assert len(named) == len(attrs), f"an attribute twice in {tag}"
        self.elements.append((tag, named))
        if named.get("id"):
            self.ids.append(str(named["id"]))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


@pytest.fixture
def hurt(tmp_path: Path) -> Path:
    """One failover that was noticed, one that was not, and a name that wants to be a script."""
    return write_run(
        tmp_path,
        run(name=HOSTILE, arguments={"set": [HOSTILE]}, machine={"cpu": HOSTILE, "cores": 2}),
        [
            stream(0, gaps=[gap(3.6, 0.5)]),
            stream(1),
            stream(2, whole=False, fault=HOSTILE, reader="acking"),
            stream(3, mode="unprotected", session="", whole=False, fault=HOSTILE),
            stream(4, mode="unstreamed", session="", transport="none"),
        ],
        [fault("node_kill", "a", 3.0, 2.0), fault("node_stop", HOSTILE, 10.0, 2.0)],
        [
            session(0, broken(3.02), joined(3.59)),
            session(1, broken(3.02), joined(3.06)),
            session(2, billed=90),
        ],
        {
            "engines": {HOSTILE: None, "a": None},
            "gateway": {"waste": [{"kind": "discarded", "cause": HOSTILE, "tokens": 3}]},
        },
    )


def page_of(directory: Path) -> Page:
    return Page((directory / "report.html").read_text("utf-8"))


def test_text_and_json_say_the_same(hurt):
    text = report.write(hurt)
    told = json.loads((hurt / "report.json").read_text("utf-8"))
    assert all(line["what"] in text and line["value"] in text for line in told["findings"])
    unnoticed = next(line for line in told["findings"] if line["goal"] == "≥ 99.9 %")
    assert unnoticed["value"].startswith("1 of 2 (50.0 %")
    assert unnoticed["met"] is False
    assert "MISSED" in text
    assert "not told" in text
    assert [row["mode"] for row in told["modes"]] == ["unstreamed", "unprotected", "unbroken"]


def test_hostile_names_stay_words(hurt):
    report.write(hurt)
    page = page_of(hurt)
    assert page.all("script") == []
    assert HOSTILE in page.words
    assert all(value != "alert(1)" for _, named in page.elements for value in named.values())


def test_the_page_needs_nothing_else_and_tells_everything_in_words(hurt):
    report.write(hurt)
    page = page_of(hurt)
    fetched = {"img", "link", "iframe", "object", "embed", "script", "base", "form"}
    assert not [tag for tag, _ in page.elements if tag in fetched]
    assert "url(" not in (hurt / "report.html").read_text("utf-8")
    assert len(page.ids) == len(set(page.ids))
    plots = [named for named in page.all("svg") if "aria-hidden" not in named]
    assert len(plots) == 8  # four, for wide screens and for narrow ones
    for named in plots:
        assert named["role"] == "img"
        assert set(str(named["aria-labelledby"]).split()) <= set(page.ids)
    for link in page.all("a"):
        assert str(link["href"]).removeprefix("#") in page.ids
    assert all(named.get("scope") for named in page.all("th"))
    assert page.all("html") == [{"lang": "en"}]
    headings = [int(tag[1]) for tag, _ in page.elements if tag in ("h1", "h2", "h3")]
    assert headings.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(headings))
    assert "missed" in page.words
    assert "met" in page.words


def test_an_empty_run(tmp_path):
    text = report.write(write_run(tmp_path, run()))
    assert "none" in text
    assert page_of(tmp_path).all("main")


def test_a_run_in_which_nothing_failed(tmp_path):
    write_run(tmp_path, run(), [stream(0), stream(1)], (), [session(0), session(1)])
    assert "MISSED" not in report.write(tmp_path)
    assert "There was no seam." in page_of(tmp_path).words


def test_a_run_that_was_broken_off(tmp_path):
    with pytest.raises(FileNotFoundError):
        report.write(tmp_path)


def test_fields_of_other_versions_do_not_matter(tmp_path):
    write_run(tmp_path, run(), [stream(0)], (), [session(0)])
    values = json.loads((tmp_path / "run.json").read_text("utf-8"))
    (tmp_path / "run.json").write_text(json.dumps({**values, "weather": "fine"}), encoding="utf-8")
    assert "1 unbroken" in report.write(tmp_path)


def test_modes_of_several_runs(hurt, tmp_path_factory, capsys, monkeypatch):
    fast = write_run(
        tmp_path_factory.mktemp("fast"), run(), [stream(n, after=n / 8) for n in range(9)]
    )
    monkeypatch.setattr("sys.argv", ["modes", str(hurt), str(fast), "--markdown"])
    assert modes.main() == 0
    head, rule, *lines = capsys.readouterr().out.splitlines()
    assert head.count("|") == rule.count("|") == lines[0].count("|")
    assert [line.split("|")[1].strip() for line in lines] == [
        "not streamed", "streamed, without protection", "streamed by Unbroken", "streamed by Unbroken",
    ]  # fmt: skip
    assert "8.0 (8.0)" in lines[-1]
    monkeypatch.setattr("sys.argv", ["modes", str(hurt), "--html"])
    modes.main()
    assert len(Page(capsys.readouterr().out).all("th")) == 3 + 12


def test_the_docs_define_each_figure_in_the_same_words():
    docs = DOCS.read_text("utf-8")
    for definition in DEFINITIONS.values():
        assert f"**{definition.title}.** {definition.text}" in docs
