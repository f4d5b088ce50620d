from django.apps import AppConfig


class PromptsConfig(AppConfig):
    name = "chatapp.prompts"
    label = "prompts"

    def ready(self) -> None:
        # So that every process that sends a task knows the broker.
        import chatapp.celery  # noqa: F401
