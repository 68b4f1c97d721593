/** What can go wrong: the network (tried again), the server (shown), the content (reviewed). */

export class UnbrokenError extends Error {
  /** @param {string} message @param {object} [fields] */
  constructor(message, fields = {}) {
    super(message, { cause: fields.cause });
    this.name = new.target.name;
    this.code = fields.code ?? "";
    /** The reference that the reader may quote to support. */
    this.reference = fields.reference ?? "";
    /** Whether the answer can still be had by `client.resume`. */
    this.resumable = fields.resumable ?? false;
    /** Whether trying again may help; the client has done so for as long as that made sense. */
    this.temporary = fields.temporary ?? false;
  }
}

/** The gateway cannot be reached, or something between spoils what it says. */
export class NetworkError extends UnbrokenError {
  constructor(message, fields = {}) {
    super(message, { code: "network", resumable: true, temporary: true, ...fields });
  }
}

const BUSY = [408, 425, 502, 503, 504];

/** The gateway has answered with an error. */
export class ServerError extends UnbrokenError {
  constructor(message, fields = {}) {
    super(message, { temporary: BUSY.includes(fields.status), ...fields });
    /** 0 where it came inside a stream. */
    this.status = fields.status ?? 0;
    this.type = fields.type ?? "";
    this.param = fields.param ?? null;
    /** Seconds, where the server has said. */
    this.retryAfter = fields.retryAfter ?? null;
    this.requestId = fields.requestId ?? "";
  }

  /** From an OpenAI error object. */
  static from(error, fields = {}) {
    const status = error.type === "authentication_error" ? 401 : 0;
    return new ServerError(error.message, { status, ...error, ...fields });
  }

  /** From an HTTP response: the gateway's error, or whatever a proxy in between made of it. */
  static async of(response) {
    const { status, headers } = response;
    const fields = {
      status,
      retryAfter: Number(headers.get("Retry-After")) || null,
      requestId: headers.get("X-Request-Id") ?? "",
    };
    const body = await response.text().catch(() => "");
    try {
      return ServerError.from(JSON.parse(body).error, fields);
    } catch {
      const message = `The gateway cannot be reached: a proxy answered with ${status}.`;
      return status >= 500 ? new NetworkError(message, fields) : new ServerError(message, fields);
    }
  }
}

/** The content rules have ended the answer; `text` is what was let through. */
export class ContentViolation extends UnbrokenError {
  constructor(text, fields = {}) {
    super("The content rules have ended this answer.", { code: "content_filter", ...fields });
    this.text = text;
  }
}
