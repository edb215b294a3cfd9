"""Forms of comments and of the choice of e-mails."""

from django import forms
from django.utils.translation import gettext_lazy as _

from annotation.models.inbox import LONGEST_COMMENT


class CommentForm(forms.Form):
    """A comment."""

    text = forms.CharField(
        label=_("Comment"),
        max_length=LONGEST_COMMENT,
        widget=forms.Textarea(attrs={"rows": 3, "maxlength": LONGEST_COMMENT}),
        error_messages={"required": _("Write something first.")},
    )


class MailForm(forms.Form):
    """The e-mails that a person wants, and where to."""

    email = forms.EmailField(label=_("E-mail address"), required=False, max_length=254)
    mentions = forms.BooleanField(label=_("Mentions, replies, questions and reviews"), required=False)
    failures = forms.BooleanField(label=_("Failed rounds and jobs, and decisions that wait"), required=False)
    digest = forms.BooleanField(label=_("Daily digest of what is unread"), required=False)
