/* What the server refuses, in the reader's language: programs get English sentences with a code, and where a sentence for
   the code is known here, readers of other languages get that one. In English the server's own says more. */

import { gettext, language } from "#octavo/i18n.js";

/** One answer at a time; said wherever another one is asked for. */
export const beingAnswered = () => gettext("This conversation is being answered; wait for the end or stop it.");

const BY_CODE = {
  conversation_busy: () => beingAnswered(),
  context_too_long: () => gettext("This conversation is longer than the model can read at once. Begin a new chat."),
  context_length_exceeded: () =>
    gettext("This conversation is longer than the model can read at once. Begin a new chat."),
  queue_full: () => gettext("Too many questions of your team are waiting. Try again in a moment."),
  overloaded: () => gettext("The server has as much to do as it can hold. Try again in a moment."),
  no_engine: () => gettext("The engine is not running. Try again in a while."),
  too_many_sockets: () => gettext("Too many pages are open. Close some."),
  rate_limit_exceeded: () => gettext("That was too much within a minute. Try again in a moment."),
  too_many_requests: () => gettext("That was too often. Try again in a moment."),
  insufficient_quota: () => gettext("This month’s tokens are used. Ask an owner or admin of your team."),
  unavailable: () => gettext("The server cannot take this at the moment. Try again."),
  unsent: () => gettext("The server did not answer. Try again."),
  unreachable: () => gettext("The server cannot be reached."),
  closed: () => gettext("The connection has ended. Load the page again."),
  connection_lost: () => gettext("The connection broke, which ends an answer that is kept nowhere. Ask again."),
  lost: () => gettext("The rest of this answer could not be loaded. Reload the page to see what is kept."),
  gap: () => gettext("The rest of this answer could not be had."),
  frame_too_large: () => gettext("This message is too large. Send it in parts, or as a file."),
  file_too_large: () => gettext("The file is too large."),
  storage_full: () => gettext("There is no more room for files of your team. Delete some first."),
  too_large: () => gettext("This is too large."),
  too_long: () => gettext("This is too long."),
  too_many_files: () => gettext("These are too many files for one question."),
  file_not_ready: () => gettext("A file is still being read. Wait a moment."),
  file_unreadable: () => gettext("A file cannot be read. Take it off."),
  unreadable: () => gettext("This answer cannot be read any more. Ask again."),
  unsupported_content_type: () => gettext("Files of this kind are not taken."),
  model_not_found: () => gettext("This model is not served any more. Choose another one."),
  not_allowed: () => gettext("Your role does not include this. Ask an owner or admin."),
  not_found: () => gettext("This does not exist, or you may not see it."),
  unauthenticated: () => gettext("You are logged out. Log in again."),
  redis_restarted: () => gettext("A part of this answer was lost. Ask again."),
  redis_lost_it: () => gettext("This question was lost. Ask again."),
  deadline: () => gettext("This answer took too long and was ended."),
  timeout: () => gettext("This answer took too long and was ended."),
  interrupted: () => gettext("The engine stopped while it answered."),
  engine_died: () => gettext("The engine stopped while it answered."),
  engine_stopped: () => gettext("The engine stopped while it answered."),
  engine_changed: () => gettext("The engine stopped while it answered."),
  engine_error: () => gettext("The engine failed while it answered."),
  engine_fault: () => gettext("The engine failed while it answered."),
  poison: () => gettext("This question stopped the engine several times and was given up. Ask it in another way."),
  failed: () => gettext("The engine failed while it answered."),
  refused: () => gettext("The engine refused this message."),
  internal: () => gettext("Something broke on our side. Try again in a moment."),
  empty: () => gettext("This is empty."),
};

/** An error {code, message} as a sentence; "" where it says nothing. */
export function inWords(error) {
  const known = language().startsWith("en") ? undefined : BY_CODE[error?.code];
  return known?.() ?? error?.message ?? "";
}
