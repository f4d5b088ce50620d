from django.apps import AppConfig


class ChatConfig(AppConfig):
    name = "chatapp.chat"
    label = "chat"

    def ready(self) -> None:
        from chatapp.chat import changes  # noqa: F401  connects its receivers
        from chatapp.chat.recorder import ended
        from chatapp.chat.titles import on_ended

        ended.connect(on_ended, dispatch_uid="titles")
