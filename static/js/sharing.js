/* Links to conversations for the team: making one, and the list of one's own. */

import { call } from "#octavo/calls.js";
import { openDialog } from "#octavo/dialog.js";
import { copy, h, icon } from "#octavo/dom.js";
import { exactTime, relativeTime } from "#octavo/format.js";
import { fill, gettext } from "#octavo/i18n.js";
import { toast } from "#octavo/toast.js";

const absolute = (url) => new URL(url, location.href).href;
const notice = (error) => h("div", { class: "notice bad", role: "alert" }, icon("circle-alert"), h("span", { class: "notice-text", text: error.message }));

/** `leaf`: the id of the last message that is shown, null for the newest branch. */
export function openShare(workspace, item, leaf) {
  const { page, session } = workspace;
  const days = h(
    "select",
    { id: "share-days" },
    ...[
      ["", gettext("until I revoke it")],
      ["1", gettext("one day")],
      ["7", gettext("seven days")],
      ["30", gettext("thirty days")],
    ].map(([value, text]) => h("option", { value, text })),
  );
  const make = h("button", { type: "button", class: "button primary" }, icon("share-2"), gettext("Create the link"));
  const list = h("button", { type: "button", class: "button", text: gettext("Shared by you") });
  const place = h("div", { class: "stack" });
  const dialog = openDialog({
    title: fill(gettext("Share “%(title)s”"), { title: item.title || gettext("Untitled") }),
    body: [
      h("p", {
        text: fill(
          gettext(
            "Everybody in %(team)s who has the link reads this conversation as it is now, with your name. What you write later is not in it, and files are named, not included.",
          ),
          { team: page.tenant.name },
        ),
      }),
      h("p", {
        class: "quiet",
        text: gettext("The link ends when you revoke it, delete the conversation, leave the team or close your account. Owners and admins can revoke it, too."),
      }),
      h("div", { class: "field" }, h("label", { for: "share-days", text: gettext("The link holds") }), days),
      place,
    ],
    actions: [list, make],
    className: "share-dialog",
  });
  list.addEventListener("click", () => {
    dialog.close();
    openShares(workspace);
  });
  make.addEventListener("click", async () => {
    if (make.disabled) return;
    make.disabled = true;
    try {
      const wish = { leaf_id: leaf, days: days.value ? Number(days.value) : null };
      const made = await call("POST", `${session.api}/conversations/${item.id}/shares`, wish);
      days.closest(".field").remove();
      make.remove();
      const field = linkField(made);
      place.replaceChildren(...field);
      field[1].querySelector("button").focus();
    } catch (error) {
      place.replaceChildren(notice(error));
      make.disabled = false;
    }
  });
}

function linkField(made) {
  const url = absolute(made.url);
  const input = h("input", { type: "text", readonly: true, id: "share-link", value: url });
  input.addEventListener("focus", () => input.select());
  return [
    h("label", { for: "share-link", text: gettext("The link") }),
    h(
      "div",
      { class: "share-link" },
      input,
      h("button", { type: "button", class: "button", onclick: () => copied(url) }, icon("copy"), gettext("Copy")),
      h("a", { class: "button", href: made.url, target: "_blank", rel: "noopener" }, gettext("Open")),
    ),
  ];
}

async function copied(url) {
  try {
    await copy(url);
    toast(gettext("The link is copied."));
  } catch {
    toast(gettext("Select the link and copy it."));
  }
}

// --- the list ---------------------------------------------------------------------------------------------------------

export async function openShares(workspace) {
  const { session } = workspace;
  const list = h("ul", { class: "shares" });
  const more = h("button", { type: "button", class: "button small", hidden: true, text: gettext("Show more") });
  const place = h("div", {}, h("p", { class: "quiet", text: gettext("Loading…") }));
  openDialog({ title: gettext("Shared by you"), body: [place, list, more], className: "share-dialog" });
  let next = "";
  const load = async () => {
    more.disabled = true;
    try {
      const page = await call("GET", `${session.api}/shares?limit=50${next ? `&cursor=${encodeURIComponent(next)}` : ""}`);
      next = page.next ?? "";
      list.append(...page.items.map((share) => row(session, share, said)));
      more.hidden = !next;
      said();
    } catch (error) {
      place.replaceChildren(
        notice(error),
        h("button", { type: "button", class: "button small", text: gettext("Try again"), onclick: load }),
      );
    }
    more.disabled = false;
  };
  const said = () => {
    const text = list.childElementCount
      ? gettext("Everybody in the team who has one of these links can read it.")
      : gettext("You share no conversation. Open the menu of one and choose “Share with the team”: whoever gets the link reads it as it was then.");
    place.replaceChildren(h("p", { class: "quiet", text }));
  };
  more.addEventListener("click", load);
  await load();
}

function row(session, share, onGone) {
  const revoke = h("button", { type: "button", class: "button small", text: gettext("Revoke") });
  const state = h("span", { role: "status", class: "quiet" });
  const element = h(
    "li",
    {},
    h(
      "div",
      {},
      h("a", { href: share.url, target: "_blank", rel: "noopener", dir: "auto", text: share.title || gettext("Untitled") }),
      h("p", { class: "quiet" }, ...times(share)),
      state,
    ),
    h(
      "div",
      { class: "actions" },
      h("button", { type: "button", class: "button small", text: gettext("Copy link"), onclick: () => copied(absolute(share.url)) }),
      revoke,
    ),
  );
  let armed = false;
  revoke.addEventListener("blur", () => {
    armed = false;
    revoke.textContent = gettext("Revoke");
    revoke.classList.remove("danger");
  });
  revoke.addEventListener("click", async () => {
    // Nobody gets a revoked link back: it is said twice.
    if (!armed) {
      armed = true;
      revoke.textContent = gettext("Revoke for good");
      revoke.classList.add("danger");
      return;
    }
    revoke.disabled = true;
    try {
      await call("DELETE", `${session.api}/shares/${share.id}`);
    } catch (error) {
      if (error.status !== 404) {
        state.textContent = error.message;
        revoke.disabled = false;
        return;
      }
    }
    const neighbour = element.nextElementSibling ?? element.previousElementSibling;
    element.remove();
    neighbour?.querySelector("button")?.focus();
    onGone();
    toast(gettext("The link is revoked. Nobody can read it any more."));
  });
  return element;
}

function times(share) {
  const time = (at) => h("time", { datetime: at, title: exactTime(at), text: relativeTime(at) });
  const words = share.expires_at ? [" · ", gettext("ends"), " ", exactTime(share.expires_at)] : [];
  return [time(share.created_at), ...words];
}
