"""The playground: prompts found by search, prompt sets asked one by one, a chat asked again."""

import re
from html import unescape

import pytest
from django.test import Client
from django.urls import reverse

from annotation.choices import Split
from annotation.errors import NotAllowed
from annotation.models import AuditEntry, Judgment, Project, Prompt, User
from tests import factories
from tests.api.scene import Asker
from tests.refusals import refused
from tests.training.comparing.arena_scene import make_checkpoints
from tests.training.engine.streaming_server import StreamingServer
from training.engine import EngineUnavailableError
from training.forms.comparing import CompareForm
from training.models import Checkpoint, PromptSet, SideBySide
from training.selectors.prompt_sets import progress_on
from training.services.prompt_sets import (
    add_prompts,
    create_prompt_set,
    delete_prompt_set,
    remove_prompts,
    rename_prompt_set,
)
from training.services.side_by_side import trouble_of

pytestmark = pytest.mark.django_db


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> StreamingServer:
    fake_server = StreamingServer()
    fake_server.text = lambda body: f"{body['model']} says so."
    monkeypatch.setattr("training.services.side_by_side.engine_for", fake_server.engine)
    monkeypatch.setattr("training.views.side_by_side.Engine", fake_server.engine)
    return fake_server


@pytest.fixture
def checkpoints(project: Project) -> list[Checkpoint]:
    return make_checkpoints(project, ("north", "south", "east"))


@pytest.fixture
def tea(project: Project, carol: User) -> PromptSet:
    """A set of three held-out prompts."""
    prompts = [factories.make_prompt(project, f"How hot is tea {n}?", split=Split.HELD_OUT) for n in range(3)]
    return create_prompt_set(
        project=project, name="Tea", prompts=[prompt.pk for prompt in prompts], created_by=carol
    )


def ask(client: Client, **changes: object) -> SideBySide:
    form = {"project": "tea", "left": "north", "right": "south", "temperature": "0.5", "seed": "3"}
    answer = client.post(reverse("compare-answer"), {**form, "max_tokens": "50", **changes})
    assert answer.status_code == 302, unescape(answer.content.decode())
    return SideBySide.objects.latest("pk")


def post(client: Client, name: str, shown: SideBySide, **values: object) -> SideBySide:
    assert client.post(reverse(name, args=[shown.slug]), values).status_code == 302
    return SideBySide.objects.latest("pk")


def page_of(client: Client, shown: SideBySide) -> str:
    return unescape(client.get(shown.get_absolute_url()).content.decode())


# ── Searching prompts ─────────────────────────────────────────────────────────────────


def test_prompts_are_searched_and_the_chosen_one_stays(manager: Client, project: Project):
    coffee = factories.make_prompt(project, "How strong is coffee?")
    for number in range(12):
        factories.make_prompt(project, f"How hot is tea {number}?")
    content = manager.get(reverse("compare-prompts"), {"project": "tea", "find": "COFFEE"}).content.decode()
    assert re.findall(r'value="(\d+)"', content) == [str(coffee.pk)]
    many = manager.get(
        reverse("compare-prompts"), {"project": "tea", "find": "tea", "prompt": str(coffee.pk)}
    ).content.decode()
    assert re.search(rf'value="{coffee.pk}" checked', many)
    assert len(re.findall(r'type="radio"', many)) == 1 + 1 + 8
    assert "More prompts match" in many
    # Without a script the page itself searches.
    page = manager.get(reverse("compare"), {"project": "tea", "find": "coffee"}).content.decode()
    assert "How strong is coffee?" in page
    assert "How hot is tea" not in page


def test_a_search_beyond_ascii_finds_the_prompt(manager: Client, project: Project):
    prompt = factories.make_prompt(project, "Wie heiß ist Tee?")
    content = manager.get(reverse("compare-prompts"), {"project": "tea", "find": "heiß"}).content.decode()
    assert f'value="{prompt.pk}"' in content


@pytest.mark.parametrize("chosen", ["9" * 40, "-1", "x", "²"])
def test_a_hostile_choice_is_no_choice(manager: Client, chosen: str):
    response = manager.get(reverse("compare-prompts"), {"project": "tea", "prompt": chosen})
    assert 'value="" checked' in response.content.decode()


def test_prompts_of_another_project_are_not_found(manager: Client, oscar: User):
    elsewhere = factories.make_project(slug="coffee", managers=[oscar])
    foreign = factories.make_prompt(elsewhere, "How strong?")
    content = manager.get(
        reverse("compare-prompts"), {"project": "tea", "find": "strong", "prompt": str(foreign.pk)}
    ).content.decode()
    assert "How strong" not in content
    assert manager.get(reverse("compare-prompts"), {"project": "coffee"}).status_code == 404


def test_checkpoints_of_a_list_are_chosen_by_the_address(manager: Client, project: Project):
    page = manager.get(reverse("compare"), {"checkpoint": ["east", "north"]}).content.decode()
    assert re.search(r'name="left".*?value="east" selected', page, re.S)
    assert re.search(r'name="right".*?value="north" selected', page, re.S)
    assert manager.get(reverse("compare"), {"checkpoint": ["nobody"] * 9}).status_code == 200


# ── Settings ──────────────────────────────────────────────────────────────────────────


def test_sampling_and_system_prompt_go_to_the_model(manager: Client, server: StreamingServer):
    shown = ask(manager, text="Tea?", top_p="0.5", system="Answer in one word.")
    assert shown.sampling == {"temperature": 0.5, "top_p": 0.5, "max_tokens": 50}
    sent = [body for body in server.asked if "n" in body]
    assert {body["top_p"] for body in sent} == {0.5}
    assert sent[0]["messages"] == [
        {"role": "system", "content": "Answer in one word."},
        {"role": "user", "content": "Tea?"},
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        {"top_p": "0"},
        {"top_p": "1.1"},
        {"top_p": "nan"},
        {"temperature": "-1"},
        {"temperature": "inf"},
        {"max_tokens": "0"},
        {"max_tokens": "100000"},
        {"seed": "-1"},
        {"system": "x" * 8001},
    ],
)
def test_settings_out_of_bounds_are_refused(manager: Client, wrong: dict[str, str]):
    form = {"project": "tea", "left": "north", "right": "south", "temperature": "0.5", "seed": "3"}
    page = manager.post(reverse("compare-answer"), {**form, "max_tokens": "50", "text": "Tea?", **wrong})
    assert page.status_code == 200
    assert b"field__error" in page.content
    assert not SideBySide.objects.exists()
    shown = ask(manager, text="Tea?")
    again = {"temperature": "0.5", "max_tokens": "50", **wrong}
    manager.post(reverse("compare-again", args=[shown.slug]), again)
    assert SideBySide.objects.count() == 1


def test_a_vote_under_another_system_prompt_never_brings_a_held_out_prompt_into_training(
    manager: Client, project: Project
):
    prompt = factories.make_prompt(
        project, "How hot?", split=Split.HELD_OUT, context=[("Tea", ["Tea is hot."])]
    )
    shown = ask(manager, prompt=prompt.pk, system="Be brief.")
    assert (shown.prompt, shown.base_prompt) == (None, prompt)
    assert "Tea is hot." in shown.answers.first().messages[-1]["content"]
    manager.post(reverse("compare-vote", args=[shown.slug]), {"vote": "first"})
    shown.refresh_from_db()
    assert shown.prompt is not None
    assert shown.prompt != prompt
    assert (shown.prompt.split, shown.prompt.context) == (Split.HELD_OUT, prompt.context)
    assert shown.prompt.messages[0] == {"role": "system", "content": "Be brief."}


def test_a_follow_up_on_a_held_out_prompt_is_held_out(manager: Client, project: Project):
    for number in range(6):
        prompt = factories.make_prompt(project, f"How hot {number}?", split=Split.HELD_OUT)
        shown = ask(manager, prompt=prompt.pk)
        following = post(manager, "compare-continue", shown, text="And why?", after="1")
        manager.post(reverse("compare-vote", args=[following.slug]), {"vote": "first"})
    added = Prompt.objects.filter(tags__icontains="side by side")
    assert {new_prompt.split for new_prompt in added} == {Split.HELD_OUT}


def test_the_system_prompt_of_a_prompt_is_kept_where_none_is_typed(manager: Client, project: Project):
    messages = [{"role": "system", "content": "Old."}, {"role": "user", "content": "Tea?"}]
    prompt = Prompt.objects.create(
        project=project, messages=messages, content_hash="a" * 64, split=Split.TRAIN
    )
    assert ask(manager, prompt=prompt.pk).prompt == prompt
    changed = ask(manager, prompt=prompt.pk, system="New.")
    assert changed.messages == [{"role": "system", "content": "New."}, {"role": "user", "content": "Tea?"}]


# ── The same chat again ───────────────────────────────────────────────────────────────


def test_regenerating_asks_the_same_checkpoints_with_a_new_seed_and_stays_blind(
    manager: Client, server: StreamingServer
):
    shown = ask(manager, text="Tea?")
    again = post(manager, "compare-again", shown, temperature="0.9", top_p="1", max_tokens="20")
    assert again != shown
    assert again.sampling == {"temperature": 0.9, "top_p": 1.0, "max_tokens": 20}
    assert again.seed != shown.seed
    assert again.is_hidden
    assert {answer.checkpoint.name for answer in again.answers.all()} == {"north", "south"}
    page = page_of(manager, again)
    for name in ("north", "south"):
        assert f">{name}<" not in page.replace(f"{name} says so.", "")
    chosen = post(manager, "compare-again", shown, temperature="0", max_tokens="20", seed="5", unblinded="on")
    assert (chosen.seed, chosen.blind) == (5, False)


def test_regenerating_with_another_system_prompt_changes_every_chat(manager: Client):
    shown = ask(manager, text="Tea?")
    again = post(manager, "compare-again", shown, temperature="0", max_tokens="20", system="Brief.")
    assert again.messages[0] == {"role": "system", "content": "Brief."}
    assert {answer.messages[0]["content"] for answer in again.answers.all()} == {"Brief."}


# ── Prompt sets ───────────────────────────────────────────────────────────────────────


def test_a_set_is_asked_prompt_by_prompt_blind_with_progress(
    manager: Client, tea: PromptSet, checkpoints: list[Checkpoint], carol: User
):
    shown = ask(manager, prompt_set=tea.pk, text="ignored")
    prompts = list(tea.prompts.order_by("pk"))
    assert (shown.prompt, shown.is_hidden) == (prompts[0], True)
    assert "0 of 3 compared" in page_of(manager, shown)
    for number in (1, 2):
        manager.post(reverse("compare-vote", args=[shown.slug]), {"vote": "first"})
        assert f"{number} of 3 compared" in page_of(manager, shown)
        shown = post(manager, "compare-next", shown)
        assert (shown.prompt, shown.is_hidden) == (prompts[number], True)
    manager.post(reverse("compare-vote", args=[shown.slug]), {"vote": "equal"})
    page = page_of(manager, shown)
    assert "Every prompt of the set was compared." in page
    assert "Next prompt of the set" not in page
    assert Judgment.objects.filter(blind=True).count() == 3
    # At its end nothing follows, neither by the button nor by the form.
    count = SideBySide.objects.count()
    manager.post(reverse("compare-next", args=[shown.slug]))
    ended = manager.post(
        reverse("compare-answer"),
        {
            "project": "tea", "left": "south", "right": "north", "temperature": "0", "seed": "0",
            "max_tokens": "9", "prompt_set": tea.pk,
        },
    )  # fmt: skip
    assert "compared on every prompt of the set" in unescape(ended.content.decode())
    assert SideBySide.objects.count() == count


def test_progress_is_of_exactly_these_checkpoints(
    manager: Client, tea: PromptSet, checkpoints: list[Checkpoint]
):
    north, south, east = checkpoints
    shown = ask(manager, prompt_set=tea.pk)
    manager.post(reverse("compare-vote", args=[shown.slug]), {"vote": "first"})
    three = ask(manager, prompt_set=tea.pk, third="east")
    manager.post(reverse("compare-vote", args=[three.slug]), {"vote": "both_bad"})
    assert progress_on(tea, [north, south]).voted == 1
    assert progress_on(tea, [south, north]).voted == 1
    assert progress_on(tea, [north, east]).voted == 0
    assert progress_on(tea, checkpoints).voted == 1


def test_a_prompt_that_is_skipped_comes_again_at_the_end(manager: Client, tea: PromptSet):
    first, second, third = tea.prompts.order_by("pk")
    shown = ask(manager, prompt_set=tea.pk)
    shown = post(manager, "compare-next", shown)
    assert shown.prompt == second
    shown = post(manager, "compare-next", shown)
    assert shown.prompt == third
    assert post(manager, "compare-next", shown).prompt == first


def test_the_next_prompt_keeps_settings_and_a_changed_system_prompt_and_is_blind_again(
    manager: Client, tea: PromptSet
):
    shown = ask(manager, prompt_set=tea.pk, system="Brief.", top_p="0.3")
    manager.post(reverse("compare-reveal", args=[shown.slug]))
    following = post(manager, "compare-next", shown)
    assert following.sampling == {"temperature": 0.5, "top_p": 0.3, "max_tokens": 50}
    assert following.messages[0] == {"role": "system", "content": "Brief."}
    assert following.is_hidden


def test_an_empty_set_says_so(manager: Client, project: Project, carol: User):
    empty = create_prompt_set(project=project, name="Empty", created_by=carol)
    page = manager.post(
        reverse("compare-answer"),
        {
            "project": "tea", "left": "north", "right": "south", "temperature": "0", "seed": "0",
            "max_tokens": "9", "prompt_set": empty.pk,
        },
    )  # fmt: skip
    assert "This prompt set is empty" in page.content.decode()


def test_a_set_is_made_filled_and_deleted_on_its_pages(manager: Client, project: Project):
    prompts = [factories.make_prompt(project, f"Tea {n}?") for n in range(2)]
    made = manager.post(reverse("prompt-set-create", args=["tea"]), {"name": "  Green   tea "})
    prompt_set = PromptSet.objects.get()
    assert (prompt_set.name, made["Location"]) == ("Green tea", prompt_set.get_absolute_url())
    change = reverse("prompt-set-change", args=["tea", prompt_set.pk])
    manager.post(change, {"add": [prompts[0].pk, prompts[1].pk]})
    assert prompt_set.prompts.count() == 2
    page = manager.get(prompt_set.get_absolute_url(), {"find": "tea 1", "split": "nonsense"}).content.decode()
    assert "2 prompts" in page
    manager.post(change, {"remove": prompts[0].pk})
    assert list(prompt_set.prompts.all()) == [prompts[1]]
    assert "Tea 0?" in manager.get(prompt_set.get_absolute_url(), {"find": "tea 0"}).content.decode()
    manager.post(change, {"name": "Black tea"})
    prompt_set.refresh_from_db()
    assert prompt_set.name == "Black tea"
    manager.post(reverse("prompt-set-delete", args=["tea", prompt_set.pk]))
    assert not PromptSet.objects.exists()
    assert Prompt.objects.count() == 2
    actions = list(AuditEntry.objects.order_by("pk").values_list("action", flat=True))
    assert actions == [f"prompt_set.{what}" for what in ("create", "add", "remove", "rename", "delete")]


@pytest.mark.parametrize("name", ["", "   ", "x" * 101, "Tea"])
def test_a_name_that_is_missing_long_or_in_use_is_refused(manager: Client, tea: PromptSet, name: str):
    page = manager.post(reverse("prompt-set-create", args=["tea"]), {"name": name})
    assert page.status_code == 422
    assert b"field__error" in page.content
    other = create_prompt_set(project=tea.project, name="Other", created_by=tea.created_by)
    changed = manager.post(reverse("prompt-set-change", args=["tea", other.pk]), {"name": name})
    assert changed.status_code == 422
    other.refresh_from_db()
    assert other.name == "Other"


@pytest.mark.parametrize("ids", [["9" * 30], ["x"], ["-1"], ["999999"]])
def test_ids_that_are_none_add_nothing(manager: Client, tea: PromptSet, ids: list[str]):
    manager.post(reverse("prompt-set-change", args=["tea", tea.pk]), {"add": ids})
    assert tea.prompts.count() == 3


def test_prompts_of_another_project_and_too_many_are_refused(
    tea: PromptSet, carol: User, monkeypatch: pytest.MonkeyPatch
):
    foreign = factories.make_prompt(factories.make_project(slug="coffee"), "How strong?")
    with refused("unknown_prompt"):
        add_prompts(prompt_set=tea, prompts=[foreign.pk], changed_by=carol)
    monkeypatch.setattr("training.services.prompt_sets.MOST_PROMPTS", 3)
    more = factories.make_prompt(tea.project, "More?")
    with refused("too_many_prompts", most=3):
        add_prompts(prompt_set=tea, prompts=[more.pk], changed_by=carol)
    monkeypatch.setattr("training.services.prompt_sets.MOST_SETS", 1)
    with refused("too_many_prompt_sets", most=1):
        create_prompt_set(project=tea.project, name="Second", created_by=carol)


def test_only_managers_change_prompt_sets(tea: PromptSet, alice: User):
    for call in (
        lambda: create_prompt_set(project=tea.project, name="New", created_by=alice),
        lambda: add_prompts(prompt_set=tea, prompts=[], changed_by=alice),
        lambda: remove_prompts(prompt_set=tea, prompts=[], changed_by=alice),
        lambda: rename_prompt_set(prompt_set=tea, name="New", changed_by=alice),
        lambda: delete_prompt_set(prompt_set=tea, deleted_by=alice),
    ):
        with refused("manager_changes_prompt_sets", NotAllowed):
            call()


def test_a_set_of_another_project_is_not_there(manager: Client, oscar: User):
    elsewhere = factories.make_project(slug="coffee", managers=[oscar])
    foreign = create_prompt_set(project=elsewhere, name="Coffee", created_by=oscar)
    assert manager.get(reverse("prompt-set", args=["tea", foreign.pk])).status_code == 404
    form = {"project": "tea", "left": "north", "right": "south", "temperature": "0", "seed": "0"}
    page = manager.post(
        reverse("compare-answer"), {**form, "max_tokens": "9", "text": "Tea?", "prompt_set": foreign.pk}
    )
    assert page.status_code == 200
    assert not SideBySide.objects.exists()


def test_the_api_makes_fills_and_asks_a_set(
    carol: User, checkpoints: list[Checkpoint], server: StreamingServer, project: Project
):
    asker = Asker(carol)
    prompts = [factories.make_prompt(project, f"Tea {n}?").pk for n in range(2)]
    made = asker.post("/projects/tea/prompt-sets/", {"name": "Tea", "prompts": prompts[:1]})
    assert (made.status_code, made.json()["prompts"]) == (201, prompts[:1])
    path = f"/projects/tea/prompt-sets/{made.json()['id']}/"
    assert asker("PATCH", path, {"add": prompts[1:]}).json()["prompts"] == prompts
    assert asker("PATCH", path, {"add": [10**9]}).status_code == 422
    assert [row["size"] for row in asker.get("/projects/tea/prompt-sets/").json()["results"]] == [2]
    body = {"checkpoints": ["north", "south"], "prompt_set": made.json()["id"], "top_p": 0.5}
    page = asker.post("/projects/tea/beside/", body).json()
    assert (page["prompt_set"], page["messages"][0]["content"]) == (made.json()["id"], "Tea 0?")
    base = f"/projects/tea/beside/{page['page']}"
    following = asker.post(f"{base}/next/")
    assert following.json()["messages"][0]["content"] == "Tea 1?"
    again = asker.post(f"{base}/regenerate/", {"seed": 9, "temperature": 0, "system": "Brief."})
    assert (again.status_code, again.json()["seed"], again.json()["hidden"]) == (201, 9, True)
    assert again.json()["messages"][0] == {"role": "system", "content": "Brief."}
    assert asker.post(f"{base}/regenerate/", {"top_p": 0}).status_code == 422
    assert asker.post("/projects/tea/beside/", {**body, "prompt_set": 10**9}).status_code == 422
    assert asker("DELETE", path).status_code == 204


@pytest.mark.parametrize("names", [("north", "south"), ("north",)])
def test_two_different_models_are_chosen_by_default(project: Project, carol: User, names: tuple[str, ...]):
    make_checkpoints(project, names)
    form = CompareForm(project=project, user=carol)
    chosen = [form.fields[side].initial for side in ("left", "right")]
    assert chosen[0] != chosen[1]
    assert set(filter(None, chosen)) == set(names)


def test_while_blind_the_reason_of_a_missing_response_names_no_model():
    error = EngineUnavailableError("smol-copy is starting")
    assert "smol-copy" in trouble_of(error, hidden=False)
    assert trouble_of(error, hidden=True).startswith("A model server is down or still starting.")
