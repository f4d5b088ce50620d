/* Cuts markdown into its top-level blocks as it grows, so that finished ones need not be rendered again.

   Knows markdown-it's block parser and no page. The last two blocks stay open: text that follows can still join the
   one before the last (the second item of a loose list looks like a paragraph until its marker is complete). A fence
   at the margin that grows is not parsed again: what is added is looked at for its closing line. */

import { closes, openFenceOf, withoutHalfDefinition } from "#octavo/repair.js";

const OPEN = 2;

const normal = (text) => text.replace(/\r\n?/g, "\n").replace(/\0/g, "\uFFFD");

/** The source of each top-level block of `text`, and where in `text` each begins. */
function cut(md, text, env) {
  const source = normal(text);
  const tokens = [];
  md.block.parse(source, md, env, tokens);
  const starts = tokens
    .filter((token) => token.level === 0 && token.map && token.nesting >= 0)
    .map((token) => token.map[0]);
  if (starts.length === 0) return [{ at: 0, source }];
  const offsets = [0];
  for (let i = source.indexOf("\n"); i !== -1; i = source.indexOf("\n", i + 1)) offsets.push(i + 1);
  // What stands before the first block (blank lines, link definitions) belongs to it.
  const at = starts.map((line, index) => (index === 0 ? 0 : offsets[line]));
  return at.map((start, index) => ({ at: start, source: source.slice(start, at[index + 1]) }));
}

export class BlockCutter {
  constructor(md) {
    this.md = md;
    this.reset();
  }

  reset() {
    this.text = "";
    this.closed = []; // sources of the blocks that no later text can change
    this.openAt = 0; // where the open ones begin
    this.references = {}; // link definitions of the closed blocks
    this.fence = null; // the last block while it is an open fence: {mark, head, at: where it begins}
    this.blocks = [];
  }

  /** The blocks of `given`, which usually is the last text and more. `live`: a last line that may become a link's definition
      waits for its end, unless it is code. */
  update(given, live = false) {
    this.restarted = false;
    if (this.fence && given.startsWith(this.text) && this.#growsFence(given)) return this.blocks;
    const text = live ? withoutHalfDefinition(given) : given;
    this.restarted = !text.startsWith(this.text);
    if (this.restarted) this.reset();
    this.text = text;
    // A lone \r at the end may be half of a line break.
    const tail = text.slice(this.openAt).replace(/\r$/, "");
    // Live, a formula is open until its end comes: what looks like other blocks in it cannot close what stands before it.
    const env = { references: { ...this.references }, live };
    const blocks = cut(this.md, tail, env);
    const closing = blocks.slice(0, -OPEN);
    if (closing.length && !tail.includes("\r")) {
      // Offsets into the normalised tail are offsets into the text as long as normalising changed no length.
      const end = blocks[closing.length].at;
      const closedEnv = { references: this.references };
      this.md.block.parse(tail.slice(0, end), this.md, closedEnv, []);
      this.closed.push(...closing.map((block) => block.source));
      this.openAt += end;
      blocks.splice(0, closing.length);
    }
    this.allReferences = env.references;
    const fence = blocks.length && !/[\r\0]/.test(tail) ? openFenceOf(blocks.at(-1).source) : null;
    this.fence = fence && { ...fence, at: this.openAt + blocks.at(-1).at - blocks[0].at };
    this.blocks = [...this.closed, ...blocks.map((block) => block.source)].filter((source) => source.trim());
    return this.blocks;
  }

  #growsFence(text) {
    const line = this.text.lastIndexOf("\n") + 1;
    const added = text.slice(Math.max(line, this.fence.at + this.fence.head.length));
    if (/[\r\0]/.test(added) || closes(added, this.fence.mark)) return false;
    this.text = text;
    this.blocks[this.blocks.length - 1] = text.slice(this.fence.at);
    return true;
  }

  /** The code so far where the last block is an open fence, else null. */
  get code() {
    return this.fence && this.text.slice(this.fence.at + this.fence.head.length);
  }
}
