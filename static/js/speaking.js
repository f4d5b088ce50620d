/* Whether screen readers hear answers while they come; kept per browser. Nobody else notices. */

import { onUnlessOff } from "#octavo/settings.js";

export const speaking = onUnlessOff("octavo:speak");
