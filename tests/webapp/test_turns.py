"""Labelling requests of one process take turns; other pages do not wait for them."""

from concurrent.futures import ThreadPoolExecutor
from threading import Event, Thread
from time import sleep

import pytest
from django.http import HttpRequest, HttpResponse
from django.test import RequestFactory

from webapp.turns import LabellingTakesTurns, Queue

PATIENCE = 30


class Slow:
    """A view that says when it has begun, and ends when it is told to."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.go_on: dict[str, Event] = {}
        self.entered: dict[str, Event] = {}
        for path in ("/projects/tea/label/", "/projects/tea/label/7/submit/", "/projects/tea/"):
            self.go_on[path], self.entered[path] = Event(), Event()

    def __call__(self, request: HttpRequest) -> HttpResponse:
        self.begun.append(request.path_info)
        self.entered[request.path_info].set()
        assert self.go_on[request.path_info].wait(PATIENCE)
        return HttpResponse("done")


def test_a_second_labelling_request_begins_when_the_first_is_done_and_others_go_on():
    view = Slow()
    middleware = LabellingTakesTurns(view)
    requests = RequestFactory()
    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(middleware, requests.get("/projects/tea/label/"))
        assert view.entered["/projects/tea/label/"].wait(PATIENCE)
        second = pool.submit(middleware, requests.post("/projects/tea/label/7/submit/"))
        other = pool.submit(middleware, requests.get("/projects/tea/"))
        assert view.entered["/projects/tea/"].wait(PATIENCE)
        view.go_on["/projects/tea/"].set()
        assert other.result(PATIENCE).content == b"done"
        assert view.begun == ["/projects/tea/label/", "/projects/tea/"]
        assert not second.done()
        view.go_on["/projects/tea/label/"].set()
        view.go_on["/projects/tea/label/7/submit/"].set()
        assert first.result(PATIENCE).content == second.result(PATIENCE).content == b"done"
    assert view.begun[-1] == "/projects/tea/label/7/submit/"


def test_a_request_that_fails_ends_its_turn():
    def fails(request: HttpRequest) -> HttpResponse:
        raise ValueError("broken")

    middleware = LabellingTakesTurns(fails)
    for _ in range(2):
        with pytest.raises(ValueError, match="broken"):
            middleware(RequestFactory().get("/projects/tea/label/"))


def test_who_came_first_is_first():
    queue, served = Queue(), []
    queue.__enter__()
    threads = []
    for number in range(6):

        def take_turn(number: int = number) -> None:
            with queue:
                served.append(number)

        threads.append(Thread(target=take_turn))
        threads[-1].start()
        while len(queue._waiting) <= number:
            sleep(0.001)
    queue.__exit__(None, None, None)
    for thread in threads:
        thread.join(timeout=10)
    assert served == [0, 1, 2, 3, 4, 5]


def test_a_turn_that_fails_is_given_on():
    queue = Queue()
    with pytest.raises(ValueError, match="lost"), queue:
        raise ValueError("lost")
    with queue:
        assert queue._taken
    assert not queue._taken
