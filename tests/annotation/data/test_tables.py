"""Tables of a project's data: filters, search, pages without loss, columns, and who may see them."""

from collections.abc import Callable

import pytest
from django.http import QueryDict
from django.test import Client
from django.urls import reverse

from annotation.choices import Verdict
from annotation.models import Comparison, Project, Prompt, User
from annotation.selectors.tables import search, table
from annotation.selectors.tables import table as tables
from annotation.selectors.tables.data import TABLES
from annotation.selectors.tables.table import View
from tests import factories

ClientOf = Callable[[User], Client]


def rows(project: Project, table: str, query: str = "") -> list[int]:
    return [pk for pk, _ in View(TABLES[table], project, QueryDict(query)).lines]


def test_pages_hold_every_row_once_even_when_rows_arrive_between(
    project: Project, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tables, "ROWS_ON_A_PAGE", 2)
    prompts = [factories.make_prompt(project, f"Question {number}") for number in range(5)]
    seen, query = [], ""
    for _ in range(3):
        view = View(TABLES["prompts"], project, QueryDict(query))
        seen += [pk for pk, _ in view.lines]
        query = view.next_query
        factories.make_prompt(project, f"It arrives later {len(seen)}")
    assert seen == [prompt.pk for prompt in reversed(prompts)]
    assert query == ""


def test_the_oldest_come_first_where_the_address_says_so(project: Project):
    first, second = (factories.make_prompt(project, text) for text in ("One?", "Two?"))
    assert rows(project, "prompts", "order=oldest") == [first.pk, second.pk]
    assert rows(project, "prompts") == [second.pk, first.pk]


@pytest.mark.parametrize(
    ("table", "column"), [(table.name, column.name) for table in TABLES.values() for column in table.columns]
)
def test_pages_sorted_by_any_column_hold_every_row_once_in_both_directions(
    table: str, column: str, project: Project, alice: User, bob: User, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tables, "ROWS_ON_A_PAGE", 2)
    project.overlap = 2
    project.save()
    for number in range(3):
        prompt = factories.make_prompt(project, f"Question {number}", tags=["hard"] if number else [])
        comparison = factories.make_comparison(project, prompt=prompt, round_number=1 + number % 2)
        for who, ranks in ((alice, (1, 2)), (bob, (2, 1)))[: 1 + number % 2]:
            factories.make_judgment(comparison, who, ranks, comment=f"Comment {number}"[: 5 * number])

    def walk(order: str) -> list[int]:
        seen: list[int] = []
        query = f"order={order}"
        while query and len(seen) < 20:
            view = View(TABLES[table], project, QueryDict(query))
            assert len(view.lines) <= 2
            seen += [pk for pk, _ in view.lines]
            query = view.next_query
        return seen

    upwards = walk(column)
    assert walk(f"-{column}") == upwards[::-1]
    assert sorted(upwards) == sorted(TABLES[table].rows(project).values_list("pk", flat=True))


def test_a_sorted_column_orders_by_what_it_shows(project: Project, alice: User, bob: User):
    project.overlap = 2
    project.save()
    once, never, twice = (
        factories.make_comparison(project, prompt=factories.make_prompt(project, text))
        for text in ("green tea?", "Black tea?", "white tea?")
    )
    factories.make_judgment(once, alice)
    for who, ranks in ((alice, (1, 2)), (bob, (2, 1))):
        factories.make_judgment(twice, who, ranks)
    assert rows(project, "comparisons", "order=annotations") == [never.pk, once.pk, twice.pk]
    assert rows(project, "comparisons", "order=-annotations") == [twice.pk, once.pk, never.pk]
    assert rows(project, "comparisons", "order=prompt") == [never.pk, once.pk, twice.pk]
    assert rows(project, "comparisons", "order=state") == [once.pk, never.pk, twice.pk]
    # Only one has two annotations, which do not agree.
    assert rows(project, "comparisons", "order=-agreement")[0] == twice.pk
    assert rows(project, "comparisons", "order=-annotations&state=open") == [once.pk, never.pk]
    assert rows(project, "comparisons", "text=tea&order=prompt") == [never.pk, once.pk, twice.pk]
    assert rows(project, "comparisons", "order=nothing") == [twice.pk, never.pk, once.pk]


@pytest.mark.parametrize("order", ["", "oldest", "agreement", "-agreement", "-prompt"])
def test_the_page_of_a_comparison_leads_on_through_the_filtered_table(
    order: str, project: Project, carol: User, client_of: ClientOf
):
    for number in range(5):
        comparison = factories.make_comparison(project, round_number=1 + number % 2)
        Comparison.objects.filter(pk=comparison.pk).update(agreement=[None, 0.5, 0.5, 0.5, 1.0][number])
    query = QueryDict(f"round=1&order={order}")
    view = View(TABLES["comparisons"], project, query)
    listed = [pk for pk, _ in view.lines]
    assert len(listed) == 3
    for place, pk in enumerate(listed):
        before, after = [None, *listed][place], [*listed, None][place + 1]
        assert view.neighbours(pk) == (before, after)
    browser = client_of(carol)
    table = browser.get(reverse("data-comparisons", args=["tea"]), query).content.decode()
    address = f"{reverse('statistics-item', args=['tea', listed[1]])}?{view.leads_on}"
    assert f'href="{address}"' in table
    page = browser.get(address).content.decode()
    for near, key in ((listed[0], "ArrowLeft"), (listed[2], "ArrowRight")):
        near_address = reverse("statistics-item", args=["tea", near])
        assert f'href="{near_address}?{view.leads_on}" aria-keyshortcuts="{key}"' in page


def test_headings_sort_and_keep_filters_and_search(project: Project, carol: User, client_of: ClientOf):
    view = View(TABLES["comparisons"], project, QueryDict("text=tea&order=-annotations"))
    headings = {column.name: (query, direction) for column, query, direction in view.headings}
    assert headings["annotations"] == ("text=tea&order=annotations", "descending")
    assert headings["round"] == ("text=tea&order=-round", "")
    assert headings["prompt"] == ("text=tea&order=prompt", "")
    factories.make_comparison(project)
    address = reverse("data-comparisons", args=[project.slug])
    page = client_of(carol).get(address, {"order": "-annotations"}).content.decode()
    assert 'aria-sort="descending"' in page
    assert '<option value="-annotations" selected>' in page


def test_every_word_of_a_search_begins_a_word_of_the_text(project: Project):
    green = factories.make_prompt(project, "How long does green tea steep?")
    black = factories.make_prompt(project, "How long does black tea steep? Größe")
    assert rows(project, "prompts", "text=green steep") == [green.pk]
    assert rows(project, "prompts", "text=stee black") == [black.pk]
    assert rows(project, "prompts", "text=größe") == [black.pk]
    # Not within a word: "reen" begins none.
    assert rows(project, "prompts", "text=reen") == []
    assert rows(project, "prompts", "text=coffee") == []
    assert rows(project, "prompts", "text='!%26|():*") == [black.pk, green.pk]


def test_responses_and_comments_are_searched(project: Project, alice: User):
    comparison = factories.make_comparison(project, ("Two minutes.", "Ten hours."))
    judgment = factories.make_judgment(comparison, alice, comment="The second is absurd.")
    first = comparison.candidates.order_by("index")[0].completion
    assert rows(project, "responses", "text=minutes") == [first.pk]
    assert rows(project, "annotations", "text=absurd") == [judgment.pk]
    assert rows(project, "comparisons", "text=steep") == [comparison.pk]


def test_comparisons_with_low_agreement_are_found(project: Project, alice: User, bob: User):
    project.overlap = 2
    project.save()
    alike, apart, alone = (factories.make_comparison(project) for _ in range(3))
    for who in (alice, bob):
        factories.make_judgment(alike, who, (1, 2))
    factories.make_judgment(apart, alice, (1, 2))
    factories.make_judgment(apart, bob, (2, 1))
    factories.make_judgment(alone, alice, (1, 2))
    assert rows(project, "comparisons", "agreement=50") == [apart.pk]
    assert rows(project, "comparisons", "agreement=100") == [apart.pk]
    shown = {
        pk: [cell.text for column, cell in line if column.name == "agreement"] for pk, line in lines(project)
    }
    assert shown == {alike.pk: ["100%"], apart.pk: ["0%"], alone.pk: ["—"]}


def lines(project: Project) -> list[tuple[int, list[tuple[tables.Column, tables.Cell]]]]:
    return View(TABLES["comparisons"], project, QueryDict("")).lines


@pytest.mark.parametrize(("few", "common"), [(0, 1), (1000, 1000), (0, 1000)])
def test_search_tags_and_rounds_find_the_same_whether_few_or_many_match(
    few: int, common: int, project: Project, alice: User, bob: User, monkeypatch: pytest.MonkeyPatch
):
    # The ways to a page differ by how many rows match and where they lie; the page does not.
    monkeypatch.setattr(search, "FEW", few)
    monkeypatch.setattr(search, "_COMMON", common)
    monkeypatch.setattr(table, "_SMALL_ROUND", few)
    project.overlap = 2
    project.save()
    green = factories.make_prompt(project, "How long does green tea steep?", tags=["hard"])
    black = factories.make_prompt(project, "How long does black tea steep?", tags=["harder"])
    first = factories.make_comparison(project, ("Two minutes.", "Ten hours."), prompt=green, round_number=1)
    second = factories.make_comparison(project, ("Four minutes.", "A day."), prompt=black, round_number=2)
    judgments = [factories.make_judgment(second, who, (1, 2)) for who in (alice, bob)]
    judgments += [factories.make_judgment(first, who, (1, 2), comment="Hours!") for who in (alice, bob)]
    newest_first = [judgment.pk for judgment in reversed(judgments)]
    assert rows(project, "prompts", "text=green") == [green.pk]
    assert rows(project, "comparisons", "text=tea") == [second.pk, first.pk]
    assert rows(project, "comparisons", "text=black+tea") == [second.pk]
    assert len(rows(project, "responses", "text=minut")) == 2
    assert rows(project, "annotations", "text=hours") == newest_first[:2]
    assert rows(project, "prompts", "tag=hard") == [green.pk]
    assert rows(project, "comparisons", "tag=harder") == [second.pk]
    assert rows(project, "annotations", "tag=hard") == newest_first[:2]
    assert rows(project, "annotations", "round=2") == newest_first[2:]
    assert rows(project, "annotations", "round=2&order=oldest") == newest_first[:1:-1]
    view = View(TABLES["comparisons"], project, QueryDict("text=tea"))
    assert (view.count, view.counted_to_the_end) == (2, True)
    after = f"text=tea&after={second.pk}"
    assert rows(project, "comparisons", after) == [first.pk]


def test_comparisons_are_filtered_by_round_state_annotator_split_and_tag(project: Project, alice: User):
    prompt = factories.make_prompt(project, "Tagged?", tags=["hard"], split="held-out")
    tagged = factories.make_comparison(project, prompt=prompt, round_number=2)
    done = factories.make_comparison(project, round_number=1)
    Prompt.objects.filter(pk=done.prompt_id).update(split="train")
    factories.make_judgment(done, alice)
    assert rows(project, "comparisons", "round=2") == [tagged.pk]
    assert rows(project, "comparisons", "state=open") == [tagged.pk]
    assert rows(project, "comparisons", "state=annotated") == [done.pk]
    assert rows(project, "comparisons", f"annotator={alice.pk}") == [done.pk]
    assert rows(project, "comparisons", "split=held-out") == [tagged.pk]
    assert rows(project, "comparisons", "tag=hard") == [tagged.pk]
    assert rows(project, "prompts", "tag=hard") == [prompt.pk]


def test_annotations_are_filtered_by_preference(project: Project, alice: User, bob: User):
    first, second = (factories.make_comparison(project) for _ in range(2))
    factories.make_judgment(first, alice)
    unsure = factories.make_judgment(second, bob, (), verdict=Verdict.CANNOT_JUDGE)
    assert rows(project, "annotations", "preference=cannot_judge") == [unsure.pk]


def test_no_row_of_another_project_is_in_a_table(project: Project, alice: User, carol: User):
    other = factories.make_project(slug="coffee", annotators=[alice], managers=[carol])
    comparison = factories.make_comparison(other)
    factories.make_judgment(comparison, alice)
    assert [rows(project, name) for name in TABLES] == [[], [], [], []]
    assert all(rows(other, name) for name in TABLES)


@pytest.mark.parametrize(
    "query",
    [
        "round=abc&state=gone&agreement=7&annotator=-1&tag=none&split=x",
        "after=abc&columns=nothing&order=sideways",
        "after=99999999999999999999999",
    ],
)
def test_values_that_do_not_exist_are_ignored(project: Project, carol: User, client_of: ClientOf, query: str):
    comparison = factories.make_comparison(project)
    response = client_of(carol).get(reverse("data-comparisons", args=["tea"]) + f"?{query}")
    assert response.status_code == 200
    assert [pk for pk, _ in response.context["view"].lines] == [comparison.pk]


def test_chosen_columns_are_the_ones_that_are_shown(project: Project, carol: User, client_of: ClientOf):
    factories.make_comparison(project)
    address = reverse("data-comparisons", args=["tea"])
    page = client_of(carol).get(f"{address}?columns=prompt&columns=split").content.decode()
    head = page.split("<thead>")[1].split("</thead>")[0]
    assert "Split" in head
    assert "Annotations" not in head


@pytest.mark.parametrize("table", TABLES)
def test_a_table_costs_the_same_queries_for_many_rows(
    project: Project, alice: User, carol: User, client_of: ClientOf, table: str, django_assert_max_num_queries
):
    for _ in range(6):
        factories.make_judgment(factories.make_comparison(project), alice)
    browser = client_of(carol)
    browser.get(reverse(f"data-{table}", args=["tea"]))
    with django_assert_max_num_queries(18):
        browser.get(reverse(f"data-{table}", args=["tea"]))


def test_htmx_gets_the_rows_alone(project: Project, carol: User, client_of: ClientOf):
    factories.make_comparison(project)
    page = (
        client_of(carol)
        .get(reverse("data-comparisons", args=["tea"]), headers={"HX-Request": "true"})
        .content.decode()
    )
    assert page.lstrip().startswith("<form")
    assert "<html" not in page


def test_annotations_show_the_order_in_the_letters_that_their_annotator_saw(project: Project, alice: User):
    comparison = factories.make_comparison(project, ("One.", "Two.", "Three."))
    judgment = factories.make_judgment(comparison, alice, (2, 1, 1))
    ids = list(comparison.candidates.order_by("index").values_list("completion_id", flat=True))
    letter = {pk: "ABC"[place] for place, pk in enumerate(judgment.assignment.display_order)}
    best = " = ".join(sorted((letter[ids[1]], letter[ids[2]])))
    shown = [
        cell.text
        for _, line in View(TABLES["annotations"], project, QueryDict("")).lines
        for column, cell in line
        if column.name == "preference"
    ]
    assert shown == [f"{best} > {letter[ids[0]]}"]


def test_a_card_shows_the_beginnings_of_the_responses_in_the_order_of_their_numbers(project: Project):
    comparison = factories.make_comparison(project, ["First  one\n" + "word " * 100, "Second one", " "])
    other = factories.make_comparison(project, ["Third one", "Fourth one"])
    view = View(TABLES["comparisons"], project, QueryDict("layout=cards"))
    texts = {pk: excerpts for pk, _cells, excerpts in view.cards}
    assert texts[other.pk] == ["Third one", "Fourth one"]
    long, second, empty = texts[comparison.pk]
    assert long.startswith("First one word word")
    assert len(long) == 280
    assert (second, bool(empty.strip())) == ("Second one", True)


def test_cards_stay_cards_on_the_next_page_and_in_what_is_saved(
    project: Project, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tables, "ROWS_ON_A_PAGE", 1)
    for _ in range(2):
        factories.make_comparison(project)
    view = View(TABLES["comparisons"], project, QueryDict("layout=cards&order=oldest"))
    assert QueryDict(view.address_query) == QueryDict("order=oldest&layout=cards")
    assert View(TABLES["comparisons"], project, QueryDict(view.next_query)).is_in_cards
    assert not View(TABLES["comparisons"], project, QueryDict("layout=odd")).is_in_cards


def test_a_table_without_cards_stays_a_table(project: Project):
    factories.make_prompt(project)
    view = View(TABLES["prompts"], project, QueryDict("layout=cards"))
    assert (view.has_cards, view.is_in_cards, view.address_query) == (False, False, "")


def test_the_panel_holds_a_comparison_and_the_way_to_the_next_that_matches(
    project: Project, carol: User, client_of: ClientOf
):
    first, other, last = (factories.make_comparison(project, round_number=n) for n in (1, 2, 1))
    address = reverse("statistics-item", args=[project.slug, last.pk])
    headers = {"HX-Request": "true", "HX-Target": "comparison-panel"}
    page = client_of(carol).get(address, {"table": "round=1"}, headers=headers).content.decode()
    assert "<html" not in page
    assert reverse("statistics-item", args=[project.slug, first.pk]) in page
    assert reverse("statistics-item", args=[project.slug, other.pk]) not in page
    assert 'id="responses"' in page
