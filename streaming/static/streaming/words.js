/** What happened, in words. */

const CAUSES = {
  refused: "refused the connection",
  connection_reset: "died",
  closed_early: "died", // how a killed engine looks when the kernel could still close its stream
  malformed_event: "sent garbage",
  engine_error: "reported an error",
  engine_abort: "aborted",
  bad_status: "answered with an error",
  engine_busy: "was too busy",
  no_first_token: "said nothing",
  stalled: "fell silent",
  seam_mismatch: "would have said something else",
  rehearsal: "was failed on purpose",
};

const GRADES = {
  exact: "exact: not a token lost, doubled or changed",
  text: "by text: continued from the words, not the tokens",
  regenerated: "regenerated: asked again from the start and compared",
};

export function failure({ node, cause, seq }) {
  const what = CAUSES[cause] ?? `failed (${cause})`;
  return seq ? `${node} ${what} after token ${seq}` : `${node} ${what} before its first token`;
}

export function recovery({ node, seq, gap_ms: gap, grade }) {
  if (!seq) return `${node} began in its place, ${milliseconds(gap)} later.`;
  return `${node} continued from token ${seq + 1}, ${milliseconds(gap)} later. Seam ${GRADES[grade] ?? grade}.`;
}

/** The tooltip at a seam. */
export function seam(failures, recovered) {
  const { node, seq, gap_ms: gap, grade } = recovered;
  const died = failures.map(failure).join("; ");
  return `${died}; ${node} continued from token ${seq + 1} after ${milliseconds(gap)}; grade ${grade}`;
}

export function finished({ finish, tokens }, seams) {
  const length = plural(tokens, "token") + (finish === "length" ? ", the most this page asks for" : "");
  const course = seams ? `${plural(seams, "interruption")} survived` : "no interruption";
  return `Answer finished: ${length}; ${course}.`;
}

function plural(count, noun) {
  return `${count} ${noun}${count === 1 ? "" : "s"}`;
}

function milliseconds(gap) {
  return gap < 1000 ? `${Math.round(gap)} ms` : `${(gap / 1000).toFixed(1)} s`;
}
