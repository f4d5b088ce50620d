/* Under which heading of the sidebar a conversation stands: starred ones first, then by the day of their last change in
   the reader's zone. Pure. chatapp.chat.views groups the same way for pages whose scripts have not run yet. */

import { gettext, language } from "#octavo/i18n.js";

const known = new WeakMap(); // item -> {at: its updated_at, ms}
let months = { language: "", names: new Map() };

/** When an item was changed last, in ms. */
function changedAt(item) {
  const found = known.get(item);
  if (found?.at === item.updated_at) return found.ms;
  const ms = Date.parse(item.updated_at) || 0;
  known.set(item, { at: item.updated_at, ms });
  return ms;
}

/** The newest first; the list itself where it is in order already. */
export function inOrder(items) {
  for (let at = 1; at < items.length; at++)
    if (changedAt(items[at - 1]) < changedAt(items[at])) return items.toSorted((a, b) => changedAt(b) - changedAt(a));
  return items;
}

/** A function that says for a time in ms what it stands under: {key, name, begin}. Holds until midnight. */
export function dayNames(now = new Date()) {
  const daysAgo = (n) => new Date(now.getFullYear(), now.getMonth(), now.getDate() - n).getTime();
  const recent = [
    { key: "today", name: gettext("Today"), begin: daysAgo(0) },
    { key: "yesterday", name: gettext("Yesterday"), begin: daysAgo(1) },
    { key: "week", name: gettext("Last 7 days"), begin: daysAgo(6) },
    { key: "month", name: gettext("Last 30 days"), begin: daysAgo(29) },
  ];
  return (ms) => recent.find(({ begin }) => ms >= begin) ?? month(new Date(ms), now);
}

function month(date, now) {
  if (months.language !== language()) months = { language: language(), names: new Map() };
  const year = date.getFullYear() === now.getFullYear() ? undefined : "numeric";
  const key = `${date.getFullYear()}-${date.getMonth()}${year ? " long" : ""}`;
  let found = months.names.get(key);
  if (!found) {
    const name = date.toLocaleDateString(language(), { month: "long", year });
    found = { key, name, begin: new Date(date.getFullYear(), date.getMonth()).getTime() };
    months.names.set(key, found);
  }
  return found;
}

/** Runs of items in order that stand under the same day: [{key, name, items}]. */
export function byDay(items, now = new Date(), prefix = "") {
  const name = dayNames(now);
  const groups = [];
  let begin = Infinity;
  for (const item of items) {
    const ms = changedAt(item);
    if (ms < begin) {
      const under = name(ms);
      begin = under.begin;
      groups.push({ key: prefix + under.key, name: under.name, items: [] });
    }
    groups.at(-1).items.push(item);
  }
  return groups;
}

/** [{key, name, items}] of what is neither archived nor deleted. */
export function grouped(items, now = new Date()) {
  const starred = { key: "starred", name: gettext("Starred"), items: [] };
  const others = [];
  for (const item of inOrder(items))
    if (!item.archived_at && !item.deleted_at) (item.starred_at ? starred.items : others).push(item);
  const groups = byDay(others, now);
  return starred.items.length ? [starred, ...groups] : groups;
}

/** How long until the headings change by themselves. */
export function untilMidnight(now = new Date()) {
  return new Date(now.getFullYear(), now.getMonth(), now.getDate() + 1).getTime() - now.getTime();
}
