"""The text of a PDF, in a process of its own: PDF on standard input, JSON lines on standard output.

    {"pages": 12}        first, as soon as that is known
    {"text": "…"}        a page each
    {"end": "done"}      last: done | encrypted | pages | broken | memory

A file that somebody made to do harm must not take anything with it: this process has limits of its own (memory,
processor time, no files to write), no environment, no settings, no database, and is killed when it takes too long or
says too much (chatapp.files.pdf). Nothing of a PDF is executed: only its text is read. Run it by its path; it imports
nothing of ours.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import sys
import warnings
from typing import Any

MB = 1024 * 1024
MEMORY = 768 * MB
CPU_S = 30
FILES = 32
# The largest stream of a PDF once it is unpacked: a page's text is a small part of that.
STREAM = 24 * MB


def say(**line: Any) -> None:
    sys.stdout.write(json.dumps(line, ensure_ascii=True) + "\n")
    sys.stdout.flush()


def bind() -> None:
    """Limits that hold from here on, and that cannot be lifted again."""
    for what, most in (
        (resource.RLIMIT_AS, MEMORY),
        (resource.RLIMIT_CPU, CPU_S),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        with contextlib.suppress(ValueError, OSError):  # somebody set a lower one already
            resource.setrlimit(what, (most, most))
    with contextlib.suppress(OSError):
        os.nice(10)


def read(most_pages: int) -> str:
    from pypdf import PdfReader, overwrite_configuration
    from pypdf.errors import FileNotDecryptedError, LimitReachedError

    overwrite_configuration(
        maximum_declared_stream_length=STREAM,
        array_based_stream_maximum_output_length=STREAM,
        lzw_maximum_output_length=STREAM,
        run_length_maximum_output_length=STREAM,
        zlib_maximum_output_length=STREAM,
        brotli_maximum_output_length=STREAM,
        stream_decoding_work_maximum_length=4 * STREAM,
        jbig2dec_binary=None,  # no other program is started
    )
    try:
        reader = PdfReader(sys.stdin.buffer)
        # Many are encrypted against changes only, and open without a password.
        if reader.is_encrypted and not reader.decrypt(""):
            return "encrypted"
        count = len(reader.pages)
    except FileNotDecryptedError:
        return "encrypted"
    say(pages=count)
    if count > most_pages:
        return "pages"
    found, trouble = False, "done"
    for page in reader.pages:
        try:
            text = page.extract_text()
        except LimitReachedError:
            text, trouble = "", "memory"
        except MemoryError:
            raise
        except Exception:  # one page that is broken does not make the others unreadable
            text, trouble = "", "broken"
        found = found or bool(text.strip())
        say(text=text.encode("utf-8", "replace").decode())
    return "done" if found else trouble


def main() -> None:
    most_pages = int(sys.argv[1])
    bind()
    warnings.simplefilter("ignore")
    try:
        end = read(most_pages)
    except MemoryError:
        end = "memory"
    except (Exception, RecursionError):
        end = "broken"
    say(end=end)


if __name__ == "__main__":
    main()
