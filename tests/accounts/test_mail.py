"""What goes by mail: confirming an address, changing it, a new password; and what is offered where no mail goes out."""

from __future__ import annotations

import re
from typing import Any

import pytest
from allauth.account.models import EmailAddress
from django.core import mail
from django.test import Client

from chatapp.accounts.models import User
from chatapp.audit.models import AuditEntry
from tests.accounts.conftest import PASSWORD, log_in, logged_in, page_text, person

pytestmark = pytest.mark.django_db
NEW = "quite another password"


def link_in(body: str) -> str:
    found = re.search(r"http://\S+?(/accounts/\S+)", body)
    assert found, body
    return found[1]


def last_mail(subject: str) -> Any:
    message = next(m for m in reversed(mail.outbox) if m.subject == subject)
    assert "{" not in message.body
    assert message.from_email
    return message


def choose(client: Client, link: str, password: str = NEW) -> Any:
    reply = client.get(link)
    if reply.status_code == 200:
        return reply
    return client.post(reply["Location"], {"password1": password, "password2": password})


def test_a_forgotten_password_is_chosen_anew_by_a_link_that_works_once() -> None:
    user = person()
    there = logged_in(user)
    Client().post("/accounts/password/reset/", {"email": user.email})
    link = link_in(last_mail("Choose a new password").body)
    assert choose(Client(), link).status_code == 302
    assert log_in(user.email, NEW, client=Client()).status_code == 302
    assert log_in(user.email, PASSWORD, client=Client()).status_code == 400
    assert there.get("/accounts/").status_code == 302, "whoever was in with the old one is out"
    assert "This link no longer works" in page_text(choose(Client(), link))
    assert last_mail("Your password was changed").to == [user.email]
    assert AuditEntry.objects.filter(action="account.password_reset", actor_name=user.email).exists()


def test_a_new_password_is_no_way_around_the_second_factor() -> None:
    from tests.accounts.conftest import activate_app

    user = person()
    activate_app(logged_in(user))
    Client().post("/accounts/password/reset/", {"email": user.email})
    client = Client()
    choose(client, link_in(last_mail("Choose a new password").body))
    assert "_auth_user_id" not in client.session
    assert log_in(user.email, NEW, client=client)["Location"].startswith("/accounts/2fa/authenticate/")


def test_a_weak_password_is_refused_with_the_reason() -> None:
    user = person()
    Client().post("/accounts/password/reset/", {"email": user.email})
    link = link_in(last_mail("Choose a new password").body)
    for password, words in (("short", "at least 10 characters"), ("1234567890", "too common"), (user.email, "similar")):
        assert words in page_text(choose(Client(), link, password)), password
    assert choose(Client(), link).status_code == 302


def test_an_address_is_confirmed_by_its_link() -> None:
    user = person(verified=False)
    client = logged_in(user)
    assert "not confirmed" in page_text(client.get("/accounts/"))
    client.post("/accounts/email/", {"email": user.email, "action_send": "1"})
    link = link_in(last_mail("Confirm your address").body)
    assert "Is this your address?" in page_text(client.get(link))
    assert not EmailAddress.objects.get(user=user).verified, "looking at it is not enough: mail programs look too"
    client.post(link)
    assert EmailAddress.objects.get(user=user).verified
    assert "not confirmed" not in page_text(client.get("/accounts/"))


def test_a_new_address_counts_once_it_is_confirmed() -> None:
    user = person()
    client = logged_in(user)
    reply = client.post("/accounts/email/", {"email": "mira@home.example", "action_add": "1"}, follow=True)
    assert "A change to mira@home.example waits" in page_text(reply)
    assert log_in(user.email, client=Client()).status_code == 302
    client.post(link_in(last_mail("Confirm your address").body))
    assert log_in("mira@home.example", client=Client()).status_code == 302
    assert log_in("mira@acme.example", client=Client()).status_code == 400
    user.refresh_from_db()
    assert user.email == "mira@home.example"
    entry = AuditEntry.objects.get(action="account.email_changed")
    assert entry.details == {"email": ["mira@acme.example", "mira@home.example"]}
    assert last_mail("Your address was changed").to == ["mira@acme.example"], "the old one learns of it"


def test_a_change_can_be_cancelled() -> None:
    client = logged_in(person())
    client.post("/accounts/email/", {"email": "mira@home.example", "action_add": "1"})
    reply = client.post("/accounts/email/", {"email": "mira@home.example", "action_remove": "1"}, follow=True)
    assert "The change to mira@home.example is cancelled" in page_text(reply)
    assert "mira@home.example" not in page_text(client.get("/accounts/email/"))


def test_changing_to_somebody_elses_address_looks_like_any_other_change() -> None:
    """Nobody can find out whether an address has an account."""
    person("other@acme.example")
    texts = []
    for email in ("other@acme.example", "nobody@acme.example"):
        client = logged_in(person(f"asks-for-{email}"))
        reply = client.post("/accounts/email/", {"email": email, "action_add": "1"}, follow=True)
        texts.append(page_text(reply).replace(f"asks-for-{email}", "ME").replace(email, "X"))
    assert texts[0] == texts[1]


def test_nobody_takes_an_address_that_another_has_confirmed_meanwhile() -> None:
    client = logged_in(person())
    client.post("/accounts/email/", {"email": "wanted@acme.example", "action_add": "1"})
    link = link_in(last_mail("Confirm your address").body)
    owner = person("wanted@acme.example")
    client.post(link)
    assert EmailAddress.objects.get(email="wanted@acme.example", verified=True).user == owner
    assert User.objects.filter(email="wanted@acme.example").count() == 1


def test_a_mail_server_that_is_down_fails_no_page(monkeypatch: pytest.MonkeyPatch) -> None:
    def down(*args: Any, **kwargs: Any) -> None:
        raise ConnectionRefusedError

    person()
    monkeypatch.setattr("django.core.mail.message.EmailMessage.send", down)
    assert Client().post("/accounts/password/reset/", {"email": "mira@acme.example"}).status_code == 302


def test_nonsense_links_say_that_they_do_not_work() -> None:
    for path in ("/accounts/confirm-email/nonsense/", "/accounts/password/reset/key/1-nonsense/"):
        assert "This link no longer works" in page_text(Client().get(path))


# --- no mail ------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_mail(settings: Any) -> None:
    settings.EMAIL_BACKEND = "django.core.mail.backends.dummy.EmailBackend"


def test_without_mail_the_pages_say_whom_to_ask(no_mail: None) -> None:
    assert "This Octavo sends no mail" in page_text(Client().get("/accounts/password/reset/"))
    client = logged_in(person())
    assert "an operator can change or confirm your address" in page_text(client.get("/accounts/email/"))
    Client().post("/accounts/password/reset/", {"email": "mira@acme.example"})
    assert mail.outbox == []


def test_without_mail_an_operator_makes_the_link(no_mail: None) -> None:
    user = person()
    operator = logged_in(person("op@acme.example", is_staff=True, is_superuser=True))
    data = {"action": "make_password_link", "_selected_action": [str(user.pk)]}
    reply = operator.post("/admin/accounts/user/", data, follow=True)
    link = link_in(reply.content.decode())
    assert choose(Client(), link).status_code == 302
    assert log_in(user.email, NEW, client=Client()).status_code == 302
    entry = AuditEntry.objects.get(action="account.password_link_made")
    assert (entry.actor_kind, entry.actor_name, entry.object_name) == ("operator", "op@acme.example", user.email)
    assert link not in str(entry.details)


def test_an_operator_helps_who_has_lost_the_second_factor() -> None:
    from tests.accounts.conftest import activate_app

    user = person()
    activate_app(logged_in(user))
    operator = logged_in(person("op@acme.example", is_staff=True, is_superuser=True))
    data = {"action": "remove_second_factors", "_selected_action": [str(user.pk)]}
    operator.post("/admin/accounts/user/", data)
    assert log_in(user.email, client=Client())["Location"] == "/"
    assert AuditEntry.objects.filter(action="account.factors_removed", object_name=user.email).count() == 1
