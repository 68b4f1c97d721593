/**
 * The ways to follow a session, best first. Each follows one connection of a `link` and tells it
 * `alive(bytes)` and `event(name, data)`. It returns when the server has ended the connection in
 * good order, and throws what went wrong otherwise. None ever begins an answer.
 */

import { NetworkError, ServerError } from "./errors.js";
import { gone } from "./http.js";
import { Parser } from "../sse.js";

const OPENING_MS = 5000; // a socket that is held back is not waited for as long as a silent stream
const PLAIN_PAUSE_MS = 1500; // less than the grace after which the gateway lets go of the engine

/** The token goes into the first message: browsers send no headers with a handshake. */
async function websocket(link) {
  if (!globalThis.WebSocket) throw new NetworkError("There are no WebSockets here.");
  const { http, network } = link;
  const token = (link.token = await http.token());
  let refused = null;
  let askedAt = 0;
  const query = new URLSearchParams(link.wishes());
  const socket = new WebSocket(`${http.baseUrl.replace(/^http/, "ws")}/ws/chat/?${query}`, ["unbroken.v1"]);
  const send = (message) => socket.readyState === 1 && socket.send(JSON.stringify(message));
  const opening = setTimeout(() => socket.close(), OPENING_MS);
  try {
    await new Promise((resolve, reject) => {
      link.signal.addEventListener("abort", () => reject(link.signal.reason));
      socket.onopen = () => {
        askedAt = Date.now();
        send({ type: "auth", token });
      };
      socket.onmessage = ({ data }) => {
        link.alive(data.length);
        const { type, ...message } = JSON.parse(data);
        if (type === "ready") {
          clearTimeout(opening);
          network.clock(askedAt, message.server_time);
          send({ type: "resume", session: link.id, seq: link.cursor, ref: "resume" });
        } else if (type === "error" && message.seq === undefined) {
          // Of the socket, or of a message; what a late ack is told concerns nobody.
          const error = ServerError.from(message.error);
          if (!link.isOpen) refused = error;
          if (message.ref === "resume" || message.session === link.id) reject(error);
        } else {
          if (type === "session") {
            link.ack = (seq) => send({ type: "ack", session: link.id, seq });
            const { coalesce } = link.wishes();
            if (coalesce) send({ type: "wish", coalesce });
          }
          link.event(type, message);
        }
      };
      socket.onclose = ({ code }) => {
        if (code === 1000 || code === 1012) resolve();
        else reject(refused ?? new NetworkError(`The socket was closed (${code}).`));
      };
    });
  } finally {
    clearTimeout(opening);
    link.ack = null;
    socket.onmessage = socket.onclose = null;
    socket.close();
  }
}

async function sse(link) {
  const query = new URLSearchParams({ ...link.wishes(), ...link.position() });
  const response = await link.ask(query, "text/event-stream");
  if (response.status === 204) return link.event("complete", {});
  if (!response.headers.get("Content-Type")?.startsWith("text/event-stream")) {
    throw new NetworkError("Something in between answered for the gateway.");
  }
  const parser = new Parser();
  const decoder = new TextDecoder();
  const reader = response.body.getReader();
  try {
    for (;;) {
      const { value, done } = await reader.read().catch((error) => {
        throw gone(link.signal, error);
      });
      if (done) return;
      link.alive(value.length);
      for (const { event, data } of parser.feed(decoder.decode(value, { stream: true }))) {
        link.event(event, JSON.parse(data));
      }
    }
  } finally {
    reader.cancel().catch(() => {}); // it is broken, or nobody reads on
  }
}

/** One poll; the next connection is the next poll. */
async function longpoll(link, wait = Math.round(link.silence / 1500)) {
  const response = await link.ask(new URLSearchParams({ ...link.position(), wait }), "application/json");
  if (response.status === 204) return link.event("complete", {});
  let body;
  try {
    body = await response.json();
  } catch (error) {
    throw gone(link.signal, error);
  }
  link.alive(JSON.stringify(body).length);
  link.isOpen = true;
  for (const { event, data } of body.events) link.event(event, data);
}

/** For networks that let nothing wait: ask, now and then. */
async function plain(link) {
  await longpoll(link, 0);
  await link.pause(PLAIN_PAUSE_MS);
}

export const TRANSPORTS = { websocket, sse, longpoll, plain };
