from django.apps import AppConfig


class LimitsConfig(AppConfig):
    name = "chatapp.limits"
    label = "limits"

    def ready(self) -> None:
        from chatapp.limits.banner import banner
        from chatapp.tenants.pages import BANNERS

        BANNERS.append(banner)
