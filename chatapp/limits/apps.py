from django.apps import AppConfig


class LimitsConfig(AppConfig):
    name = "chatapp.limits"
    label = "limits"

    def ready(self) -> None:
        from django.db.models.signals import post_delete, post_save

        from chatapp.limits.banner import banner
        from chatapp.limits.models import LowerLimits, Plan, TenantLimits
        from chatapp.limits.selectors import forget
        from chatapp.limits.services import inherit
        from chatapp.tenants.models import ApiKey
        from chatapp.tenants.pages import BANNERS

        BANNERS.append(banner)
        for model in (Plan, TenantLimits, LowerLimits):
            post_save.connect(forget, sender=model)
            post_delete.connect(forget, sender=model)
        post_save.connect(inherit, sender=ApiKey)
