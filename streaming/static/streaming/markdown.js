/**
 * A safe subset of Markdown, rendered while it grows: headings, paragraphs, lists, fenced code; bold,
 * italics, inline code. Builds DOM nodes, never HTML from text.
 *
 * Text up to the last blank line outside a fence is settled and rendered once; only the tail after
 * it is rendered again, so a long answer costs no more per token than a short one.
 *
 * Marks (the seams) sit at offsets of the source. Every inline run is one slice of the source, so a
 * mark comes out exactly between the two characters it belongs to, or at the next visible one.
 */

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([\w+-]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+/;
const ITEM = /^(\s{0,8})([-*+]|\d{1,9}[.)])\s+/;
const INLINE = /`([^`]+)`|\*\*(?=\S)([^]*?\S)\*\*|\*(?=[^\s*])([^*]*?[^\s*])\*/g;

export class MarkdownView {
  #root;
  #source = "";
  #settled = 0;
  #tail = [];
  #marks = [];
  #placed = 0; // how many marks are in settled text

  /** @param {HTMLElement} root */
  constructor(root) {
    this.#root = root;
  }

  get source() {
    return this.#source;
  }

  append(text) {
    this.#source += text;
  }

  /** Put what `make()` returns where the text now ends. */
  mark(make) {
    this.#marks.push({ at: this.#source.length, make });
  }

  /** Bring the DOM up to date. */
  render() {
    for (const node of this.#tail) node.remove();
    const end = lastSettled(this.#source, this.#settled);
    if (end > this.#settled) {
      const blocks = new Blocks(this.#source, this.#marks, this.#placed);
      this.#root.append(...blocks.render(this.#settled, end));
      this.#placed = blocks.placed;
      this.#settled = end;
    }
    const blocks = new Blocks(this.#source, this.#marks, this.#placed);
    this.#tail = blocks.render(this.#settled, this.#source.length);
    this.#tail = blocks.placeRest(this.#tail);
    this.#root.append(...this.#tail);
  }
}

/** The end of the last blank line outside a fence, from `start` on. */
function lastSettled(source, start) {
  let settled = start;
  let fence = "";
  for (const { text, end, complete } of lines(source, start, source.length)) {
    fence = nextFence(fence, text);
    if (!fence && complete && !text.trim()) settled = end;
  }
  return settled;
}

/** The fence that is open after this line: its characters, or "". */
function nextFence(open, line) {
  const match = FENCE.exec(line);
  if (!match) return open;
  if (!open) return match[1];
  const closes = match[1][0] === open[0] && match[1].length >= open.length && !match[2];
  return closes ? "" : open;
}

function* lines(source, start, end) {
  while (start < end) {
    const newline = source.indexOf("\n", start);
    const complete = newline >= 0 && newline < end;
    const next = complete ? newline + 1 : end;
    yield { text: source.slice(start, complete ? newline : end), start, end: next, complete };
    start = next;
  }
}

/** One pass over a stretch of whole blocks. */
class Blocks {
  constructor(source, marks, placed) {
    this.source = source;
    this.marks = marks;
    this.placed = placed;
  }

  /** @returns {HTMLElement[]} */
  render(start, end) {
    const all = [...lines(this.source, start, end)];
    const nodes = [];
    let list = null;
    for (let i = 0; i < all.length; ) {
      const line = all[i];
      const item = ITEM.exec(line.text);
      const heading = HEADING.exec(line.text);
      if (!line.text.trim()) {
        i += 1;
      } else if (nextFence("", line.text)) {
        i = this.#fence(nodes, all, i);
      } else if (heading) {
        const level = Math.min(heading[1].length + 2, 6); // the page has h1 and h2 of its own
        nodes.push(this.#block(`h${level}`, line.start + heading[0].length, line.end));
        i += 1;
      } else if (item) {
        const next = this.#continuation(all, i + 1);
        list = this.#list(nodes, list, item);
        list.append(this.#block("li", line.start + item[0].length, all[next - 1].end));
        i = next;
        continue; // the next item joins the same list
      } else {
        const next = this.#continuation(all, i + 1);
        nodes.push(this.#block("p", line.start, all[next - 1].end));
        i = next;
      }
      if (line.text.trim()) list = null;
    }
    return nodes;
  }

  /** Marks at the very end of the text, where nothing follows yet. */
  placeRest(nodes) {
    if (this.placed === this.marks.length) return nodes;
    if (!nodes.length) nodes = [document.createElement("p")];
    let last = nodes.at(-1);
    if (/^[OU]L$/.test(last.tagName)) last = last.lastElementChild;
    this.#marksUpTo(last, Infinity);
    return nodes;
  }

  /** The index of the first line that no longer belongs to the paragraph or item before `i`. */
  #continuation(all, i) {
    while (i < all.length) {
      const { text } = all[i];
      if (!text.trim() || nextFence("", text) || HEADING.test(text) || ITEM.test(text)) break;
      i += 1;
    }
    return i;
  }

  #list(nodes, list, item) {
    const ordered = /\d/.test(item[2]);
    const tag = ordered ? "OL" : "UL";
    if (list && list.tagName === tag) return list;
    list = document.createElement(tag);
    if (ordered) list.start = parseInt(item[2], 10);
    nodes.push(list);
    return list;
  }

  #fence(nodes, all, i) {
    const pre = document.createElement("pre");
    const code = pre.appendChild(document.createElement("code"));
    let open = nextFence("", all[i].text);
    const start = all[i].end;
    let end = start;
    for (i += 1; i < all.length && open; i += 1) {
      open = nextFence(open, all[i].text);
      if (open) end = all[i].end;
    }
    this.#text(code, start, end);
    nodes.push(pre);
    return i;
  }

  #block(tag, start, end) {
    while (end > start && /\s/.test(this.source[end - 1])) end -= 1;
    const element = document.createElement(tag);
    this.#inline(element, start, end);
    return element;
  }

  #inline(parent, start, end) {
    const slice = this.source.slice(start, end);
    let done = 0;
    for (const match of slice.matchAll(INLINE)) {
      const [whole, code, bold] = match;
      const width = code !== undefined ? 1 : bold !== undefined ? 2 : 1;
      this.#text(parent, start + done, start + match.index);
      const tag = code !== undefined ? "code" : bold !== undefined ? "strong" : "em";
      const element = parent.appendChild(document.createElement(tag));
      const inner = start + match.index + width;
      const innerEnd = start + match.index + whole.length - width;
      if (tag === "strong") this.#inline(element, inner, innerEnd);
      else this.#text(element, inner, innerEnd);
      done = match.index + whole.length;
    }
    this.#text(parent, start + done, end);
  }

  #text(parent, start, end) {
    while (this.placed < this.marks.length && this.marks[this.placed].at < end) {
      const at = Math.max(this.marks[this.placed].at, start);
      if (at > start) parent.append(this.source.slice(start, at));
      this.#marksUpTo(parent, at);
      start = at;
    }
    if (end > start) parent.append(this.source.slice(start, end));
  }

  #marksUpTo(parent, at) {
    while (this.placed < this.marks.length && this.marks[this.placed].at <= at) {
      parent.append(this.marks[this.placed].make());
      this.placed += 1;
    }
  }
}
