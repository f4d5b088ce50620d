/* Tells the server the reader's time zone, by a cookie: pages with days are made there. A page that was made in another
   zone is asked for again, once, unless its address names the zone. */

const COOKIE = "octavo_zone";
const made = document.querySelector("meta[name=octavo-zone]");
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone ?? "";

if (made && /^[\w+/-]{1,64}$/.test(zone) && made.dataset.cookie !== zone) {
  const secure = location.protocol === "https:" ? "; secure" : "";
  document.cookie = `${COOKIE}=${zone}; path=/; max-age=31536000; samesite=lax${secure}`;
  const kept = document.cookie.split("; ").includes(`${COOKIE}=${zone}`);
  if (kept && made.content !== zone && !("given" in made.dataset)) location.reload();
}
