/** The Vercel AI SDK, by its provider for whatever speaks OpenAI's API. */

import assert from "node:assert/strict";
import test from "node:test";

import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { APICallError, generateText, streamText } from "ai";

import { apiKey, baseURL, killEngine, model, question } from "./gateway.js";

/** @param {string} key */
const provider = (key) =>
  createOpenAICompatible({ name: "unbroken", baseURL, apiKey: key, includeUsage: true });
const ours = provider(apiKey)(model);
const settings = { model: ours, temperature: 0, maxRetries: 0 };

test("a streamed answer, with its usage", async () => {
  const { prompt, text, tokens } = question("short");
  const result = streamText({ ...settings, prompt });
  let said = "";
  for await (const delta of result.textStream) said += delta;
  assert.equal(said, text);
  assert.equal(await result.finishReason, "stop");
  assert.equal((await result.usage).outputTokens, tokens);
});

test("an answer in one piece", async () => {
  const { prompt, text } = question("short");
  const result = await generateText({ ...settings, prompt });
  assert.equal(result.text, text);
});

test("an engine that is killed in the middle of it is not noticed", async () => {
  const { prompt, text } = question("long");
  const result = streamText({ ...settings, prompt });
  let said = "";
  let killed = false;
  for await (const delta of result.textStream) {
    said += delta;
    if (!killed && said.length > text.length / 4) {
      killed = true;
      await killEngine();
    }
  }
  assert.ok(killed);
  assert.equal(said, text);
});

test("errors are the SDK's own", async () => {
  const { prompt } = question("short");
  /** @param {any} chosen */
  const status = (chosen) =>
    generateText({ model: chosen, prompt, maxRetries: 0 }).then(
      () => 200,
      (error) => (APICallError.isInstance(error) ? error.statusCode : error),
    );
  assert.equal(await status(provider("ub-wrong")(model)), 401);
  assert.equal(await status(provider(apiKey)("unknown")), 404);
});

test("a stream is aborted by its signal", async () => {
  const { prompt } = question("endless");
  const abort = new AbortController();
  const result = streamText({ ...settings, prompt, abortSignal: abort.signal });
  const parts = [];
  for await (const part of result.fullStream) {
    parts.push(part.type);
    if (part.type === "text-delta") abort.abort();
  }
  assert.equal(parts.at(-1), "abort");
});
