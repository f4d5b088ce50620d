from django.apps import AppConfig
from django.core.checks import Tags, register
from django.db.models.signals import post_migrate


class TenantsConfig(AppConfig):
    name = "chatapp.tenants"
    label = "tenants"

    def ready(self) -> None:
        from chatapp.postgresql.policies import check_role, make_policies

        post_migrate.connect(make_policies, sender=self, dispatch_uid="row-security")
        register(check_role, Tags.database)
