"""People and their roles in the admin: as Django has them, and audited."""

from __future__ import annotations

from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.auth import admin as auth_admin  # registers its own, which ours replace
from django.contrib.auth.models import Group, User
from django.db import transaction
from django.db.models import Model
from django.http import HttpRequest, HttpResponse

from streaming.admin.audited import AuditedAdmin
from streaming.admin.tenancy import OfFleet

admin.site.unregister([User, Group])


class TellsWhatIsGiven(AuditedAdmin):
    """Of the many-to-many columns in ``told_sets`` the audit log has what was added and taken."""

    told_sets: ClassVar[tuple[str, ...]]

    def save_related(self, request: HttpRequest, form: Any, formsets: Any, change: bool) -> None:
        before = {column: _names(form.instance, column) for column in self.told_sets}
        super().save_related(request, form, formsets, change)
        for column, had in before.items():
            has = _names(form.instance, column)
            if has != had:
                given, taken = (", ".join(sorted(one)) for one in (has - had, had - has))
                self.announce(request, form.instance, column, given=given, taken=taken)


def _names(row: Model, column: str) -> set[str]:
    rows = getattr(row, column)
    if rows.model is Group:
        return set(rows.values_list("name", flat=True))
    named = rows.values_list("content_type__app_label", "codename")
    return {f"{app}.{codename}" for app, codename in named}


@admin.register(User)
class StaffAdmin(OfFleet, TellsWhatIsGiven, auth_admin.UserAdmin):
    audited_as = "staff"
    told = ("is_active", "is_staff", "is_superuser")
    told_sets = ("groups", "user_permissions")

    def audit_subject(self, obj: User) -> tuple[str, int | None]:
        return f"user:{obj.get_username()}", None

    @transaction.atomic
    def user_change_password(
        self, request: HttpRequest, id: str, form_url: str = ""
    ) -> HttpResponse:
        answer = super().user_change_password(request, id, form_url)
        user = self.get_object(request, id)
        if request.method == "POST" and answer.status_code == 302 and user is not None:
            self.announce(request, user, "password_set")
        return answer


@admin.register(Group)
class RoleAdmin(OfFleet, TellsWhatIsGiven, auth_admin.GroupAdmin):
    audited_as = "role"
    told = ("name",)
    told_sets = ("permissions",)

    def audit_subject(self, obj: Group) -> tuple[str, int | None]:
        return f"role:{obj.name}", None
