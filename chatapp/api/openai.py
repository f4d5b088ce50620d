"""What the OpenAI-compatible API does not serve: said clearly, as a 404, which OpenAI's clients do not try again."""

from __future__ import annotations

from django.http import HttpRequest, HttpResponse

from chatapp.api.http import error, with_key
from chatapp.tenants.access import Access

# The beginning of an address below /v1 -> what is said of it.
UNSERVED = {
    "embeddings": "Embeddings",
    "audio": "Audio files",
    "images": "Images",
    "videos": "Videos",
    "moderations": "Moderations",
    "fine_tuning": "Fine-tuning jobs",
    "fine-tunes": "Fine-tuning jobs",
    "assistants": "OpenAI's Assistants",
    "threads": "OpenAI's threads",
    "vector_stores": "Vector stores",
    "uploads": "Uploads in parts",
    "realtime": "Realtime sessions",
    "evals": "Evals",
    "graders": "Graders",
    "containers": "Containers",
    "conversations": "OpenAI's conversations",
    "organization": "OpenAI's administrative addresses",
    "edits": "Edits",
    "engines": "Engines",
    "rerank": "Rerankings",
    "score": "Scores",
}
SERVED = (
    "Served are /v1/chat/completions, /v1/completions, /v1/responses, /v1/batches, /v1/files and /v1/models; "
    "see /v1/openapi.json."
)


@with_key("GET", "POST", "PUT", "PATCH", "DELETE")
async def unknown(request: HttpRequest, access: Access, rest: str = "") -> HttpResponse:
    head = rest.partition("/")[0]
    if head in UNSERVED:
        return error(404, f"{UNSERVED[head]} are not served here. {SERVED}", code="unsupported_endpoint")
    if rest.startswith("chat/completions/"):
        return error(404, f"Answers are not kept here to be asked for again. {SERVED}", code="unsupported_endpoint")
    return error(404, f"There is nothing at {request.path[:200]}. {SERVED}", code="unknown_url")
