from django.apps import AppConfig


class AccountsConfig(AppConfig):
    name = "chatapp.accounts"
    label = "accounts"

    def ready(self) -> None:
        from chatapp.accounts import signals

        signals.connect()
