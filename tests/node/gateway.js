/** What the Python side of these tests tells of the gateway, and does when it is asked. */

import assert from "node:assert/strict";

const given = JSON.parse(process.env.UNBROKEN ?? "{}");

/** The base URL that clients of OpenAI's API are given. */
export const baseURL = `${given.url}/v1`;
export const apiKey = given.key;
/** A key that may ask once a minute. */
export const limitedKey = given.limitedKey;
export const model = "sim-model";

/**
 * A question by its name, and its answer without any fault.
 * @param {"short" | "long" | "endless"} name
 * @returns {{prompt: string, text: string, tokens: number}}
 */
export const question = (name) => given.questions[name];

/** Kill the engine that answers at the moment; resolves when it is dead. */
export async function killEngine() {
  const answer = await fetch(`${given.control}/kill`, { method: "POST" });
  assert.equal(answer.status, 200);
}

/**
 * A session, once it is as the condition wants it.
 * @param {string} id
 * @param {(session: Record<string, any>) => boolean} condition
 */
export async function sessionUntil(id, condition) {
  const headers = { authorization: `Bearer ${apiKey}` };
  for (;;) {
    const session = await (await fetch(`${baseURL}/sessions/${id}`, { headers })).json();
    if (condition(session)) return session;
    await new Promise((resolve) => setTimeout(resolve, 50));
  }
}
