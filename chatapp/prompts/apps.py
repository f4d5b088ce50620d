from django.apps import AppConfig


class PromptsConfig(AppConfig):
    name = "chatapp.prompts"
    label = "prompts"
