/* How a chat is answered: the model, how freely it picks its words, how long its answers may be. A feature of chat.js.

   What is chosen is kept with the conversation (chatapp/chat/choices.py), for a new one with its first question; what
   holds where nothing is chosen, and the bounds, are in the page's data. */

import { call } from "#octavo/calls.js";
import { commands } from "#octavo/commands.js";
import { openDialog } from "#octavo/dialog.js";
import { h, icon } from "#octavo/dom.js";
import { count, decimal } from "#octavo/format.js";
import { fill, gettext, ngettext } from "#octavo/i18n.js";
import { toast } from "#octavo/toast.js";

/** What differs from what holds anyway: {name: value}. `values` are texts as fields have them. */
export function chosenOf(values, bounds) {
  const chosen = {};
  for (const [name, text] of Object.entries(values)) {
    const words = text.trim();
    if (words === "") continue;
    if (name === "stop") chosen.stop = text.split("\n").filter((line) => line !== "");
    else if (Number(words) !== bounds[name]?.default) chosen[name] = Number(words);
  }
  return chosen;
}

export function install(workspace) {
  const { page, session } = workspace;
  const { models, model: standing, params: bounds } = page.choices;
  const button = document.getElementById("choices");

  commands.add({ id: "choices", title: gettext("Choose how this chat is answered"), icon: "sliders-horizontal", run: open });
  button.addEventListener("click", open);
  workspace.on("shown", show);
  workspace.on("changed", (change) => change.kind === "accepted" && show(workspace.current));

  function show(conversation) {
    const n = Object.keys(conversation.params ?? {}).length;
    const model = conversation.model ?? standing;
    const name = models.length > 1 ? model : "";
    button.querySelector(".name").textContent = name;
    button.classList.toggle("chosen", n > 0);
    const said = n ? fill(ngettext("%(n)s choice of yours", "%(n)s choices of yours", n), { n: count(n) }) : "";
    button.title = [gettext("How this chat is answered"), name, said].filter(Boolean).join(" · ");
    button.setAttribute("aria-label", button.title);
  }

  function open() {
    const conversation = workspace.current;
    if (!session.has(conversation)) return; // what it has chosen is on its way
    const params = conversation.params ?? {};
    const more = ["top_p", "presence_penalty", "frequency_penalty", "seed", "stop"];
    const fields = {
      temperature: slider("temperature", params, 0.1, gettext("Temperature"), gettext("Low: the likeliest words. High: more varied ones.")),
      max_tokens: line("max_tokens", params, gettext("Longest answer, in tokens"), {
        type: "number",
        min: bounds.max_tokens.least,
        max: bounds.max_tokens.most,
        placeholder: bounds.max_tokens.default,
        help: fill(gettext("%(n)s unless you say otherwise; at most %(most)s here."), {
          n: count(bounds.max_tokens.default),
          most: count(bounds.max_tokens.most),
        }),
      }),
      top_p: slider("top_p", params, 0.05, gettext("Top-p"), gettext("Only the likeliest words that add up to this share.")),
      presence_penalty: slider("presence_penalty", params, 0.1, gettext("Presence penalty"), gettext("Above 0: words that were said come less easily again.")),
      frequency_penalty: slider("frequency_penalty", params, 0.1, gettext("Frequency penalty"), gettext("Above 0: the more often a word was said, the less easily it comes.")),
      seed: line("seed", params, gettext("Seed"), {
        type: "text",
        inputmode: "numeric",
        pattern: "-?[0-9]+",
        help: gettext("A whole number makes the same question answered the same way. Empty: a new one each time."),
      }),
      stop: line("stop", params, gettext("Stop at"), {
        rows: 2,
        help: gettext("The answer ends before the first of these texts, one on each line."),
      }),
    };
    const models_ = models.length > 1 ? modelField(conversation) : null;
    const problem = h("p", { class: "notice bad", role: "alert", hidden: true });
    const form = h(
      "form",
      { class: "choices" },
      models_?.element ?? null,
      fields.temperature.element,
      fields.max_tokens.element,
      h(
        "details",
        { open: more.some((name) => name in params) },
        h("summary", { text: gettext("More") }),
        ...more.map((name) => fields[name].element),
      ),
      problem,
    );
    const save = h("button", { type: "submit", class: "button primary", form: "choices-form" }, gettext("Use these"));
    const reset = h("button", { type: "button", class: "button" }, gettext("Back to the defaults"));
    form.id = "choices-form";
    const dialog = openDialog({
      title: gettext("How this chat is answered"),
      body: [h("p", { class: "quiet", text: gettext("This holds for this chat only, from the next answer on.") }), form],
      actions: [reset, save],
    });
    reset.addEventListener("click", () => {
      for (const field of Object.values(fields)) field.reset();
      models_?.reset();
    });
    form.addEventListener("submit", async (event) => {
      event.preventDefault();
      const values = Object.fromEntries(Object.entries(fields).map(([name, field]) => [name, field.value]));
      const chosen = chosenOf(values, bounds);
      save.disabled = true;
      try {
        await keep(conversation, chosen, models_?.value);
        dialog.close();
        show(conversation);
        toast(gettext("The next answer of this chat is given that way."));
      } catch (error) {
        problem.textContent = error.message;
        problem.hidden = false;
        fields[error.param]?.focus();
      } finally {
        save.disabled = false;
      }
    });
  }

  async function keep(conversation, params, model) {
    const wanted = { params, ...(model && model !== (conversation.model ?? standing) ? { model } : {}) };
    if (conversation.id) await call("PATCH", `${session.api}/conversations/${conversation.id}`, wanted);
    Object.assign(conversation, wanted);
  }

  // --- fields ---

  function modelField(conversation) {
    const select = h(
      "select",
      { id: "choice-model", name: "model" },
      ...models.map((name) => h("option", { value: name, text: name })),
    );
    select.value = conversation.model ?? standing;
    return {
      element: h("div", { class: "field" }, h("label", { for: select.id, text: gettext("Model") }), select),
      reset: () => (select.value = standing),
      get value() {
        return select.value;
      },
    };
  }

  function slider(name, params, step, label, help) {
    const { least, most, default: usual } = bounds[name];
    const id = `choice-${name}`;
    const input = h("input", { type: "range", id, min: least, max: most, step, "aria-describedby": `${id}-help` });
    const said = h("output", { for: id });
    const tell = () => {
      const value = decimal(Number(input.value), 2, 0);
      said.textContent = Number(input.value) === usual ? fill(gettext("%(value)s, the default"), { value }) : value;
      input.setAttribute("aria-valuetext", said.textContent);
    };
    const put = (value) => {
      input.value = value;
      tell();
    };
    input.addEventListener("input", tell);
    put(params[name] ?? usual);
    return {
      element: h(
        "div",
        { class: "field" },
        h("span", { class: "said" }, h("label", { for: id, text: label }), said),
        input,
        h("p", { class: "help", id: `${id}-help`, text: help }),
      ),
      reset: () => put(usual),
      focus: () => input.focus(),
      get value() {
        return input.value;
      },
    };
  }

  function line(name, params, label, { rows = null, help, ...attributes }) {
    const id = `choice-${name}`;
    const input = h(rows ? "textarea" : "input", { id, rows, "aria-describedby": `${id}-help`, ...attributes });
    const kept = params[name];
    input.value = Array.isArray(kept) ? kept.join("\n") : (kept ?? "");
    return {
      element: h(
        "div",
        { class: "field" },
        h("label", { for: id, text: label }),
        input,
        h("p", { class: "help", id: `${id}-help`, text: help }),
      ),
      reset: () => (input.value = ""),
      focus: () => input.focus(),
      get value() {
        return input.value;
      },
    };
  }
}
