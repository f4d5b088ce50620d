"""What an ended generation used, in usage's words: ids, and the names that these have now."""

from __future__ import annotations

from collections.abc import Collection

from chatapp.accounts.models import User
from chatapp.chat.models import Generation
from chatapp.ids import parse_id
from chatapp.prompts.models import PromptVersion
from chatapp.tenants.models import ApiKey
from chatapp.usage.models import Kind
from chatapp.usage.services import Ended


def ended(generation: Generation) -> Ended:
    assert generation.ended_at is not None
    version = None
    if generation.prompt_version_id:
        version = PromptVersion.objects.select_related("prompt").filter(pk=generation.prompt_version_id).first()
    return Ended(
        tenant_id=generation.tenant_id,
        generation_id=generation.pk,
        at=generation.created_at,
        ended_at=generation.ended_at,
        kind=kind(generation),
        principal=generation.principal,
        principal_name=name(generation.principal),
        model=generation.model,
        state=generation.state,
        assistant_id=str(version.prompt_id) if version else "",
        assistant_name=version.prompt.name if version else "",
        prompt_version_id=str(version.pk) if version else "",
        finish_reason=generation.finish_reason,
        error_code=generation.error_code,
        prompt_tokens=generation.prompt_tokens,
        cached_tokens=generation.cached_tokens,
        output_tokens=generation.completion_tokens,
        timing=generation.timing,
    )


def kind(generation: Generation) -> Kind:
    """Chat is what a person says in a conversation; everything by a key, and every stateless call, is the API's."""
    person = generation.principal.startswith("user:")
    return Kind.CHAT if person and generation.conversation_id else Kind.API


def name(principal: str) -> str:
    """What people call a principal; empty where it is gone."""
    who, _, key = principal.partition(":")
    if who == "key":
        return ApiKey.objects.filter(pk=parse_id(key)).values_list("name", flat=True).first() or ""
    return User.objects.filter(pk=parse_id(key)).values_list("email", flat=True).first() or ""


def names(principals: Collection[str]) -> dict[str, str]:
    """As `name`, of any number of them in two reads."""
    ids = {principal: parse_id(principal.partition(":")[2]) for principal in principals}
    people = {key for principal, key in ids.items() if principal.startswith("user:")}
    keys = {key for principal, key in ids.items() if principal.startswith("key:")}
    called = dict(User.objects.filter(pk__in=people).values_list("pk", "email")) if people else {}
    called |= dict(ApiKey.objects.filter(pk__in=keys).values_list("pk", "name")) if keys else {}
    return {principal: called.get(key, "") for principal, key in ids.items()}
