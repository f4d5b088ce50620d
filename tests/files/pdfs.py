"""Small PDFs, written by hand, well made and badly."""

from __future__ import annotations

import io
import zlib


def pdf(*pages: str, streams: list[bytes] | None = None, extra: str = "") -> bytes:
    """A page for each text, a line of it each. `streams`: contents of pages as they are, in place of texts."""
    contents = streams if streams is not None else [_stream(_operators(text)) for text in pages]
    objects: list[bytes] = []
    kids = " ".join(f"{3 + 2 * number} 0 R" for number in range(len(contents)))
    objects.append(b"<< /Type /Catalog /Pages 2 0 R >>")
    objects.append(f"<< /Type /Pages /Kids [{kids}] /Count {len(contents)} >>".encode())
    font = "<< /F1 << /Type /Font /Subtype /Type1 /BaseFont /Helvetica /Encoding /WinAnsiEncoding >> >>"
    for number, content in enumerate(contents):
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 595 842] /Resources << /Font {font} >>"
            f" /Contents {4 + 2 * number} 0 R >>".encode()
        )
        objects.append(content)
    out = io.BytesIO(b"")
    out.write(b"%PDF-1.7\n")
    places = []
    for number, body in enumerate(objects, start=1):
        places.append(out.tell())
        out.write(b"%d 0 obj\n%s\nendobj\n" % (number, body))
    table = out.tell()
    out.write(b"xref\n0 %d\n0000000000 65535 f \n" % (len(objects) + 1))
    for place in places:
        out.write(b"%010d 00000 n \n" % place)
    out.write(
        b"trailer\n<< /Size %d /Root 1 0 R %s >>\nstartxref\n%d\n%%%%EOF\n" % (len(objects) + 1, extra.encode(), table)
    )
    return out.getvalue()


def _operators(text: str) -> bytes:
    lines = []
    for line in text.splitlines():
        plain = line.encode("cp1252").replace(b"\\", b"\\\\").replace(b"(", b"\\(").replace(b")", b"\\)")
        lines.append(b"(%s) Tj T*" % plain)
    return b"BT /F1 12 Tf 14 TL 50 800 Td\n" + b"\n".join(lines) + b"\nET"


def _stream(content: bytes, filters: str = "", packed: bytes | None = None) -> bytes:
    data = content if packed is None else packed
    return b"<< /Length %d %s >>\nstream\n%s\nendstream" % (len(data), filters.encode(), data)


def bomb(mb: int = 512) -> bytes:
    """A page of so many megabytes of spaces, packed twice: some kilobytes."""
    packer = zlib.compressobj(9)
    once = b"".join([*(packer.compress(b" " * (1 << 20)) for _ in range(mb)), packer.flush()])
    twice = zlib.compress(once, 9)
    stream = _stream(b"", "/Filter [/FlateDecode /FlateDecode]", twice)
    return pdf(streams=[stream])


def nested(depth: int = 200_000) -> bytes:
    """Arrays within arrays."""
    return pdf("deep").replace(b"/Type /Catalog", b"/Type /Catalog /Deep " + b"[" * depth + b"]" * depth)


def circular() -> bytes:
    """A tree of pages whose branch is the tree itself."""
    return pdf("round").replace(b"/Kids [3 0 R]", b"/Kids [2 0 R]")


def pictures() -> bytes:
    """A page that draws and says nothing."""
    return pdf(streams=[_stream(b"1 0 0 rg 50 50 200 200 re f")])


def encrypted(password: str, text: str = "A secret") -> bytes:
    from pypdf import PdfReader, PdfWriter

    writer = PdfWriter(clone_from=PdfReader(io.BytesIO(pdf(text))))
    writer.encrypt(user_password=password, owner_password="owner", algorithm="RC4-128")
    out = io.BytesIO()
    writer.write(out)
    return out.getvalue()
