/** The browser client of Unbroken. docs/browser-client.md tells how it behaves. */

export type Transport = "websocket" | "sse" | "longpoll" | "plain";

export type State = "connecting" | "streaming" | "reconnecting" | "done" | "stopped" | "failed";

/** A chat request as OpenAI's. */
export interface ChatRequest {
  model: string;
  messages: { role: string; content: string }[];
  [parameter: string]: unknown;
}

export interface ClientOptions {
  /** The gateway. Default: the origin that the module came from. */
  baseUrl?: string;
  /** An embed token, or what fetches one. */
  token: string | (() => Promise<string>);
  /** Fetches the next one when the gateway says that a token is over. Default: `token`, if a function. */
  refreshToken?: () => Promise<string>;
  /** Those that may be used, best first. Default: all, in this order. */
  transports?: Transport[];
  /** Default: "indexeddb", which is memory where there is none. */
  storage?: "indexeddb" | "memory";
  /** Keeps the caches of several people or products on one origin apart. */
  namespace?: string;
  /** Default: 50. */
  maxCachedSessions?: number;
  /** Default: 5,000,000. */
  maxCachedBytes?: number;
  /** Seconds of silence after which the gateway is to be heard, 1 to 30. Default: what fits. */
  heartbeat?: number;
  /** Whether the gateway is told how the answer looked from here. Default: true. */
  report?: boolean;
  /** The content rules have ended an answer; `text` is what they had let through. */
  onContentViolation?: (violation: { id: string; reference: string; text: string }) => void;
}

export interface AnswerOptions {
  /** Stops the answer on the gateway when it is aborted. */
  signal?: AbortSignal;
  /** Stops the answer when the page is closed or reloaded. Default: false. */
  stopOnClose?: boolean;
}

export interface StartOptions extends AnswerOptions {
  /** Default: a new one. The same key and request give the same answer. */
  idempotencyKey?: string;
  level?: "realtime" | "standard" | "economy";
  variant?: string;
}

export interface Piece {
  /** The last token in it. */
  seq: number;
  text: string;
}

export interface Usage {
  prompt_tokens: number;
  completion_tokens: number;
  total_tokens: number;
}

export interface Result {
  text: string;
  finishReason: string | null;
  /** null where the end was learnt without it. */
  usage: Usage | null;
}

export interface CachedSession extends Piece {
  id: string;
  reference: string;
  ended: boolean;
  /** Milliseconds since 1970. */
  updatedAt: number;
  request?: ChatRequest;
}

export interface AnswerEventMap {
  session: CustomEvent<{ session_id?: string; reference: string; server_time: string }>;
  text: CustomEvent<Piece>;
  state: CustomEvent<State>;
  attempt: CustomEvent<{ attempt: number; node: string; seq: number }>;
  recovering: CustomEvent<{ attempt?: number; node?: string; cause?: string; seq: number }>;
  recovered: CustomEvent<{ attempt: number; node: string; grade: string; seq: number; gap_ms: number }>;
  done: CustomEvent<{ finishReason: string | null; usage: Usage | null }>;
  error: CustomEvent<Error>;
}

/** One answer. Iterate over it, listen to it, or wait for `finished`. */
export class Answer extends EventTarget implements AsyncIterable<Piece> {
  /** Empty until the gateway has begun it. */
  readonly id: string;
  readonly reference: string;
  /** All so far. */
  readonly text: string;
  /** The last token so far. */
  readonly seq: number;
  readonly state: State;
  /** The one that was heard last; empty: none yet. */
  readonly transport: Transport | "";
  readonly request?: ChatRequest;
  readonly error: Error | null;
  readonly result: Result | null;
  /** Rejects with what `error` tells, or when it is left. */
  readonly finished: Promise<Result>;
  /** Pieces of text, what is there already first. Throws what the answer fails with. */
  [Symbol.asyncIterator](): AsyncGenerator<Piece, void, undefined>;
  /** Ends it on the gateway, for good; resolves when the gateway has said so. */
  stop(keepalive?: boolean): Promise<void>;
  /** Follows it no longer; the gateway keeps it for its resume window. */
  leave(): void;
  /** Everything up to `seq` has been shown. Once called, only what is told here is acknowledged. */
  rendered(seq: number): void;
  addEventListener<K extends keyof AnswerEventMap>(
    type: K,
    listener: (event: AnswerEventMap[K]) => void,
    options?: boolean | AddEventListenerOptions,
  ): void;
}

export class UnbrokenClient {
  constructor(options: ClientOptions);
  /** What is known of the way to the gateway; null: not known yet. */
  readonly network: {
    /** Milliseconds. */
    readonly rtt: number | null;
    /** Milliseconds that the gateway's clock is ahead. */
    readonly drift: number;
    readonly bytesPerSecond: number | null;
    readonly isWeak: boolean;
  };
  /** Begins an answer, once, whatever the network does. */
  start(request: ChatRequest, options?: StartOptions): Answer;
  /** Goes on with an answer, shown at once as far as it is kept here. */
  resume(id: string, options?: AnswerOptions): Answer;
  /** What is kept here, newest first. */
  sessions(): Promise<CachedSession[]>;
  /** Deletes what is kept here of one answer, or of all. */
  forget(id?: string): Promise<void>;
  /** Leaves all answers without stopping them. */
  close(): void;
}

export class UnbrokenError extends Error {
  readonly code: string;
  /** What the reader may quote to support. */
  readonly reference: string;
  /** Whether the answer can still be had by `resume`. */
  readonly resumable: boolean;
  readonly temporary: boolean;
}

/** The gateway could not be reached for as long as it keeps an answer waiting. */
export class NetworkError extends UnbrokenError {}

/** The gateway has said no. */
export class ServerError extends UnbrokenError {
  /** The HTTP status; 0 inside a stream. */
  readonly status: number;
  readonly type?: string;
  readonly param?: string | null;
  /** Seconds; 0: not said. */
  readonly retryAfter?: number;
}

/** The content rules have ended the answer. */
export class ContentViolation extends UnbrokenError {
  /** What they had let through. */
  readonly text: string;
}
