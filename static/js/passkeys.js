/* Passkeys: forms whose answer comes from the browser's own dialog.
   `<form data-passkey="create|get">` has a hidden input named credential, and in `data-options` the id of a JSON script
   with what the server asks for; without it the options are fetched from the form's action. Failures are said in the
   form's [data-passkey-error]. Binary fields travel as base64url without padding, as the server reads them. */

// As i18n.js has it; these pages load no module that imports others, and so no import map.
const gettext = (text) => globalThis.gettext?.(text) ?? text;

const toBytes = (text) =>
  Uint8Array.from(atob(text.replace(/-/g, "+").replace(/_/g, "/")), (character) => character.charCodeAt(0));

const toText = (buffer) =>
  btoa(String.fromCharCode(...new Uint8Array(buffer))).replace(/\+/g, "-").replace(/\//g, "_").replace(/=+$/, "");

const described = (list) => list?.map((entry) => ({ ...entry, id: toBytes(entry.id) }));

function creation({ publicKey }) {
  const selection = { ...publicKey.authenticatorSelection, residentKey: "required", requireResidentKey: true };
  return {
    publicKey: {
      ...publicKey,
      challenge: toBytes(publicKey.challenge),
      user: { ...publicKey.user, id: toBytes(publicKey.user.id) },
      excludeCredentials: described(publicKey.excludeCredentials),
      authenticatorSelection: { ...selection, userVerification: "required" },
    },
  };
}

function request({ publicKey }) {
  return {
    publicKey: {
      ...publicKey,
      challenge: toBytes(publicKey.challenge),
      allowCredentials: described(publicKey.allowCredentials),
    },
  };
}

function asJson(credential) {
  const { response } = credential;
  const parts = { clientDataJSON: toText(response.clientDataJSON) };
  for (const name of ["attestationObject", "authenticatorData", "signature", "userHandle"]) {
    if (response[name]) parts[name] = toText(response[name]);
  }
  if (response.getTransports) parts.transports = response.getTransports();
  return {
    type: credential.type,
    id: credential.id,
    rawId: toText(credential.rawId),
    authenticatorAttachment: credential.authenticatorAttachment,
    clientExtensionResults: credential.getClientExtensionResults(),
    response: parts,
  };
}

async function optionsOf(form) {
  const { options } = form.dataset;
  if (options) return JSON.parse(document.getElementById(options).textContent);
  const reply = await fetch(form.action, { headers: { Accept: "application/json" } });
  if (reply.status === 429) throw new Error(gettext("That was too often. Wait a minute, then try again."));
  if (!reply.ok) throw new Error(gettext("The server did not answer. Try again."));
  return reply.json();
}

function inWords(error) {
  if (error.name === "NotAllowedError" || error.name === "AbortError") {
    return gettext("No passkey was used: it was cancelled, took too long, or none of yours fits.");
  }
  if (error.name === "InvalidStateError") return gettext("This device has a passkey for your account already.");
  if (error.name === "SecurityError") return gettext("Browsers allow no passkeys at %(host)s.").replace("%(host)s", location.host);
  return error.message;
}

async function run(form) {
  const problem = form.querySelector("[data-passkey-error]");
  problem.hidden = true;
  try {
    if (!window.PublicKeyCredential) throw new Error(gettext("This browser knows no passkeys, or the page came without TLS."));
    const options = await optionsOf(form);
    const credential =
      form.dataset.passkey === "create"
        ? await navigator.credentials.create(creation(options.creation_options))
        : await navigator.credentials.get(request(options.request_options));
    form.elements.credential.value = JSON.stringify(asJson(credential));
    form.submit();
  } catch (error) {
    problem.textContent = inWords(error);
    problem.hidden = false;
  }
}

for (const form of document.querySelectorAll("form[data-passkey]")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    run(form);
  });
}
