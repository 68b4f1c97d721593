"""What each figure of a report means: the one place. ``docs/chaos.md`` has the same words (a test compares)."""

from __future__ import annotations

from typing import NamedTuple


class Definition(NamedTuple):
    title: str
    text: str


DEFINITIONS = {
    "streams": Definition(
        "Streams",
        "Questions that were asked, each by one reader over as many connections as it took. Readers who were told to go away for good are counted apart: their answers are not whole, and that is nobody's fault.",
    ),
    "interrupted": Definition(
        "Interrupted",
        "The reader saw an error, a wrong byte, a byte twice, or no end. Every answer is compared byte by byte with the one that the engine gives when nothing breaks.",
    ),
    "bound": Definition(
        "Interruption rate and its bound",
        "Interrupted streams divided by streams. The bound: with 95 % confidence the true rate is not above it (Clopper and Pearson's exact bound, one-sided). Without any interruption it is about 3 divided by the streams, so 0.001 % takes 299,572 streams.",
    ),
    "groups": Definition(
        "Whose interruptions",
        "Plain clients, engine faults only: OpenAI clients that cannot come back, during whose stream no gateway, Redis or PostgreSQL was struck and whose own connection was not cut. Readers that come back: those who resume with their cursor, acknowledging or not, whatever was struck.",
    ),
    "noticed": Definition(
        "Noticed",
        "A silence between two pieces of an answer that was more than 300 ms longer than the engine's pace (a character made of several tokens takes as many intervals of it). Each is put down to what happened in it: the reader's own connection was cut, a gateway died, PostgreSQL was away, an engine failed, an engine's fault was waited out, Redis was away, or none of these.",
    ),
    "unnoticed": Definition(
        "Unnoticed failovers",
        "Failovers in whose silence the reader noticed nothing, divided by failovers. A failover is a seam in the middle of an answer because an engine failed or had gone silent (a hedge that won); several attempts without a token between them are one. One after which nothing came counts as noticed. Left out are those during which the reader's own connection was cut, those that were never joined on because their reader went away for good, and those before the reader's first token. Where streams that nothing had happened to were silent for as long in the same moment, the machine itself stood still: those noticed failovers are told, and count all the same. Of the noticed ones it is told what lay behind: PostgreSQL was away, so that nothing became durable; the node that the answer went on to was struck itself in that silence (slowed, most often); a gateway was away, which the reader may have turned to; or nothing else. All count.",
    ),
    "seam_gap": Definition(
        "Seam gap",
        "The silence at a seam beyond the engine's pace, as the reader saw it. Readers note silences from 50 ms beyond the pace; of shorter ones the gateway's own times are taken, up to 50 ms.",
    ),
    "detection": Definition(
        "Detection",
        "From the fault to the moment in which the gateway knew of it, stream by stream; for hedges, to the moment in which the second attempt was started. A stream that was placed on a broken node counts from its placement.",
    ),
    "recovery": Definition(
        "Recovery",
        "From detection to the next durable token, as the gateway and its database noted them. Crashes are killed processes and reset connections. Seams while PostgreSQL was away are told apart, under its name: nothing becomes durable then.",
    ),
    "waste": Definition(
        "Waste",
        "Tokens that engines generated and no reader got, by cause, as the gateway bills them to nobody: discarded (held back when an attempt failed, or of a hedge that lost), regenerated, and undelivered (in the log, and no evidence that anybody got them).",
    ),
    "cost_index": Definition(
        "Cost index",
        "Tokens that engines generated per token that readers got, divided by the same of answers that are not streamed. These cost 1 when nothing breaks; under the same faults an answer that is lost has cost its tokens and brings none. Prompts that are read again are not in it.",
    ),
    "billing": Definition(
        "Billing accuracy",
        "Streams whose tokens in the ledger are exactly those that their reader counted, divided by streams that were settled. Readers who went away for good are apart: what their own system had taken when they left is billed, though they never looked at it.",
    ),
    "delivery": Definition(
        "Effective delivery ratio",
        "Distinct tokens that readers got, divided by tokens that were read from engines for them. Readers who went away for good count on neither side; sessions that no reader has heard of, because their gateway died first, count as generated.",
    ),
    "whole_ratio": Definition(
        "Useful tokens",
        "Tokens in whole answers, divided by tokens that engines generated. Half of an answer that breaks off counts as delivered, and is of little use.",
    ),
    "reclaim": Definition(
        "Reclaim latency",
        "From the end of an attempt that its engine had not finished to the moment in which its request was seen gone on the engine's own figures. Time in which the node could not be asked, or PostgreSQL could not be told, does not count. Of a node whose process was killed there is nothing to reclaim. Where other modes ask the same engines, the nodes are `exclusive=off`, and what their figures cannot prove is *unverifiable*.",
    ),
    "kv": Definition(
        "KV-cache of a request",
        "Occupied tokens of the engines' KV-caches divided by the requests that run, mean of one reading a second.",
    ),
}  # fmt: skip
