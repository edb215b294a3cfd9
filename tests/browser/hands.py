"""A newcomer's steps by hand, once around the loop, on a Rondo that runs at an address.

Used by the browser test on a tiny model, and by anyone who wants to see the same on the real one.
"""

import json
import re
from dataclasses import dataclass

from playwright.sync_api import Browser, Locator, Page, Response, expect

PATIENCE = 300_000
"""Milliseconds that a step of training or an answer may take on a slow machine."""

_PAIR_KEYS = "18246"
_ORDERS = ("bc=da", "a=bcd", "dcba", "b=c=da")


@dataclass(frozen=True, kw_only=True)
class Judged:
    """The judgments submitted to Rondo, to be found again."""

    pairs: int
    rankings: int
    spans: int
    missing: int


def _is_a_submit(answer: Response) -> bool:
    return answer.request.method == "POST" and answer.url.endswith("/submit/")


class Hands:
    """One person in one browser window, on the Rondo at `address`."""

    def __init__(self, browser: Browser, address: str) -> None:
        self.address = address
        context = browser.new_context(viewport={"width": 1400, "height": 900})
        self.page: Page = context.new_page()
        self.page.set_default_timeout(120_000)
        self.complaints: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on(
            "console",
            lambda message: (
                self.complaints.append(message.text) if "Content Security" in message.text else None
            ),
        )

    def sign_in(self, name: str, password: str) -> None:
        self.page.goto(self.address)
        self.page.get_by_label("Username").fill(name)
        self.page.get_by_label("Password").fill(password)
        self.page.get_by_role("button", name="Sign in").click()
        expect(self.page.get_by_role("heading", name="Projects")).to_be_visible()

    # ── 1. Judge ──────────────────────────────────────────────────────────────────────

    def begin_to_judge(self) -> None:
        """Open the labelling screen and wait for something to judge."""
        self.page.goto(f"{self.address}/projects/first-project/label/")
        expect(self.page.locator("form#judgment")).to_be_visible(timeout=PATIENCE)

    def judge_one(self, turn: int) -> None:
        """Judge what is on the screen; `turn` varies the answer."""
        is_pair = self.page.locator("#screen").get_attribute("data-size") == "2"
        keys = _PAIR_KEYS if is_pair else _ORDERS
        self.page.keyboard.type(keys[turn % len(keys)])
        self._submit()

    def judge(self, *, pairs: int, rankings: int, spans: int = 2) -> Judged:
        """Judge until at least so many pairs and rankings are done; two spans, one missing info."""
        self.page.goto(f"{self.address}/projects/first-project/label/")
        done = {"pairs": 0, "rankings": 0, "spans": 0, "missing": 0}
        while done["pairs"] < pairs or done["rankings"] < rankings:
            expect(self.page.locator("form#judgment")).to_be_visible(timeout=PATIENCE)
            if done["spans"] < spans:
                done["spans"] += self._mark("iu"[done["spans"] % 2])
            elif not done["missing"]:
                self._miss("The year in which it happened")
                done["missing"] += 1
            is_pair = self.page.locator("#screen").get_attribute("data-size") == "2"
            kind, keys = ("pairs", _PAIR_KEYS) if is_pair else ("rankings", _ORDERS)
            self.page.keyboard.type(keys[done[kind] % len(keys)])
            done[kind] += 1
            self._submit()
        return Judged(**done)

    def _submit(self) -> None:
        """Submit, and once more where the page asks first, until the server has it."""
        key = self.page.locator('input[name="idempotency_key"]').input_value()
        doubts = self.page.locator("#doubts")
        status = 422
        while status == 422:
            with self.page.expect_response(_is_a_submit, timeout=PATIENCE) as answered:
                self.page.keyboard.press("Control+Enter")
                # The page asks at the key itself, before anything is sent.
                if doubts.is_visible():
                    self.page.keyboard.press("Control+Enter")
            status = answered.value.status
            if status == 422:
                expect(self.page.locator('#judgment input[name="confirmed"]')).not_to_have_value("")
        expect(self.page.locator(f'input[name="idempotency_key"][value="{key}"]')).to_have_count(0)

    def _mark(self, key: str) -> int:
        """Mark the first word of the first answer that has one; 0 where no answer has any."""
        for answer in self.page.locator("[data-answer]").all():
            if not re.search(r"\w", answer.inner_text()):
                continue
            answer.focus()
            self.page.keyboard.press("Shift+ArrowRight")
            self.page.keyboard.press("Shift+ArrowRight")
            self.page.keyboard.press(key)
            expect(self.page.locator(".flag").first).to_be_visible()
            return 1
        return 0

    def _miss(self, text: str) -> None:
        self.page.locator("[data-answer]").first.focus()
        self.page.keyboard.press("m")
        self.page.keyboard.type(text)
        self.page.keyboard.press("Escape")

    # ── 2. Train ──────────────────────────────────────────────────────────────────────

    def open_round_in_the_admin(self) -> None:
        self.page.goto(f"{self.address}/admin/")
        self.page.get_by_role("link", name="Rounds", exact=True).first.click()
        self.page.locator("#result_list").get_by_role("link", name="round 1").first.click()
        expect(self.page.locator("#round-progress")).to_be_visible()

    def change_recipe(self, *, steps: int, save_every: int) -> None:
        """Ask for longer training, so that there is a middle in which to cancel and to kill."""
        field = self.page.locator("textarea[name=recipe]")
        recipe = json.loads(field.input_value())
        # The settings themselves, not what the annotations would choose: a head is fitted in one step.
        recipe["reward"]["features"], recipe["policy_method"] = "adapted", "fixed"
        recipe["evaluation"]["people"] = False
        # Short responses to few prompts: how good they are is no question here.
        recipe["evaluation"]["prompts"] = 4
        for sampling in (recipe["sampling"], recipe["evaluation"]["sampling"]):
            sampling["max_tokens"] = 24
        for method in ("reward", "policy"):
            recipe[method]["optimiser"] |= {"epochs": 1000, "max_steps": steps, "save_every": save_every}
        # A tiny model is better or worse by chance alone: one condition that holds stands for all.
        recipe["promotion"] |= {"not_worse": False, "most_length_ratio": 1000.0}
        field.fill(json.dumps(recipe))
        self.page.get_by_role("button", name="Save and continue editing").click()
        expect(self.page.locator(".messagelist")).to_contain_text("changed successfully")

    def start_training(self) -> None:
        self.page.locator("#round-start").click()
        self.page.get_by_role("button", name="Start training round").click()
        expect(self.page.locator("#round-cancel")).to_be_visible()

    def step(self, name: str) -> Locator:
        """The row of a step in the admin's live table."""
        return self.page.locator("#round-progress tbody tr").filter(has_text=name)

    def wait_for_training_step(self, name: str, at_least: int) -> int:
        """Wait, without a reload, until a step has trained so far; the training step now."""
        progress = self.step(name).locator("progress")
        expect(progress).to_be_visible(timeout=PATIENCE)
        for _ in range(PATIENCE // 200):
            # The table replaces itself every two seconds, so the element is looked up anew each time.
            if (now := int(progress.get_attribute("value") or 0)) >= at_least:
                return now
            self.page.wait_for_timeout(200)
        raise AssertionError(f"{name} did not come to step {at_least}: {self.step(name).inner_text()}")

    def cancel(self) -> None:
        self.page.locator("#round-cancel").click()
        self.page.locator("#confirm").click()
        expect(self.page.locator("#round-again")).to_be_visible(timeout=PATIENCE)

    def start_again(self) -> None:
        self.page.locator("#round-again").click()
        self.page.locator("#confirm").click()
        expect(self.page.locator("#round-cancel")).to_be_visible()

    def wait_until_trained(self, milliseconds: int = 3 * PATIENCE) -> None:
        title = self.page.locator("#round-progress-title")
        expect(title).to_have_text(re.compile("promoted|rejected|failed|cancelled"), timeout=milliseconds)
        assert "promoted" in title.inner_text(), self.page.locator("#round-progress").inner_text()

    # ── 3. Compare ────────────────────────────────────────────────────────────────────

    def compare(self, first: str, second: str, question: str) -> list[str]:
        """Ask two checkpoints a typed question, names in sight; the scores once both have answered."""
        self.page.goto(f"{self.address}/compare/?project=first-project")
        self.page.get_by_label("First").select_option(label=first)
        self.page.get_by_label("Second").select_option(label=second)
        self.page.get_by_label("Or type one").fill(question)
        self.page.get_by_label("Show names before the vote").check()
        self.page.get_by_role("button", name="Generate").click()
        expect(self.page.get_by_role("heading", name="Which is better?")).to_be_visible(timeout=PATIENCE)
        return self.page.locator(".stat__value").all_inner_texts()
