"""Requests to a judge, the reading of its reply, and the result of several orders: worked out by hand."""

import pytest

from training.judging import (
    DEFAULT_TEMPLATE,
    REPEAT,
    Chat,
    JudgeReply,
    UnreadableError,
    ask,
    check_template,
    conclude,
    fill,
    question,
    read_ranking,
    rotations,
)

CHAT = [{"role": "user", "content": "Why {answers}?"}]


def reply(order: tuple[int, ...], ranking: str, reason: str = "Because.") -> JudgeReply:
    text = f"{reason}\nRanking: {ranking}"
    return JudgeReply(order=order, text=text, ranks=read_ranking(text, order))


def test_the_default_template_asks_with_guidelines_conversation_and_answers_under_letters():
    check_template(DEFAULT_TEMPLATE)
    [turn] = question(
        DEFAULT_TEMPLATE,
        guidelines="Be {example}.",
        conversation=CHAT,
        answers=["Tea.", "Coffee {guidelines}."],
    )
    assert turn["role"] == "user"
    text = turn["content"]
    for part in (
        "<guidelines>\nBe {example}.\n</guidelines>",
        "<conversation>\nuser: Why {answers}?\n</conversation>",
        "<answer A>\nTea.\n</answer A>",
        "<answer B>\nCoffee {guidelines}.\n</answer B>",
        "Ranking: B > A\n",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("template", "wrong"),
    [("{conversation}", "answers"), ("{answers}", "conversation"), ("{answers}{conversation}{x}", "x")],
)
def test_a_template_that_shows_nothing_to_judge_is_refused(template: str, wrong: str):
    with pytest.raises(ValueError, match=rf"\{{{wrong}\}}"):
        check_template(template)


def test_every_answer_stands_in_every_place_once():
    assert rotations([7, 8]) == [(7, 8), (8, 7)]
    assert rotations([1, 2, 3]) == [(1, 2, 3), (2, 3, 1), (3, 1, 2)]


@pytest.mark.parametrize(
    ("line", "ranks"),
    [
        ("B > A > C", {20: 1, 10: 2, 30: 3}),
        ("A=C>B", {10: 1, 30: 1, 20: 2}),
        ("C > A = B", {30: 1, 10: 2, 20: 2}),
        ("A = B = C", {10: 1, 20: 1, 30: 1}),
        ("none", None),
    ],
)
def test_the_last_line_is_read(line: str, ranks: dict[int, int] | None):
    assert read_ranking(f"A is short.\n\n  Ranking: {line}  \n\n", (10, 20, 30)) == ranks


@pytest.mark.parametrize(
    "text",
    [
        "",
        "A is better.",
        "Ranking: A > B > C\nThat is why.",
        "**Ranking: A > B > C**",
        "ranking: A > B > C",
        "Ranking: A > B",
        "Ranking: A > B > B",
        "Ranking: A > B > C > D",
        "Ranking: A, B, C",
        "Ranking: A > B > C.",
        "Ranking: a > b > c",
        "Ranking: A >> B > C",
        "Ranking: None",
    ],
)
def test_what_is_not_exactly_in_the_form_is_not_guessed_at(text: str):
    with pytest.raises(UnreadableError):
        read_ranking(text, (10, 20, 30))


def test_a_pair_has_a_winner_only_where_both_orders_name_it():
    agreed = conclude([reply((1, 2), "A > B", "One is right."), reply((2, 1), "B > A")])
    assert (agreed.ranks, agreed.orders_agree, agreed.reason) == ({1: 1, 2: 2}, True, "One is right.")
    # Whatever stood first won: that says nothing of the answers.
    leaning = conclude([reply((1, 2), "A > B"), reply((2, 1), "A > B")])
    assert (leaning.ranks, leaning.orders_agree) == ({1: 1, 2: 1}, False)
    assert "another order" in leaning.reason
    # One winner and one tie: mean ranks (1 + 1.5) / 2 and (2 + 1.5) / 2 are ½ apart, and that is a tie.
    half = conclude([reply((1, 2), "A > B"), reply((2, 1), "A = B")])
    assert half.ranks == {1: 1, 2: 1}


def test_of_several_answers_those_apart_by_more_than_half_a_rank_differ():
    # Ranks: 1 2 3, then 1 3 2, then 1 2 3 of answers 1, 2, 3: means 1, 7/3, 8/3. The last two are ⅓ apart.
    replies = [
        reply((1, 2, 3), "A > B > C"),
        reply((2, 3, 1), "C > B > A"),
        reply((3, 1, 2), "B > C > A"),
    ]
    assert conclude(replies).ranks == {1: 1, 2: 2, 3: 2}


def test_tied_answers_share_the_mean_of_their_places():
    # Answers 1 and 2 tie at the top in each order: mid-ranks 1.5, 1.5, 3.
    replies = [
        reply((1, 2, 3), "A = B > C"),
        reply((2, 3, 1), "A = C > B"),
        reply((3, 1, 2), "B = C > A"),
    ]
    conclusion = conclude(replies)
    assert (conclusion.ranks, conclusion.orders_agree) == ({1: 1, 2: 1, 3: 2}, True)


def test_one_order_that_cannot_be_judged_leaves_the_whole_unjudged():
    unread = JudgeReply(order=(2, 1), text="Hm.", ranks=None, problem="The last line is not of the form.")
    conclusion = conclude([reply((1, 2), "A > B"), unread])
    assert conclusion.ranks is None
    assert conclusion.reason == "Cannot judge: The last line is not of the form.\n\nHm."
    said_so = conclude([reply((1, 2), "none", "Both are in Finnish."), reply((2, 1), "A > B")])
    assert (said_so.ranks, said_so.reason) == (None, "Cannot judge.\n\nBoth are in Finnish.")


def test_a_filled_text_is_not_searched_and_braces_that_are_no_field_stay():
    [turn] = fill("{first} {set} {second}", {"first": "{second}", "second": "b"})
    assert turn == {"role": "user", "content": "{second} {set} b"}


def test_a_reply_that_cannot_be_read_is_asked_for_again_and_the_last_one_is_named():
    replies = ["one", "two", "three"]
    chats: list[Chat] = []

    def send(chat: Chat) -> str:
        chats.append(chat)
        return replies[len(chats) - 1]

    def read(text: str) -> str:
        if text != "two":
            raise UnreadableError(f"Not {text}.")
        return text

    first = [{"role": "user", "content": "Which?"}]
    assert ask(first, send, read, attempts=3) == "two"
    assert chats[1] == [
        *first,
        {"role": "assistant", "content": "one"},
        {"role": "user", "content": f"Not one. {REPEAT}"},
    ]
    with pytest.raises(UnreadableError, match=r"Not three\.") as caught:
        ask(first, send, read, attempts=1)
    assert caught.value.reply == "three"
