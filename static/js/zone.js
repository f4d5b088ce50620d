/* A page with days is made in the zone that the cookie names (admin.js keeps it). One that was made in another zone than
   the reader's, as the first of all is, is asked for again, once, unless its address names the zone. */

const made = document.querySelector("meta[name=octavo-zone]");
const zone = Intl.DateTimeFormat().resolvedOptions().timeZone ?? "";
const kept = document.cookie.split("; ").includes(`zone=${zone}`);

if (made && zone && kept && made.dataset.cookie !== zone && made.content !== zone && !("given" in made.dataset)) {
  location.reload();
}
