"""Users, memberships, their tokens and what they did."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.contrib.auth.admin import UserAdmin as DjangoUserAdmin
from django.contrib.auth.forms import AdminUserCreationForm, UserChangeForm

from annotation.admin.base import BoundedAdmin, TabularInline, WrittenOnceAdmin
from annotation.models import (
    ApiToken,
    AuditEntry,
    Comment,
    Invitation,
    KeptAnswer,
    MailChoice,
    Membership,
    Notification,
    User,
)
from annotation.services.people.accounts import require_one_meaning

if TYPE_CHECKING:
    # Generic in the type stubs alone.
    _CreationForm = AdminUserCreationForm[User]
    _ChangeForm = UserChangeForm[User]
    _UserAdmin = DjangoUserAdmin[User]
else:
    _CreationForm, _ChangeForm, _UserAdmin = AdminUserCreationForm, UserChangeForm, DjangoUserAdmin


class _UserCreationForm(_CreationForm):
    class Meta(AdminUserCreationForm.Meta):
        model = User

    def clean_username(self) -> str:
        """Refuse a name that is in use, or that could be taken for another."""
        username = str(super().clean_username())
        require_one_meaning(username)
        return username


class _UserChangeForm(_ChangeForm):
    class Meta(UserChangeForm.Meta):
        model = User

    def clean_username(self) -> str:
        """Refuse another name that could be taken for somebody else's."""
        username = str(self.cleaned_data["username"])
        if "username" in self.changed_data:
            require_one_meaning(username)
        return username


class MembershipOfUserInline(TabularInline):
    model = Membership
    extra = 0
    autocomplete_fields = ["project"]


@admin.register(User)
class UserAdmin(_UserAdmin):
    form = _UserChangeForm
    add_form = _UserCreationForm
    list_display = ["username", "first_name", "last_name", "email", "is_active", "is_staff", "last_login"]
    list_filter = ["is_active", "is_staff", "is_superuser", "memberships__role"]
    search_fields = ["username", "first_name", "last_name", "email", "pseudonym"]
    list_per_page = 50
    readonly_fields = ["pseudonym", "last_login", "date_joined"]
    fieldsets = (
        *(DjangoUserAdmin.fieldsets or ()),
        ("Interface", {"fields": ["language", "keys"]}),
        ("In exports", {"fields": ["pseudonym"]}),
    )

    def get_inlines(self, request: Any, obj: User | None) -> list[Any]:
        # A person who is being added has no row yet for memberships to belong to.
        return [MembershipOfUserInline] if obj else []


@admin.register(Membership)
class MembershipAdmin(BoundedAdmin):
    list_display = [
        "user",
        "project",
        "role",
        "group",
        "daily_limit",
        "total_limit",
        "qualified_at",
        "joined_at",
    ]
    list_filter = ["role", "project"]
    list_select_related = ["user", "project"]
    search_fields = [
        "user__username",
        "user__first_name",
        "user__last_name",
        "project__name",
        "project__slug",
    ]
    autocomplete_fields = ["user", "project"]
    readonly_fields = ["guideline_seen", "joined_at"]


@admin.register(Invitation)
class InvitationAdmin(WrittenOnceAdmin):
    list_display = ["project", "role", "note", "uses", "most_uses", "expires_at", "revoked_at", "created_by"]
    list_filter = ["role", "project", "revoked_at"]
    list_select_related = ["project", "created_by"]
    search_fields = ["note", "project__name", "project__slug", "created_by__username"]
    exclude = ["digest"]


@admin.register(ApiToken)
class ApiTokenAdmin(WrittenOnceAdmin):
    list_display = ["name", "user", "beginning", "scopes", "expires_at", "revoked_at", "last_used_at"]
    list_filter = ["expires_at", "revoked_at", "created_at"]
    list_select_related = ["user"]
    search_fields = ["name", "beginning", "user__username"]
    exclude = ["digest"]


@admin.register(AuditEntry)
class AuditEntryAdmin(WrittenOnceAdmin):
    list_display = ["created_at", "actor", "action", "subject", "project"]
    list_filter = ["action", "project", "created_at"]
    list_select_related = ["actor", "project"]
    search_fields = ["action", "subject", "actor__username", "project__name", "project__slug"]


@admin.register(KeptAnswer)
class KeptAnswerAdmin(WrittenOnceAdmin):
    list_display = ["created_at", "user", "key", "status"]
    list_filter = ["status", "created_at"]
    list_select_related = ["user"]
    search_fields = ["key", "user__username"]
    # What was answered is for who asked.
    exclude = ["body", "fingerprint"]


# Comments, notifications and choices of e-mails.


@admin.register(Comment)
class CommentAdmin(WrittenOnceAdmin):
    """Comments on comparisons."""

    list_display = ["author", "assignment", "created_at", "edited_at", "resolved_at"]
    list_filter = ["assignment__comparison__project", "resolved_at", "created_at"]
    list_select_related = ["author", "assignment__comparison", "assignment__annotator"]
    search_fields = ["text", "author__username"]


@admin.register(Notification)
class NotificationAdmin(WrittenOnceAdmin):
    """Notifications in people's inboxes."""

    list_display = ["user", "kind", "subject", "project", "created_at", "read_at", "mail"]
    list_filter = ["kind", "mail", "project", "created_at"]
    list_select_related = ["user", "project"]
    search_fields = ["subject", "user__username", "project__name", "project__slug"]


@admin.register(MailChoice)
class MailChoiceAdmin(WrittenOnceAdmin):
    """The e-mails that people want."""

    list_display = ["user", "mentions", "failures", "digest", "digested_at"]
    list_filter = ["mentions", "failures", "digest"]
    list_select_related = ["user"]
    search_fields = ["user__username", "user__email"]
