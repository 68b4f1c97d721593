"""What documents name is there: files and headings that they link to, commands, options, targets, settings."""

from __future__ import annotations

import dataclasses
import re
import shlex
import tomllib
from argparse import ArgumentParser, _SubParsersAction
from pathlib import Path

import pytest
from django.core.management import get_commands, load_command_class
from django.core.management.base import BaseCommand, CommandError, CommandParser

from billing.conf import BillingConf
from streaming.conf import StreamingConf

ROOT = Path(__file__).resolve().parent.parent.parent
DOCUMENTS = sorted(
    path for path in [ROOT / "README.md", *ROOT.glob("docs/*.md"), *ROOT.glob("deploy/**/*.md")]
)
LINK = re.compile(r"(?<!!)\[[^]]*\]\(([^)\s]+)\)")
FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"`([^`\n]+)`")
COMMAND = re.compile(r"manage\.py ([a-z_]+)((?: [^|&;\n]+)?)")
SETTING = re.compile(r"\b([A-Z][A-Z0-9]*(?:_[A-Z0-9]+)+)=")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def anchors(text: str) -> set[str]:
    """The anchors of the headings, as GitHub makes them, and those written as HTML."""
    found = set(re.findall(r'<a (?:id|name)="([^"]+)"', text))
    for heading in re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.MULTILINE):
        plain = re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower()
        found.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_links_lead_somewhere(document: Path):
    text = document.read_text("utf-8")
    dead = []
    for target in LINK.findall(SPAN.sub("", FENCED.sub("", text))):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        path = (document.parent / file).resolve() if file else document
        if not path.exists() or (
            anchor and path.suffix == ".md" and anchor not in anchors(path.read_text("utf-8"))
        ):
            dead.append(target)
    assert dead == []


def parser_of(name: str) -> CommandParser | None:
    """The parser of ``manage.py name``; None: there is no such command."""
    app = get_commands().get(name)
    if app is None:
        return None
    command = app if isinstance(app, BaseCommand) else load_command_class(app, name)
    command._called_from_command_line = False  # have it raise instead of ending the process
    return command.create_parser("manage.py", name)


def options_of(parser: ArgumentParser) -> set[str]:
    """Its options, and those of its subcommands."""
    found = set()
    for action in parser._actions:
        found.update(action.option_strings)
        if isinstance(action, _SubParsersAction):
            for below in action.choices.values():
                found |= options_of(below)
    return found


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_commands_take_what_is_written(document: Path):
    text = document.read_text("utf-8")
    refused = []
    for block in FENCED.findall(text):
        for name, rest in COMMAND.findall(block.replace("\\\n", " ")):
            if "…" in rest:  # something was left out
                continue
            parser = parser_of(name)
            try:
                assert parser is not None, "there is no such command"
                # What is in brackets may be left out, and may be said.
                parser.parse_args(shlex.split(re.sub(r"[\[\]]", "", rest), comments=True))
            except (CommandError, ValueError, AssertionError) as exc:
                refused.append(f"manage.py {name}{rest}: {exc}")
    for name, rest in COMMAND.findall("\n".join(SPAN.findall(FENCED.sub("", text)))):
        parser = parser_of(name)
        if parser is None:
            refused.append(f"there is no manage.py {name}")
        elif unknown := set(re.findall(r"(?<![\w-])--[a-z-]+", rest)) - options_of(parser):
            refused.append(f"manage.py {name} has no {unknown}")
    assert refused == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=named)
def test_make_targets_and_settings_exist(document: Path):
    text = document.read_text("utf-8")
    code = "\n".join([*FENCED.findall(text), *SPAN.findall(FENCED.sub("", text))])
    makefile = (ROOT / "Makefile").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    wanted = set(re.findall(r"(?:^|`)make ([a-z-]+)", code, re.MULTILINE))
    assert wanted <= targets
    known = {
        field.name.upper()
        for conf in (StreamingConf, BillingConf)
        for field in dataclasses.fields(conf)
    }
    known |= set(
        re.findall(
            r"env\.\w+\(\s*\"([A-Z_]+)\"", (ROOT / "gateway_project/settings.py").read_text()
        )
    )
    known |= set(re.findall(r"^([A-Z_]+) \?=", makefile, re.MULTILINE))
    ours = {name for name in SETTING.findall(code) if not name.startswith(OF_OTHERS)}
    assert ours - known - MISSPELT == set()


OF_OTHERS = ("OTEL_", "POSTGRES_", "PG", "VLLM_", "DJANGO_", "SHOW_PLANS", "NGINX_BINARY")
MISSPELT = {"SHUTDOWN_GRASE"}
"""On purpose, where documents speak of mistakes."""


def test_all_say_which_pythons_it_runs_on():
    told = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    lowest, above = (int(minor) for minor in re.fullmatch(r">=3\.(\d+),<3\.(\d+)", told).groups())
    *others, last = (f"3.{minor}" for minor in range(lowest, above))
    listed, ranged = f"{', '.join(others)} or {last}", f"{others[0]} to {last}"
    for name, words in {
        "README.md": f"Python {listed}",
        "docs/deployment.md": f"Python {ranged}",
        "docs/dependencies.md": f"Python {ranged}",
        "Makefile": f"not (3, {lowest}) <= sys.version_info < (3, {above})",
        ".ci/run": f"Python {ranged}",
        "deploy/Dockerfile": f"FROM python:{last}-slim",
    }.items():
        assert words in (ROOT / name).read_text(), name
