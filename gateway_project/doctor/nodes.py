"""The engine nodes, asked by their own dialect: what they can do, and whether they are alike."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from django.conf import settings

from gateway_project.doctor.certificates import Certificate, judge_certificate, read_certificate
from gateway_project.doctor.clocks import offset_of_date
from gateway_project.doctor.finding import Finding, failure, note, ok, warning
from gateway_project.doctor.postgres import is_reachable, judge_clock
from streaming.conf import conf
from streaming.core.chunks import Sampling
from streaming.core.failures import AttemptFailed, RejectedByEngine
from streaming.core.nodes import NodeOptions, parse_engine_nodes
from streaming.engines.access import Access, ask
from streaming.engines.base import Dialect, Generation, NodeReport
from streaming.engines.credentials import CredentialMissing, Credentials
from streaming.engines.http import EngineClient, engine_client
from streaming.engines.registry import dialect_for
from streaming.engines.stream import PLAIN_TOKEN
from streaming.models import InferenceNode, ModelAlias

PROBE_TEXT = "Größe, naïveté, 東京で 3.14 ≠ 22/7, 🫠👩‍🚀\n\tdef f(x):  return x**2"
"""Accents, scripts, emoji of several tokens, runs of blanks: where tokenizers differ."""
DOC = "docs/engines.md"


@dataclass(frozen=True, slots=True)
class Target:
    """A node as it is configured."""

    name: str
    dialect: str
    base_url: str
    options: NodeOptions
    takes_work: bool = True


@dataclass(slots=True)
class Answer:
    """What asking it brought. ``prompts``: by model, the ids of a rendered prompt."""

    target: Target
    trouble: str = ""
    report: NodeReport | None = None
    prompts: dict[str, tuple[int, ...]] = field(default_factory=dict)
    build: str = ""
    refuses_priority: str = ""
    """Its words, where it is told to be asked with priorities and refuses them."""
    clock_offset: float | None = None
    certificate: Certificate | None = None


# --- reading ----------------------------------------------------------------------------------------


def look() -> Iterator[Finding]:
    reachable = is_reachable()
    targets = _of_table() if reachable else _of_environment()
    if not targets:
        yield failure("nodes", "there are none", "ENGINE_NODES, or `manage.py node add`.", DOC)
        return
    broken = list(judge_credentials(targets))
    yield from broken
    answers = asyncio.run(_ask_all(targets))
    for answer in answers:
        yield from judge_node(answer)
    yield from judge_models(answers)
    if reachable:
        served = {model for one in answers if one.report for model in one.report.models}
        yield from judge_aliases(
            ModelAlias.objects.values_list("alias", "model").distinct(), served
        )


def _of_table() -> list[Target]:
    found = []
    for row in InferenceNode.objects.order_by("name"):
        options = NodeOptions.parse(row.options)
        if options.dns != "all":  # its addresses have rows of their own
            active = row.admin_state == InferenceNode.Admin.ACTIVE
            found.append(Target(row.name, row.dialect, row.base_url, options, active))
    return found


def _of_environment() -> list[Target]:
    specs = parse_engine_nodes(",".join(settings.ENGINE_NODES))
    return [Target(one.name, one.dialect, one.base_url, one.options) for one in specs]


async def _ask_all(targets: Sequence[Target]) -> list[Answer]:
    client = engine_client()
    try:
        return await asyncio.gather(*(_ask(client, target) for target in targets))
    finally:
        await client.aclose()


async def _ask(client: EngineClient, target: Target) -> Answer:
    answer = Answer(target)
    try:
        dialect = dialect_for(target.dialect, client, target.base_url, target.options)
        answer.report = await dialect.probe(2 * conf().health_timeout)
        for model in answer.report.models:
            message = {"role": "user", "content": PROBE_TEXT}
            answer.prompts[model] = tuple(await dialect.render(model, [message]))
        if target.options.priority == "on":
            answer.refuses_priority = await _refusal_of_priority(dialect, answer.report)
        access = Access(client, target.base_url, target.options)
        answer.clock_offset, answer.build = await _about(access, target.dialect)
        answer.certificate = await asyncio.to_thread(
            read_certificate, target.base_url, Credentials(target.options).tls()
        )
    except (AttemptFailed, RejectedByEngine, TimeoutError, CredentialMissing, ValueError) as exc:
        answer.trouble = str(exc) or type(exc).__name__
    return answer


async def _refusal_of_priority(dialect: Dialect, report: NodeReport) -> str:
    """Have it generate one token with a priority; why it does not. Raises ``AttemptFailed``."""
    generation = Generation(
        model=next(iter(report.models), ""), prompt=[PLAIN_TOKEN], max_tokens=1, min_tokens=0,
        sampling=Sampling(0), request_id=f"doctor-{uuid4().hex}", priority=1,  # 0 is what every request has
    )  # fmt: skip
    try:
        async with aclosing(dialect.generate(generation)) as stream:
            async for _ in stream:
                pass
    except RejectedByEngine as exc:
        return str(exc)
    return ""


async def _about(access: Access, dialect: str) -> tuple[float | None, str]:
    """How far its clock is off, and what says which build it is."""
    asked_at = time.time()
    told = await ask(access, "GET", "/props" if dialect == "llamacpp" else "/version")
    offset = offset_of_date(told.headers.get("date"), asked_at)
    try:
        about: Any = told.json() if told.status_code == 200 else {}
    except ValueError:
        about = {}
    named = about if isinstance(about, dict) else {}
    return offset, str(named.get("build_info") or named.get("version") or "")


# --- judging ----------------------------------------------------------------------------------------


def judge_credentials(targets: Iterable[Target]) -> Iterator[Finding]:
    """Whether each reference leads to something, here: gateways may have another environment."""
    for target in targets:
        try:
            credentials = Credentials(target.options)
            credentials.headers()
            credentials.tls()
        except CredentialMissing as exc:
            yield failure(
                target.name,
                f"{exc}",
                "Set it for the gateways and for whoever runs this command.",
                DOC,
            )


def judge_node(answer: Answer) -> Iterator[Finding]:
    target, report = answer.target, answer.report
    if report is None:
        seen = (
            f"{target.dialect} at {target.base_url} does not answer as it should: {answer.trouble}"
        )
        if not target.takes_work:  # away because somebody works on it
            yield note(
                target.name,
                f"is drained, and {seen}",
                f"`manage.py node resume {target.name}` when it does; `manage.py node remove` if it is gone for good.",
                DOC,
            )
            return
        yield failure(
            target.name,
            seen,
            "See that it runs and that this machine reaches it; `manage.py node list` tells what the gateways see.",
            DOC,
        )
        return
    models = ", ".join(
        f"{name} ({size} tokens)" if size else name for name, size in report.models.items()
    )
    build = f" {answer.build}" if answer.build else ""
    state = "" if target.takes_work else "; it is being drained, or is"
    yield ok(target.name, f"{target.dialect}{build} serves {models or 'nothing'}{state}")
    if answer.trouble:
        yield warning(target.name, f"answers in part: {answer.trouble}", "See its log.", DOC)
    yield from _judge_abilities(answer, target, report)
    if answer.clock_offset is not None:
        clock = judge_clock(target.name, "its", answer.clock_offset)
        if clock.advice:
            yield clock
    if answer.certificate is not None:
        yield judge_certificate(target.name, answer.certificate)


def _judge_abilities(answer: Answer, target: Target, report: NodeReport) -> Iterator[Finding]:
    can, name = report.can, target.name
    if not report.models:
        yield failure(name, "serves no model", "See how it was started.", DOC)
    if target.options.continuation == "ids" and not can.token_ids:
        yield failure(
            name,
            "neither takes nor tells token ids: no answer on it is continued exactly",
            "A newer engine, or ?continuation=text&template=… for it.",
            DOC,
        )
    if answer.refuses_priority:
        yield failure(
            name,
            f"is asked with priorities (priority=on) and refuses them: {answer.refuses_priority}",
            "--scheduling-policy priority (vLLM), or priority=off.",
            DOC,
        )
    lacks = []
    if not can.figures:
        lacks.append(("tells no load", "--metrics (llama.cpp); leave /metrics on (vLLM)"))
    if not can.prefix_caching:
        lacks.append(
            ("keeps no prefixes: each seam computes the whole prompt", "--enable-prefix-caching")
        )
    if not can.abort and target.dialect == "vllm":
        lacks.append(("aborts by closed connections alone", "--enable-scale-out"))
    for seen, flag in lacks:
        yield note(name, seen, f"Start it with {flag}.", DOC)
    if report.slots is None and not target.options.capacity and target.dialect == "llamacpp":
        yield note(
            name, "does not say how many requests it runs at once", "?capacity= for it.", DOC
        )


def judge_models(answers: Sequence[Answer]) -> Iterator[Finding]:
    """The nodes of one model must be alike, else a seam between them is none."""
    nodes: dict[str, list[Answer]] = defaultdict(list)
    for answer in answers:
        for model in answer.report.models if answer.report else ():
            nodes[model].append(answer)
    for model, serving in sorted(nodes.items()):
        names = ", ".join(one.target.name for one in serving)
        if len(serving) == 1:
            yield warning(
                model,
                f"one node serves it ({names}): when that fails, answers wait",
                "A second node of the same model.",
                DOC,
            )
            continue
        yield from _judge_alike(model, serving)


def _judge_alike(model: str, serving: Sequence[Answer]) -> Iterator[Finding]:
    groups: dict[tuple[int, ...], list[str]] = defaultdict(list)
    for one in serving:
        if model in one.prompts:
            groups[one.prompts[model]].append(one.target.name)
    if len(groups) > 1:
        told = " | ".join(", ".join(names) for names in groups.values())
        yield failure(
            model,
            f"its nodes turn one prompt into different token ids: {told}",
            "They have different tokenizers or chat templates: give one group another model name, or another engine build.",
            DOC,
        )
    elif groups:
        names = ", ".join(one.target.name for one in serving)
        yield ok(model, f"same tokenizer and template on {names}")
    sizes = {one.report.models[model] for one in serving if one.report} - {None}
    if len(sizes) > 1:
        yield warning(
            model,
            f"its nodes have contexts of {' and '.join(str(size) for size in sorted(sizes))} tokens"  # type: ignore[type-var]
            ": long answers cannot move to the smaller",
            "The same --max-model-len, or -c, everywhere.",
            DOC,
        )
    builds = {(one.target.dialect, one.build) for one in serving if one.build}
    for dialect in {kind for kind, _ in builds}:
        versions = sorted(build for kind, build in builds if kind == dialect)
        if len(versions) > 1:
            yield note(
                model,
                f"{dialect} runs it in versions {' and '.join(versions)}",
                "Texts may differ behind a seam.",
                DOC,
            )


def judge_aliases(
    aliases: Iterable[tuple[str, str]], served: Mapping[str, Any] | set[str]
) -> Iterator[Finding]:
    for alias, model in aliases:
        if model not in served:
            yield warning(
                "aliases",
                f"{alias} stands for {model}, which no node serves",
                "`manage.py model_alias`",
                DOC,
            )
