"""What an exported conversation is called as a file: from its title, in any script, on any system."""

from __future__ import annotations

import re
import unicodedata

from chatapp.files.names import shown

# Windows takes none of these in a name, and none of the devices' names as one.
FORBIDDEN = re.compile(r'[\\/:*?"<>|\x00-\x1f\x7f]+')
DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])", re.IGNORECASE)
# A name has 255 bytes on most systems; an ending and a number have to fit as well.
LONGEST_BYTES = 180
UNNAMED = "chat"


def file_name(title: str, ending: str) -> str:
    """`ending` without its dot. Never empty, never hidden, never a path."""
    words = shown(FORBIDDEN.sub(" ", unicodedata.normalize("NFC", title).replace("…", " ")))
    words = words.encode()[:LONGEST_BYTES].decode("utf-8", "ignore").strip(" .")
    if not words or (words == "file" and title.strip().lower() != "file"):
        words = UNNAMED
    if DEVICES.fullmatch(words.partition(".")[0].strip()):
        words = f"{UNNAMED} {words}"
    return f"{words}.{ending}"
