from django.apps import AppConfig


class ApiConfig(AppConfig):
    name = "chatapp.api"
    label = "api"

    def ready(self) -> None:
        from chatapp.api.openai_batches import register

        register()
