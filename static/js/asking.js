/* Asks how something goes at the server, later each time, until it is over. Pure: knows neither page nor address. */

const FIRST_MS = 250;
const LONGEST_MS = 3000;
const LONGEST_IN_VAIN_MS = 30_000;
// A server that is started anew is back long before.
const TRIES = 8;

const sleep = (ms) => new Promise((done) => setTimeout(done, ms));
// It cannot say now, and may later. Every other refusal stays one.
const isPassing = (status) => status >= 500 || status === 429 || status === 408;

/** `ask()` promises what there is to know, or throws an error with its `status`, 0 without a connection; `isOver(answer)`;
    `unwanted()`: nobody waits for it any more. Throws what ends it: a refusal at once, what may pass after some times in
    a row. Without a connection it goes on asking: that is the page's trouble, and it says so. */
export async function askUntil({ ask, isOver, unwanted = () => false, pause = sleep }) {
  let wait = FIRST_MS;
  let inVain = 0;
  while (!unwanted()) {
    let answer;
    try {
      answer = await ask();
      if (inVain) wait = FIRST_MS;
      inVain = 0;
    } catch (error) {
      if (error.status && !(isPassing(error.status) && (inVain += 1) < TRIES)) throw error;
    }
    if (answer !== undefined && isOver(answer)) return;
    await pause(wait);
    wait = Math.min(wait * (inVain ? 2 : 1.5), inVain ? LONGEST_IN_VAIN_MS : LONGEST_MS);
  }
}
