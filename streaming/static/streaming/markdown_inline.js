/**
 * What stands inside a line of Markdown: bold, italics, struck out, code, links. One pass from left
 * to right whose cost grows with the length and nothing else, whatever is opened and never closed.
 */

const MAX_OPEN = 32; // delimiters that wait for their other half; older ones are plain text
const MAX_URL = 2048;
const SPECIAL = /[\\`*_~[\]!<h]/g;
const PUNCTUATION = /[!-/:-@[-`{-~]/;
const DESTINATION = /\(\s{0,8}<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s{1,8}"[^"\n]{0,300}")?\s{0,8}\)/y;
const BARE = /https?:\/\/[^\s<>"'`|\\^{}[\]()]+(?:\([^\s<>"'`|\\^{}[\]()]*\)[^\s<>"'`|\\^{}[\]()]*)*/y;
const ANGLED = /<(https?:\/\/[^\s<>]+|mailto:[^\s<>]+)>/y;
const SCHEMES = new Set(["http:", "https:", "mailto:"]);
// Marks that turn the direction of text around. In prose only the overrides are never needed; in
// code all of them make it read otherwise than it runs.
const OVERRIDES = /[\u202d\u202e]/g;
const CONTROLS = /[\u200e\u200f\u061c\u202a-\u202e\u2066-\u2069]/g;

/** The address, if a reader may be sent there; else null. */
export function safeUrl(text) {
  if (text.length > MAX_URL) return null;
  try {
    const url = new URL(text);
    return SCHEMES.has(url.protocol) ? url.href : null;
  } catch {
    return null;
  }
}

/** A link that tells its target nothing about where it was followed from. */
function link(href) {
  const a = document.createElement("a");
  a.href = href;
  a.target = "_blank";
  a.rel = "noopener noreferrer";
  a.title = href;
  return a;
}

/**
 * Append strings and nodes to `parent`, neighbouring strings as one text node.
 * @param {Element} parent
 * @param {(string | Node)[]} parts
 */
export function fill(parent, parts) {
  let text = "";
  for (const part of parts) {
    if (typeof part === "string") text += part;
    else {
      if (text) parent.append(text);
      text = "";
      parent.append(part);
    }
  }
  if (text) parent.append(text);
  return parent;
}

/** Text with each mark that turns its direction shut in, so that it turns nothing. */
export function shielded(text, inCode = false) {
  const pattern = inCode ? CONTROLS : OVERRIDES;
  if (text.search(pattern) < 0) return [text];
  const parts = [];
  let done = 0;
  for (const { 0: control, index } of text.matchAll(pattern)) {
    const shield = document.createElement("span");
    shield.className = "control";
    shield.dataset.code = `U+${control.codePointAt(0).toString(16).toUpperCase().padStart(4, "0")}`;
    shield.append(control);
    parts.push(text.slice(done, index), shield);
    done = index + 1;
  }
  parts.push(text.slice(done));
  return parts;
}

/**
 * One run of inline text. `write(parts, start, end, inCode)` puts a slice of the source. It works on a
 * slice of its own: what it looks for it must not look for in all of a long answer.
 */
export class Inline {
  #whole;
  #write;
  #source = ""; // the run
  #parts = [];
  #open = []; // {at: index in parts, mark, closes, opens}
  #end = 0;
  #unclosed = new Set(); // lengths of backtick runs that have no partner any more

  constructor(source, write) {
    this.#whole = source;
    this.#write = write;
  }

  /** @returns {(string | Node)[]} */
  parse(start, stop) {
    const write = this.#write;
    this.#write = (parts, from, to, inCode) => write(parts, start + from, start + to, inCode);
    const source = (this.#source = this.#whole.slice(start, stop));
    const end = (this.#end = source.length);
    let done = 0;
    let at = 0;
    for (;;) {
      SPECIAL.lastIndex = at;
      const match = SPECIAL.exec(source);
      if (!match) break;
      at = match.index;
      const next = this.#special(at, done);
      if (next > at) done = at = next;
      else at -= next; // nothing special: how many characters to pass over, negated
    }
    this.#write(this.#parts, done, end, false);
    for (const { at: index, mark } of this.#open) this.#parts[index] = mark;
    return this.#parts;
  }

  /** What begins at `at`: where it ends, after everything was written; or minus what to skip. */
  #special(at, done) {
    const source = this.#source;
    const flush = () => this.#write(this.#parts, done, at, false);
    switch (source[at]) {
      case "\\": {
        if (at + 1 >= this.#end || !PUNCTUATION.test(source[at + 1])) return -1;
        flush();
        this.#write(this.#parts, at + 1, at + 2, false);
        return at + 2;
      }
      case "`":
        return this.#code(at, flush);
      case "[":
      case "!": {
        const width = source[at] === "!" ? 2 : 1;
        if (width === 2 && source[at + 1] !== "[") return -1;
        if (at + width > this.#end) return -1;
        flush();
        this.#wait({ mark: source.slice(at, at + width) });
        return at + width;
      }
      case "]":
        return this.#link(at, flush);
      case "<":
        return this.#angled(at, flush);
      case "h":
        return this.#bare(at, flush);
      default:
        return this.#emphasis(at, flush);
    }
  }

  #code(at, flush) {
    const source = this.#source;
    let run = at;
    while (run < this.#end && source[run] === "`") run += 1;
    const width = run - at;
    if (this.#unclosed.has(width)) return -width;
    for (let i = source.indexOf("`", run); i >= 0 && i < this.#end; i = source.indexOf("`", i)) {
      let close = i;
      while (close < this.#end && source[close] === "`") close += 1;
      if (close - i === width) {
        flush();
        const inner = [];
        this.#write(inner, run, i, true);
        this.#parts.push(fill(codeElement(), inner));
        return close;
      }
      i = close;
    }
    this.#unclosed.add(width);
    return -width;
  }

  #link(at, flush) {
    const index = this.#open.findLastIndex(isBracket);
    if (index < 0) return -1;
    DESTINATION.lastIndex = at + 1;
    const match = this.#source[at + 1] === "(" ? DESTINATION.exec(this.#source) : null;
    const href = match && DESTINATION.lastIndex <= this.#end ? safeUrl(match[1]) : null;
    flush();
    const { at: from, mark } = this.#open[index];
    if (!href) {
      // What it opened is plain text, and so is this bracket.
      this.#parts[from] = mark;
      this.#open.splice(index, 1);
      this.#write(this.#parts, at, at + 1, false);
      return at + 1;
    }
    for (const open of this.#open.splice(index)) this.#parts[open.at] = open.mark;
    const inner = this.#parts.splice(from).slice(1);
    const a = fill(link(href), inner);
    if (!a.firstChild) a.append(href);
    this.#parts.push(a);
    // No link inside a link.
    for (const open of this.#open.filter(isBracket)) this.#parts[open.at] = open.mark;
    this.#open = this.#open.filter((open) => !isBracket(open));
    return at + 1 + match[0].length;
  }

  #angled(at, flush) {
    if (this.#open.some(isBracket)) return -1;
    ANGLED.lastIndex = at;
    const match = ANGLED.exec(this.#source);
    const href = match && ANGLED.lastIndex <= this.#end ? safeUrl(match[1]) : null;
    if (!href) return -1;
    flush();
    const inner = [];
    this.#write(inner, at + 1, at + 1 + match[1].length, false);
    this.#parts.push(fill(link(href), inner));
    return at + match[0].length;
  }

  #bare(at, flush) {
    const source = this.#source;
    if (!source.startsWith("http", at) || /[\p{L}\p{N}]/u.test(source[at - 1] ?? "")) return -1;
    if (this.#open.some(isBracket)) return -1; // it may be inside a link
    BARE.lastIndex = at;
    const match = BARE.exec(source);
    if (!match) return -1;
    if (match[0].length > MAX_URL) return -match[0].length;
    let text = match[0].slice(0, this.#end - at);
    text = text.replace(/[.,:;!?*_~。、，]+$/u, "");
    const href = safeUrl(text);
    if (!href) return -1;
    flush();
    const inner = [];
    this.#write(inner, at, at + text.length, false);
    this.#parts.push(fill(link(href), inner));
    return at + text.length;
  }

  #emphasis(at, flush) {
    const source = this.#source;
    const character = source[at];
    let run = at;
    while (run < this.#end && source[run] === character) run += 1;
    const width = run - at;
    if (width > 3 || (character === "~" && width !== 2)) return -width;
    const before = at > 0 ? source[at - 1] : " ";
    const after = run < this.#end ? source[run] : " ";
    const opens = /\S/.test(after) && (character !== "_" || !/[\p{L}\p{N}]/u.test(before));
    const closes = /\S/.test(before) && (character !== "_" || !/[\p{L}\p{N}]/u.test(after));
    if (!opens && !closes) return -width;
    flush();
    let left = width;
    while (closes && left) {
      const taken = this.#close(character, left);
      if (!taken) break;
      left -= taken;
    }
    if (!left) return run;
    const mark = character.repeat(left);
    if (opens) this.#wait({ mark });
    else this.#parts.push(mark);
    return run;
  }

  /** Close the nearest run of `character`; how many of them that took. */
  #close(character, width) {
    const index = this.#open.findLastIndex(({ mark }) => mark[0] === character);
    if (index < 0) return 0;
    const open = this.#open[index];
    if (open.at === this.#parts.length - 1) return 0; // nothing in between
    const taken = Math.min(open.mark.length, width, 2);
    if (taken === 1 && open.mark.length === 2 && width === 1) return 0; // "**" waits for its like
    for (const other of this.#open.splice(index + 1)) this.#parts[other.at] = other.mark;
    const inner = this.#parts.splice(open.at + 1);
    const tag = character === "~" ? "s" : taken === 2 ? "strong" : "em";
    const element = fill(document.createElement(tag), inner);
    open.mark = open.mark.slice(taken);
    if (!open.mark) {
      this.#open.pop();
      this.#parts.pop();
    }
    this.#parts.push(element);
    return taken;
  }

  #wait(open) {
    open.at = this.#parts.push("") - 1;
    this.#open.push(open);
    if (this.#open.length > MAX_OPEN) {
      const oldest = this.#open.shift();
      this.#parts[oldest.at] = oldest.mark;
    }
  }
}

function codeElement() {
  const code = document.createElement("code");
  code.dir = "ltr";
  return code;
}

function isBracket({ mark }) {
  return mark.endsWith("[");
}
