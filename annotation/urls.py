"""Pages where people judge."""

from django.urls import URLPattern, path

from annotation.selectors.tables.data import TABLES
from annotation.views import (
    allocation,
    calibration,
    comparison,
    data,
    inbox,
    invitations,
    panels,
    pastes,
    pay,
    project_file,
    project_questions,
    projects,
    questions,
    queues,
    reviews,
    saved_views,
    sources,
    statistics,
    tokens,
    transfers,
    webhooks,
)
from annotation.views.labelling import pages


def project_question_patterns() -> list[URLPattern]:
    """Return the addresses of the additional questions of a project."""
    below = "projects/<slug:slug>/settings/additional/"
    name = questions.QUESTIONS_OF_PROJECT.name
    named = {"kind": questions.QUESTIONS_OF_PROJECT}
    return [
        path(f"{below}add/", project_questions.project_question_add, name=f"{name}-add"),
        path(f"{below}preview/", project_questions.project_question_preview, name=f"{name}-preview-new"),
        path(f"{below}<slug:key>/edit/", project_questions.project_question_edit, name=name),
        path(
            f"{below}<slug:key>/preview/", project_questions.project_question_preview, name=f"{name}-preview"
        ),
        path(f"{below}<slug:key>/again/", project_questions.project_question_again, name=f"{name}-again"),
        path(f"{below}<slug:key>/change/", questions.question_change, named, name=f"{name}-change"),
    ]


def question_patterns(folder: str, kind: questions.QuestionPages) -> list[URLPattern]:
    """Return the addresses at which a manager adds, edits, moves and deletes categories or criteria."""
    below = f"projects/<slug:slug>/settings/{folder}/"
    named = {"kind": kind}
    return [
        path(f"{below}add/", questions.question_add, named, name=f"{kind.name}-add"),
        path(f"{below}edit/<slug:key>/", questions.question_edit, named, name=kind.name),
        path(f"{below}change/<slug:key>/", questions.question_change, named, name=f"{kind.name}-change"),
    ]


urlpatterns: list[URLPattern] = [
    # What labellers ask all day comes first: an address is compared with one pattern after the other.
    path("projects/<slug:slug>/label/", pages.label, name="label"),
    path("projects/<slug:slug>/label/next/", pages.label_ahead, name="label-ahead"),
    path(
        "projects/<slug:slug>/label/<int:pk>/steps/<str:token>/<int:index>/",
        comparison.label_step,
        name="label-step",
    ),
    path("projects/<slug:slug>/label/<int:pk>/submit/", pages.submit, name="submit"),
    path("projects/<slug:slug>/label/<int:pk>/draft/", pages.draft, name="draft"),
    path("projects/<slug:slug>/label/<int:pk>/continue/", pages.continuation, name="continuation"),
    path("projects/<slug:slug>/label/<int:pk>/pastes/", pastes.paste, name="paste"),
    path("projects/<slug:slug>/label/<int:pk>/skip/", pages.skip, name="skip"),
    path("projects/<slug:slug>/label/<int:pk>/flag/", pages.flag, name="flag"),
    path("projects/<slug:slug>/label/<int:pk>/ask/", inbox.ask, name="ask"),
    path("projects/<slug:slug>/label/<int:pk>/renew/", pages.renew, name="renew"),
    path("projects/<slug:slug>/label/<int:pk>/revise/", pages.revise, name="revise"),
    path("projects/<slug:slug>/label/<int:pk>/object/", reviews.object_to, name="return-object"),
    path("projects/<slug:slug>/label/<int:pk>/final/", pages.final_pass, name="final-pass"),
    path(
        "projects/<slug:slug>/label/<int:pk>/final/submit/",
        pages.final_pass_submit,
        name="final-pass-submit",
    ),
    path("inbox/", inbox.inbox, name="inbox"),
    path("inbox/count/", inbox.inbox_count, name="inbox-count"),
    path("inbox/read/", inbox.inbox_read, name="inbox-read"),
    path("inbox/<int:pk>/", inbox.notification, name="notification"),
    path("account/language/", invitations.language, name="language"),
    path("account/keys/", tokens.keys, name="keys"),
    path("account/tokens/", tokens.tokens, name="tokens"),
    path("account/tokens/<int:pk>/revoke/", tokens.revoke, name="token-revoke"),
    path("", projects.projects, name="projects"),
    path("projects/new/", projects.project_new, name="project-new"),
    path("projects/new/file/", project_file.project_file_new, name="project-file-new"),
    path("projects/<slug:slug>/", projects.project, name="project"),
    path("projects/<slug:slug>/guidelines/", projects.guidelines, name="guidelines"),
    path("projects/<slug:slug>/guidelines/edit/", projects.guidelines_edit, name="guidelines-edit"),
    path("projects/<slug:slug>/guidelines/read/", projects.guidelines_read, name="guidelines-read"),
    path("projects/<slug:slug>/categories.css", projects.category_colours, name="category-colours"),
    path("projects/<slug:slug>/reviews/", reviews.reviews, name="reviews"),
    path("projects/<slug:slug>/reviews/<int:pk>/", reviews.review, name="review"),
    path("projects/<slug:slug>/reviews/<int:pk>/decide/", reviews.decide, name="review-decide"),
    path("projects/<slug:slug>/reviews/<int:pk>/take/", reviews.take_part, name="review-take"),
    path("projects/<slug:slug>/reviews/<int:pk>/return/", reviews.return_vote, name="review-return"),
    path("projects/<slug:slug>/reviews/<int:pk>/undo/", reviews.undo, name="review-undo"),
    path("projects/<slug:slug>/calibration/", calibration.calibrations, name="calibrations"),
    path("projects/<slug:slug>/calibration/new/", calibration.calibration_new, name="calibration-new"),
    path("projects/<slug:slug>/calibration/<int:pk>/", calibration.calibration, name="calibration"),
    path(
        "projects/<slug:slug>/calibration/<int:pk>/items/<int:index>/",
        calibration.calibration_item,
        name="calibration-item",
    ),
    path(
        "projects/<slug:slug>/calibration/<int:pk>/reveal/",
        calibration.calibration_reveal,
        name="calibration-reveal",
    ),
    path(
        "projects/<slug:slug>/calibration/<int:pk>/close/",
        calibration.calibration_close,
        name="calibration-close",
    ),
    path(
        "projects/<slug:slug>/calibration/<int:pk>/retest/",
        calibration.calibration_retest,
        name="calibration-retest",
    ),
    path(
        "projects/<slug:slug>/calibration/<int:pk>/delete/",
        calibration.calibration_delete,
        name="calibration-delete",
    ),
    path("projects/<slug:slug>/statistics/", statistics.statistics, name="statistics"),
    path("projects/<slug:slug>/statistics/items/", statistics.items, name="statistics-items"),
    path("projects/<slug:slug>/items/<int:pk>/", comparison.comparison, name="statistics-item"),
    path(
        "projects/<slug:slug>/items/<int:pk>/steps/<str:token>/<int:index>/",
        comparison.comparison_step,
        name="comparison-step",
    ),
    path("projects/<slug:slug>/my-work/", statistics.my_work, name="my-work"),
    path("projects/<slug:slug>/annotators/", statistics.annotators, name="annotators"),
    path("projects/<slug:slug>/annotators/<int:pk>/", statistics.annotator, name="annotator"),
    path("projects/<slug:slug>/pay/", pay.pay, name="pay"),
    path("projects/<slug:slug>/pay/file/", pay.pay_file, name="pay-file"),
    path("projects/<slug:slug>/pay/<int:pk>/", pay.pay_rate, name="pay-rate"),
    path("projects/<slug:slug>/items/<int:pk>/comments/", inbox.comments, name="comments"),
    path("projects/<slug:slug>/comments/<int:pk>/", inbox.comment_edit, name="comment-edit"),
    path("projects/<slug:slug>/settings/", projects.project_settings, name="project-settings"),
    path("bin/", projects.bin_of_projects, name="bin"),
    path("bin/<int:pk>/restore/", projects.restore, name="bin-restore"),
    path("projects/<slug:slug>/settings/delete/", projects.delete, name="project-delete"),
    path("projects/<slug:slug>/settings/archive/", projects.archive, name="project-archive"),
    path("projects/<slug:slug>/settings/file/", project_file.project_file, name="project-file"),
    path(
        "projects/<slug:slug>/settings/file/download/",
        project_file.project_file_download,
        name="project-file-download",
    ),
    path("projects/<slug:slug>/settings/preview/", questions.project_preview, name="project-preview"),
    path("projects/<slug:slug>/settings/questions/", questions.project_questions, name="project-questions"),
    path(
        "projects/<slug:slug>/settings/categories/", questions.project_categories, name="project-categories"
    ),
    path("projects/<slug:slug>/rubrics/", questions.rubrics, name="rubrics"),
    path("projects/<slug:slug>/rubrics/new/", questions.rubric_new, name="rubric-new"),
    path("projects/<slug:slug>/rubrics/<int:pk>/", questions.rubric, name="rubric"),
    path("projects/<slug:slug>/rubrics/<int:pk>/edit/", questions.rubric_edit, name="rubric-edit"),
    path("projects/<slug:slug>/rubrics/<int:pk>/act/", questions.rubric_act, name="rubric-act"),
    *project_question_patterns(),
    *question_patterns("questions", questions.CRITERIA),
    *question_patterns("categories", questions.CATEGORIES),
    path(
        "projects/<slug:slug>/settings/categories/again/<slug:key>/",
        questions.category_again,
        name="category-again",
    ),
    path("projects/<slug:slug>/allocation/", allocation.allocation, name="allocation"),
    path("projects/<slug:slug>/allocation/rules/", allocation.change_rules, name="allocation-rules"),
    path("projects/<slug:slug>/allocation/<int:pk>/", allocation.change_member, name="allocation-member"),
    path("projects/<slug:slug>/members/", projects.members, name="members"),
    path("projects/<slug:slug>/members/<int:pk>/", projects.member, name="member"),
    path("projects/<slug:slug>/invitations/", invitations.invitations, name="invitations"),
    path(
        "projects/<slug:slug>/invitations/<int:pk>/revoke/",
        invitations.invitation_revoke,
        name="invitation-revoke",
    ),
    path("invitations/<str:secret>/", invitations.invitation, name="invitation"),
    path("projects/<slug:slug>/panels/", panels.panels, name="panels"),
    path("projects/<slug:slug>/panels/hosts/", panels.panel_hosts, name="panel-hosts"),
    path("projects/<slug:slug>/panels/<int:pk>/", panels.panel_participants, name="panel-participants"),
    path("projects/<slug:slug>/panels/<int:pk>/file/", panels.panel_file, name="panel-file"),
    path("projects/<slug:slug>/panels/<int:pk>/revoke/", panels.panel_revoke, name="panel-revoke"),
    path("panels/done/", panels.panel_done, name="panel-done"),
    path("panels/<str:secret>/", panels.panel, name="panel"),
    path("projects/<slug:slug>/audit/", projects.project_audit, name="project-audit"),
    path("audit/", projects.audit, name="audit"),
    path("projects/<slug:slug>/withheld/", queues.withheld, name="withheld"),
    path("projects/<slug:slug>/withheld/<int:pk>/", queues.decide_withheld, name="withheld-decide"),
    *(
        path(f"projects/<slug:slug>/data/{name}/", data.table, {"table": name}, name=f"data-{name}")
        for name in TABLES
    ),
    path("projects/<slug:slug>/changes/<int:pk>/undo/", data.undo, name="change-undo"),
    path("projects/<slug:slug>/prompts/new/", data.prompt_new, name="prompt-new"),
    path("projects/<slug:slug>/prompts/<int:pk>/", data.prompt, name="prompt"),
    path("projects/<slug:slug>/data/<slug:table>/act/", data.act, name="data-act"),
    path("projects/<slug:slug>/views/", saved_views.saved_views, name="saved-views"),
    path("projects/<slug:slug>/views/<int:pk>/", saved_views.saved_view, name="saved-view"),
    path("projects/<slug:slug>/views/<int:pk>/assign/", saved_views.assign, name="saved-view-assign"),
    path("projects/<slug:slug>/queues/<int:pk>/end/", saved_views.end, name="view-queue-end"),
    path("projects/<slug:slug>/transfers/", transfers.transfers, name="transfers"),
    path("projects/<slug:slug>/transfers/<int:pk>/", transfers.transfer, name="transfer"),
    path("projects/<slug:slug>/export/", transfers.export_choose, name="export-choose"),
    path("projects/<slug:slug>/export/<slug:format_name>/", transfers.export, name="export"),
    path("projects/<slug:slug>/sources/", sources.sources, name="sources"),
    path("projects/<slug:slug>/sources/<int:pk>/", sources.act, name="source-act"),
    path("projects/<slug:slug>/webhooks/", webhooks.webhooks, name="webhooks"),
    path("projects/<slug:slug>/webhooks/<int:pk>/", webhooks.webhook, name="webhook"),
    path("projects/<slug:slug>/webhooks/<int:pk>/secret/", webhooks.webhook_rotate, name="webhook-rotate"),
    path("projects/<slug:slug>/webhooks/<int:pk>/test/", webhooks.webhook_test, name="webhook-test"),
    path("projects/<slug:slug>/webhooks/<int:pk>/delete/", webhooks.webhook_delete, name="webhook-delete"),
    path(
        "projects/<slug:slug>/deliveries/<int:pk>/",
        webhooks.webhook_delivery,
        name="webhook-delivery",
    ),
    path("projects/<slug:slug>/gold/", queues.gold, name="gold"),
    path("projects/<slug:slug>/gold/make/", queues.make_gold, name="gold-make"),
    path("projects/<slug:slug>/gold/file/", queues.gold_file, name="gold-file"),
    path("projects/<slug:slug>/gold/<int:pk>/", queues.gold_answer, name="gold-answer"),
]
