/* What this page asks of the product's HTTP API: JSON there and back, refusals as errors in words. */

import { gettext, language } from "#octavo/i18n.js";
import { inWords } from "#octavo/refusals.js";

const token = () => globalThis.document?.querySelector("[name=csrfmiddlewaretoken]")?.value ?? "";

/** What went wrong, for people: {message, status, code, param}. `reply`: the API's own words, where there are any. */
function problem(status, reply) {
  const error = reply?.error;
  const message = inWords(error) || (status ? gettext("The server could not do this. Try again.") : gettext("No connection to the server. Try again."));
  return Object.assign(new Error(message), { status, code: error?.code ?? "", param: error?.param ?? null });
}

/** The answer's JSON, null where it is empty (204). Throws `problem`, and an AbortError once `signal` says so. */
export async function call(method, path, body, signal) {
  let reply;
  try {
    reply = await fetch(path, {
      method,
      signal,
      redirect: "manual",
      headers: {
        Accept: "application/json",
        "X-Reader-Language": language(), // what is refused is refused in it; programs read English
        ...(method === "GET" ? {} : { "X-CSRFToken": token() }),
        ...(body === undefined ? {} : { "Content-Type": "application/json" }),
      },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw problem(0);
  }
  if (reply.status === 204) return null;
  const told = await reply.json().catch(() => null);
  if (!reply.ok || told === null) throw problem(reply.status, told);
  return told;
}

/** Send a file as a form does; `onProgress(part)` from 0 to 1, and `signal` to stop it. */
export function sendFile(path, file, { onProgress, signal } = {}) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("POST", path);
    request.responseType = "json";
    request.setRequestHeader("X-CSRFToken", token());
    request.setRequestHeader("X-Reader-Language", language());
    request.upload.addEventListener("progress", (event) => event.lengthComputable && onProgress?.(event.loaded / event.total));
    request.addEventListener("load", () =>
      request.status >= 200 && request.status < 300 ? resolve(request.response) : reject(problem(request.status, request.response)),
    );
    for (const name of ["error", "abort"]) request.addEventListener(name, () => reject(problem(0)));
    signal?.addEventListener("abort", () => request.abort());
    const form = new FormData();
    form.append("file", file);
    request.send(form);
  });
}
