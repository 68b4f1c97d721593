/** What may go wrong, and which string tells the reader of it. */

const BUSY = new Set([
  "rate_limit_exceeded", "no_healthy_node", "overloaded", "shutting_down", "journal_unavailable",
]);
const ACCESS = new Set(["invalid_api_key", "token_expired", "not_permitted", "origin_not_allowed"]);
const INPUT = new Set([
  "invalid_request", "unsupported_parameter", "engine_rejected", "context_length_exceeded",
  "request_too_large",
]);
const GONE = new Set(["not_found", "session_purged"]);

/** Whether a text is a key that only a backend may hold. */
export function isSecretKey(token) {
  return /^(ub-(live|test)-|sk-)/.test(token);
}

export const SECRET_KEY_WARNING =
  "unbroken-chat: this is a secret API key, and everybody who opens this page can read it. It was " +
  "not used. Revoke it, and let your backend mint an embed token (POST /v1/embed-tokens) instead.";

/** The name of the string for an error of the client. @param {Error & {code?: string, status?: number}} error */
export function problemOf(error) {
  const { code = "", status = 0, name = "" } = error;
  if (name === "NetworkError") return "error_network";
  if (name === "ContentViolation" || code === "content_filter") return "error_content";
  if (code === "insufficient_quota") return "error_quota";
  if (ACCESS.has(code) || status === 401 || status === 403) return "error_access";
  if (GONE.has(code)) return "error_gone";
  if (INPUT.has(code)) return "error_input";
  if (BUSY.has(code) || status === 429 || status === 503) return "error_busy";
  return "error";
}

/** Whether asking once more could help. */
export function isWorthRetrying(problem) {
  return !["error_input", "error_content", "error_quota"].includes(problem);
}
