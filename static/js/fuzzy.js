/* How well a text fits what somebody types, and which of its letters are meant. Pure.

   Every word of the query has to be found: at best as it stands and where a word begins, at worst as letters in their
   order. Case and accents do not count. */

const MARKS = /\p{M}+/gu;
const LETTER = /[\p{L}\p{N}]/u;

/** The characters of a text without case and accents, and where in the text each stands. */
function folded(text) {
  const letters = [];
  const at = [];
  let place = 0;
  for (const character of text) {
    for (const part of character.normalize("NFKD").replace(MARKS, "").toLowerCase()) {
      letters.push(part);
      at.push([place, place + character.length]);
    }
    place += character.length;
  }
  return { letters, at };
}

const begins = (letters, place) => place === 0 || !LETTER.test(letters[place - 1]);

/** The best place of a word: {score, places}, or null. */
function find(word, letters) {
  let best = null;
  const better = (score, places) => {
    if (!best || score > best.score) best = { score, places };
  };
  for (let from = 0; from <= letters.length - word.length; from += 1) {
    if (letters[from] !== word[0]) continue;
    if (word.every((letter, offset) => letters[from + offset] === letter))
      better((begins(letters, from) ? 200 : 120) - Math.min(from, 60), word.map((_, offset) => from + offset));
  }
  if (best || word.length < 2) return best;
  for (let from = 0; from < letters.length; from += 1) {
    if (letters[from] !== word[0] || !begins(letters, from)) continue;
    const places = inOrder(word, letters, from);
    if (!places) break;
    const gaps = places.at(-1) - places[0] + 1 - word.length;
    // Letters that are far from each other are found in nearly every long text.
    if (gaps <= word.length * 6) better(80 - gaps - Math.min(from, 30), places);
  }
  return best;
}

/** Letters in their order from a place on; those that begin a word first, since people type beginnings. */
function inOrder(word, letters, from) {
  const places = [from];
  for (const letter of word.slice(1)) {
    const after = places.at(-1) + 1;
    let next = letters[after] === letter ? after : -1;
    for (let place = after; next < 0 && place < letters.length; place += 1)
      if (letters[place] === letter && begins(letters, place)) next = place;
    if (next < 0) next = letters.indexOf(letter, after);
    if (next < 0) return null;
    places.push(next);
  }
  return places;
}

/** `{score, marks}` with marks as [from, to] of the text, in order and apart; null where it does not fit. */
export function fuzzy(query, text) {
  const { letters, at } = folded(text);
  let score = 0;
  const marked = new Set();
  for (const word of query.split(/\s+/u).filter(Boolean)) {
    const found = find(folded(word).letters, letters);
    if (!found) return null;
    score += found.score;
    for (const place of found.places) marked.add(place);
  }
  const marks = [];
  for (const place of [...marked].sort((one, other) => one - other)) {
    const [from, to] = at[place];
    const last = marks.at(-1);
    if (last && from <= last[1]) last[1] = Math.max(last[1], to);
    else marks.push([from, to]);
  }
  return { score: score - Math.min(letters.length, 100) / 100, marks };
}
