/**
 * One answer of the gateway: asks for it, reads its stream, and tells what happens to it.
 */

import { events } from "./sse.js";

/** The answer will not come, or not to its end; the message is for the reader. */
export class AnswerFailed extends Error {}

/**
 * @param {object} config the page's configuration
 * @param {{role: string, content: string}[]} messages
 * @param {object} tell callbacks: text(text, seq), attempt(data), recovering(data), recovered(data)
 * @param {AbortSignal} signal aborting ends the answer on the gateway too
 * @returns {Promise<{finish: string, tokens: number}>}
 */
export async function ask(config, messages, tell, signal) {
  const response = await request(config, messages, signal);
  const session = response.headers.get("X-Session-Id");
  signal.addEventListener("abort", () => stop(config, session), { once: true });
  let finish = "";
  let tokens = 0;
  for await (const { event, data, id } of events(response.body)) {
    if (data === "[DONE]") return { finish, tokens };
    const value = JSON.parse(data);
    if (event.startsWith("unbroken.")) {
      tell[event.slice("unbroken.".length)]?.(value);
      continue;
    }
    if (value.error) throw new AnswerFailed(value.error.message);
    const choice = value.choices?.[0];
    if (choice?.delta?.content) {
      tokens = Number(id) || tokens;
      tell.text(choice.delta.content, tokens);
    }
    finish = choice?.finish_reason || finish;
  }
  throw new AnswerFailed("The connection ended before the answer did.");
}

/** Leaving is not stopping: a reader who only left could come back for the rest. */
function stop(config, session) {
  fetch(`/v1/sessions/${session}/stop`, {
    method: "POST",
    headers: { Authorization: `Bearer ${config.token}` },
    keepalive: true, // also when the page is being closed
  }).catch(() => {}); // without a connection its grace period ends the work
}

async function request(config, messages, signal) {
  let response;
  try {
    response = await fetch(config.completions, {
      method: "POST",
      signal,
      headers: {
        Authorization: `Bearer ${config.token}`,
        "Content-Type": "application/json",
        "X-Unbroken-Events": "1",
      },
      body: JSON.stringify({
        model: config.model,
        messages,
        stream: true,
        max_tokens: config.maxTokens,
        temperature: 0.7,
        top_p: 0.9,
      }),
    });
  } catch (error) {
    if (signal.aborted) throw error;
    throw new AnswerFailed("The gateway cannot be reached.");
  }
  if (!response.ok) throw new AnswerFailed(await problem(response));
  return response;
}

/** What an HTTP error says: OpenAI's error object, or whatever a proxy in between made of it. */
async function problem(response) {
  const text = await response.text();
  try {
    return JSON.parse(text).error.message;
  } catch {
    return `The gateway answered ${response.status} ${response.statusText}.`;
  }
}
