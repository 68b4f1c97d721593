/** The official OpenAI client, unchanged but for its base URL. */

import assert from "node:assert/strict";
import test from "node:test";

import OpenAI from "openai";

import { apiKey, baseURL, killEngine, limitedKey, model, question, sessionUntil } from "./gateway.js";

const client = new OpenAI({ baseURL, apiKey, maxRetries: 0 });

/** @param {string} prompt */
const asked = (prompt) => ({
  model,
  temperature: 0,
  messages: [{ role: "user", content: prompt }],
});

test("a streamed answer, with its usage", async () => {
  const { prompt, text, tokens } = question("short");
  const stream = await client.chat.completions.create({
    ...asked(prompt),
    stream: true,
    stream_options: { include_usage: true },
  });
  let said = "";
  let finish;
  let usage;
  for await (const chunk of stream) {
    said += chunk.choices[0]?.delta.content ?? "";
    finish = chunk.choices[0]?.finish_reason ?? finish;
    usage = chunk.usage ?? usage;
  }
  assert.equal(said, text);
  assert.equal(finish, "stop");
  assert.equal(usage.completion_tokens, tokens);
  assert.equal(usage.total_tokens, usage.prompt_tokens + tokens);
});

test("an answer in one piece", async () => {
  const { prompt, text, tokens } = question("short");
  const whole = await client.chat.completions.create(asked(prompt));
  assert.equal(whole.choices[0].message.content, text);
  assert.equal(whole.usage.completion_tokens, tokens);
});

test("the client's own helper for streams", async () => {
  const { prompt, text } = question("short");
  const runner = client.chat.completions.stream({ ...asked(prompt), stream: true });
  assert.equal(await runner.finalContent(), text);
});

test("an engine that is killed in the middle of it is not noticed", async () => {
  const { prompt, text } = question("long");
  const stream = await client.chat.completions.create({ ...asked(prompt), stream: true });
  let said = "";
  let killed = false;
  for await (const chunk of stream) {
    said += chunk.choices[0]?.delta.content ?? "";
    if (!killed && said.length > text.length / 4) {
      killed = true;
      await killEngine();
    }
  }
  assert.ok(killed);
  assert.equal(said, text);
});

test("errors are the client's own classes", async () => {
  const wrong = new OpenAI({ baseURL, apiKey: "ub-wrong", maxRetries: 0 });
  await assert.rejects(wrong.models.list(), OpenAI.AuthenticationError);
  await assert.rejects(
    client.chat.completions.create({ ...asked("x"), model: "unknown" }),
    (error) => error instanceof OpenAI.NotFoundError && error.code === "model_not_found",
  );
  await assert.rejects(
    client.chat.completions.create({ ...asked("x"), n: 2 }),
    (error) => error instanceof OpenAI.BadRequestError && error.param === "n",
  );
  const { data } = await client.models.list();
  assert.deepEqual(data.map((one) => one.id), [model]);
});

test("a limit is told as OpenAI tells it", async () => {
  const limited = new OpenAI({ baseURL, apiKey: limitedKey, maxRetries: 0 });
  const { prompt } = question("short");
  const { response } = await limited.chat.completions.create(asked(prompt)).withResponse();
  assert.equal(response.headers.get("x-ratelimit-limit-requests"), "1");
  await assert.rejects(limited.chat.completions.create(asked(prompt)), (error) => {
    assert.ok(error instanceof OpenAI.RateLimitError);
    assert.equal(error.code, "rate_limit_exceeded");
    assert.ok(Number(error.headers.get("retry-after")) > 0);
    return true;
  });
});

test("a stream that is aborted is suspended, and its engine let go", async () => {
  const { prompt } = question("endless");
  const { data: stream, response } = await client.chat.completions
    .create({ ...asked(prompt), stream: true })
    .withResponse();
  for await (const chunk of stream) {
    if (chunk.choices[0]?.delta.content) break; // the client aborts the request then
  }
  const id = response.headers.get("x-session-id");
  const session = await sessionUntil(id, ({ state }) => state === "suspended");
  assert.equal(session.cause, "client_gone");
});
