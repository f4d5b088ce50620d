/* Where links of an answer may lead, and whether they say so. Pure.

   https, http and mailto, written plainly: no control characters, no user name before the host (what reads as one
   address and is another). A link whose text names another host than its own shows the real one. */

// Directions and invisible characters, which make a text read otherwise than it is.
const HIDDEN = /[\u00ad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g;
// eslint-disable-next-line no-control-regex
const UNFIT = /[\u0000-\u0020\u007f-\u00a0\u00ad\u061c\u200b-\u200f\u2028-\u202f\u2060-\u206f\ufeff\\]/;
const HOST = /(?:[\p{L}\p{N}](?:[\p{L}\p{N}-]*[\p{L}\p{N}])?\.)+\p{L}[\p{L}\p{N}-]+/giu;
// Names of files and programs look like hosts too.
const FILES =
  /\.(?:js|mjs|ts|jsx|tsx|py|md|rs|sh|json|html?|css|txt|cpp|c|h|go|java|toml|ya?ml|xml|csv|pdf|png|svg|jpe?g|gif|net|rb|php|sql|conf|cfg|ini|lock|vue|ipynb)$/i;
const LONGEST = 4096;

export const withoutHidden = (text) => text.replace(HIDDEN, "");

/** {href, host} of an address that may be a link, else null. */
export function checkLink(address) {
  if (!address || address.length > LONGEST || UNFIT.test(address)) return null;
  if (!/^(?:https?:\/\/[^/]|mailto:[^/])/i.test(address)) return null;
  let url;
  try {
    url = new URL(address);
  } catch {
    return null;
  }
  if (url.username || url.password) return null;
  if (url.protocol === "mailto:") {
    const to = decode(url.pathname);
    if (!/^[^\s@<>,;]+@[^\s@<>,;]+$/.test(to)) return null;
    // Of what a letter can be given, only what its writer sees at once: no further readers, no files.
    const said = ["subject", "body"]
      .filter((name) => url.searchParams.has(name))
      .map((name) => `${name}=${encodeURIComponent(url.searchParams.get(name))}`);
    return { href: `mailto:${url.pathname}${said.length ? `?${said.join("&")}` : ""}`, host: to };
  }
  if (!["http:", "https:"].includes(url.protocol) || !url.hostname) return null;
  return { href: url.href, host: url.host };
}

function decode(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

const bare = (host) => host.replace(/^www\./, "").replace(/:\d+$/, "").replace(/^.*@/, "").replace(/\.$/, "");

function ascii(host) {
  try {
    return new URL(`https://${host}`).hostname;
  } catch {
    return host.toLowerCase();
  }
}

/** What has to be shown beside a link's text: its host where the text names another or only resembles it, else "". */
export function unsaid({ host }, text) {
  const own = bare(host);
  const said = withoutHidden(text).normalize("NFKC");
  if (own.split(".").some((label) => label.startsWith("xn--"))) return host;
  const address = /:\/\/|^\s*www\./i.test(said);
  const names = (said.match(HOST) ?? []).filter((name) => address || !FILES.test(name));
  if (host.includes("@") && said.includes("@") && !said.toLowerCase().includes(host.toLowerCase())) return host;
  if (address && names.length === 0 && !said.includes(own)) return host;
  return names.some((name, index) => (index === 0 || !address) && bare(ascii(name)) !== own) ? host : "";
}
