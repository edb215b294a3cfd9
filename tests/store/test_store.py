"""Folders in a store: whole or not at all, checked, gone on with after a cut."""

import hashlib
import json
import multiprocessing
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from training.store import (
    PIECE_BYTES,
    DamagedError,
    Listing,
    NotInStoreError,
    Objects,
    Store,
    StoreError,
    StoreUnreachableError,
    locked,
)


def written(folder: Path, **texts: str) -> Path:
    for name, text in texts.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def contents(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def cut_after(store: Store, monkeypatch: pytest.MonkeyPatch, what: str, count: int) -> None:
    """After so many calls the store does not answer any more."""
    real: Callable[..., object] = getattr(store._objects, what)
    left = [count]

    def call(*arguments: object) -> object:
        if not left[0]:
            raise StoreUnreachableError("The cable is cut.")
        left[0] -= 1
        return real(*arguments)

    monkeypatch.setattr(store._objects, what, call)


def noted(store: Store, monkeypatch: pytest.MonkeyPatch, what: str) -> list[str]:
    """The names with which the store is asked from now on."""
    names: list[str] = []
    real: Callable[..., object] = getattr(store._objects, what)

    def call(name: str, *arguments: object) -> object:
        names.append(name)
        return real(name, *arguments)

    monkeypatch.setattr(store._objects, what, call)
    return names


def test_a_folder_comes_out_as_it_went_in(store: Store, tmp_path: Path):
    big = bytes(range(256)) * (PIECE_BYTES // 256) + b"and a rest"
    origin = written(tmp_path / "one" / "kept", a_json="{}", empty_txt="", deep__er__b_txt="b")
    (origin / "big.bin").write_bytes(big)

    listing = store.publish("checkpoints/kept", origin)
    there = store.fetch("checkpoints/kept", tmp_path / "two" / "kept")

    assert contents(there) == contents(origin)
    assert set(contents(there)) == {"a.json", "empty.txt", "deep/er/b.txt", "big.bin"}
    assert store.names("checkpoints") == ["kept"]
    assert store.names("runs") == []
    assert listing.files["big.bin"].sha256 == hashlib.sha256(big).hexdigest()
    assert listing.files["big.bin"].size == PIECE_BYTES + 10
    assert [len(entry.pieces) for _, entry in sorted(listing.files.items())] == [1, 2, 1, 0]


def test_one_file_is_kept_as_a_file(store: Store, tmp_path: Path):
    origin = tmp_path / "one" / "0a.csv"
    origin.parent.mkdir()
    origin.write_text("prompt,answer\n")
    store.publish("imports/0a.csv", origin)
    assert store.fetch("imports/0a.csv", tmp_path / "two" / "0a.csv").read_text() == "prompt,answer\n"
    assert store.read("imports/0a.csv", "0a.csv") == b"prompt,answer\n"


def test_links_and_hidden_files_stay_at_home(store: Store, tmp_path: Path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret" / "key").write_text("hidden")
    origin = written(tmp_path / "run", a_txt="a", lock="1", state__x="x")
    (origin / ".partial").write_text("half")
    (origin / "link").symlink_to(tmp_path / "secret" / "key")
    (origin / "folder").symlink_to(tmp_path / "secret")
    listing = store.publish("runs/run", origin, left_out=("lock", "state"))
    assert list(listing.files) == ["a.txt"]


def test_a_folder_that_is_half_sent_is_not_there_and_goes_on_where_it_stopped(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    origin = tmp_path / "one" / "kept"
    origin.mkdir(parents=True)
    for number in range(5):
        (origin / f"{number}.bin").write_bytes(bytes([number]) * 100)
    with monkeypatch.context() as patch:
        cut_after(store, patch, "write", 3)
        with pytest.raises(StoreUnreachableError, match="The cable is cut"):
            store.publish("checkpoints/kept", origin)
    assert store.names("checkpoints") == []
    assert store.listing("checkpoints/kept") is None
    with pytest.raises(NotInStoreError):
        store.fetch("checkpoints/kept", tmp_path / "two" / "kept")
    assert not (tmp_path / "two" / "kept").exists()

    sent = noted(store, monkeypatch, "write")
    store.publish("checkpoints/kept", origin)
    # Two pieces were missing, and the listing comes last.
    assert len(sent) == 3
    assert sent[-1] == "listings/checkpoints/kept.json"
    assert contents(store.fetch("checkpoints/kept", tmp_path / "two" / "kept")) == contents(origin)


def test_a_folder_that_is_half_fetched_is_not_there_and_goes_on_where_it_stopped(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    origin = tmp_path / "one" / "kept"
    origin.mkdir(parents=True)
    for number in range(5):
        (origin / f"{number}.bin").write_bytes(bytes([number]) * 100)
    store.publish("checkpoints/kept", origin)
    into = tmp_path / "two" / "kept"
    with monkeypatch.context() as patch:
        # The listing and two pieces.
        cut_after(store, patch, "read", 3)
        with pytest.raises(StoreUnreachableError):
            store.fetch("checkpoints/kept", into)
    assert not into.exists()

    got = noted(store, monkeypatch, "read")
    assert contents(store.fetch("checkpoints/kept", into)) == contents(origin)
    assert len(got) == 4  # the listing and the three that were missing


def damage(store: Store, key: str, change: Callable[[bytes], bytes]) -> None:
    for piece in store._objects.sizes(f"pieces/{key}"):
        name = f"pieces/{key}/{piece}"
        store._objects.write(name, change(store._objects.read(name)))


@pytest.mark.parametrize("change", [lambda data: b"X" + data[1:], lambda data: data[:-1], lambda data: b""])
def test_a_piece_that_changed_in_the_store_is_refused_by_name(
    store: Store, tmp_path: Path, change: Callable[[bytes], bytes]
):
    store.publish("checkpoints/kept", written(tmp_path / "one" / "kept", weights_bin="precious"))
    damage(store, "checkpoints/kept", change)
    with pytest.raises(DamagedError, match=r"weights.bin of checkpoints/kept is damaged in the store"):
        store.fetch("checkpoints/kept", tmp_path / "two" / "kept")
    assert not (tmp_path / "two" / "kept").exists()
    assert store.damaged("checkpoints/kept") == ["weights.bin"]


def test_a_piece_that_is_gone_is_told(store: Store, tmp_path: Path):
    store.publish("checkpoints/kept", written(tmp_path / "one" / "kept", weights_bin="precious"))
    (piece,) = store._objects.sizes("pieces/checkpoints/kept")
    store._objects.remove(f"pieces/checkpoints/kept/{piece}")
    with pytest.raises(DamagedError, match="lacks a piece of checkpoints/kept"):
        store.fetch("checkpoints/kept", tmp_path / "two" / "kept")
    assert store.damaged("checkpoints/kept") == ["weights.bin"]


@pytest.mark.parametrize(
    "name", ["../out", "/etc/passwd", "a/../../out", "a\\..\\out", "", ".", "a//b", "a\0b"]
)
def test_a_listing_that_leads_out_of_its_folder_is_refused(store: Store, tmp_path: Path, name: str):
    origin = written(tmp_path / "one" / "kept", a_txt="a")
    entry = store.publish("checkpoints/kept", origin).files["a.txt"]
    store._objects.write("listings/checkpoints/kept.json", Listing({name: entry}).to_bytes())
    with pytest.raises(DamagedError, match="leads out of the folder"):
        store.fetch("checkpoints/kept", tmp_path / "two" / "kept")
    assert [path.name for path in (tmp_path / "two").iterdir() if not path.name.startswith(".")] == []


def test_a_listing_that_is_torn_or_changed_is_refused(tmp_path: Path):
    store = Store(f"file://{tmp_path / 'store'}")
    whole = store.publish("runs/a", written(tmp_path / "a", a_txt="a")).to_bytes()
    path = tmp_path / "store" / "listings" / "runs" / "a.json"
    other = json.loads(whole)
    other["files"]["b.txt"] = other["files"].pop("a.txt")
    for text in (whole[:-20], b"", b"[]", json.dumps(other).encode()):
        path.write_bytes(text)
        with pytest.raises(DamagedError, match=r"listings/runs/a.json in file://.* is damaged"):
            store.listing("runs/a")


def test_what_a_run_writes_on_comes_after_it_and_a_growing_file_grows(store: Store, tmp_path: Path):
    here, there = tmp_path / "one" / "run", tmp_path / "two" / "run"
    written(here, metrics_jsonl="1\n", status_json="at 1", state__step1="s")
    store.publish("runs/run", here)
    assert store.refresh("runs/run", there, left_out=("state",))
    assert contents(there) == {"metrics.jsonl": b"1\n", "status.json": b"at 1"}
    inode = (there / "metrics.jsonl").stat().st_ino

    with (here / "metrics.jsonl").open("a") as stream:
        stream.write("2\n")
    written(here, status_json="at 2", dropped_jsonl="x\n")
    store.publish("runs/run", here)
    assert store.refresh("runs/run", there, left_out=("state",))
    assert contents(there) == {"metrics.jsonl": b"1\n2\n", "status.json": b"at 2", "dropped.jsonl": b"x\n"}
    assert (there / "metrics.jsonl").stat().st_ino == inode
    # What an earlier state had and this one has not, goes.
    (here / "dropped.jsonl").unlink()
    store.publish("runs/run", here)
    assert store.refresh("runs/run", there, left_out=("state",))
    assert "dropped.jsonl" not in contents(there)
    assert not store.refresh("runs/run", there, left_out=("state",))
    # Whoever wants more gets the rest.
    assert store.refresh("runs/run", there)
    assert contents(there) == contents(here)


def test_a_copy_that_was_sent_is_never_overwritten_by_what_was_sent_before(store: Store, tmp_path: Path):
    here = written(tmp_path / "run", metrics_jsonl="1\n")
    store.publish("runs/run", here)
    written(here, metrics_jsonl="1\n2\n")
    assert not store.refresh("runs/run", here)
    assert (here / "metrics.jsonl").read_text() == "1\n2\n"


def test_a_crash_right_after_sending_leaves_the_copy_the_newer_one(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    here = written(tmp_path / "run", metrics_jsonl="1\n")
    store.publish("runs/run", here)
    written(here, metrics_jsonl="1\n2\n")

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Store, "_tidy", crash)
        with pytest.raises(KeyboardInterrupt):
            store.publish("runs/run", here)
    written(here, metrics_jsonl="1\n2\n3\n")
    assert not store.refresh("runs/run", here)


def test_another_machines_newer_state_takes_the_place_of_an_older_one(store: Store, tmp_path: Path):
    here, there = tmp_path / "one" / "run", tmp_path / "two" / "run"
    written(here, metrics_jsonl="1\n", state__step1="one")
    store.publish("runs/run", here)
    # Here it went on for a step that never reached the store; there another worker took over.
    written(here, metrics_jsonl="1\nlost\n", state__step9="lost")
    store.refresh("runs/run", there)
    written(there, metrics_jsonl="1\n2\n", state__step2="two")
    (there / "state" / "step1").unlink()
    store.publish("runs/run", there)

    assert store.refresh("runs/run", here)
    assert contents(here) == contents(there)


def test_a_page_fetches_nothing_beside_another_process_and_a_worker_waits_for_it(tmp_path: Path):
    store = Store(f"file://{tmp_path / 'store'}")
    there = tmp_path / "two" / "run"
    store.publish("runs/run", written(tmp_path / "one" / "run", metrics_jsonl="1\n"))
    waiting = threading.Thread(target=lambda: store.refresh("runs/run", there, wait=True))
    with locked(there):
        assert not store.refresh("runs/run", there)
        waiting.start()
        assert not there.exists()
    waiting.join()
    assert contents(there) == {"metrics.jsonl": b"1\n"}


def test_a_folder_that_is_not_here_is_never_sent_as_an_empty_one(store: Store, tmp_path: Path):
    with pytest.raises(StoreError, match="is not here"):
        store.publish("runs/run", tmp_path / "nowhere" / "run")
    assert store.names("runs") == []


def test_who_lost_the_claim_publishes_nothing(store: Store, tmp_path: Path):
    here = written(tmp_path / "run", metrics_jsonl="1\n")
    store.publish("runs/run", here)
    written(here, metrics_jsonl="1\n2\n")

    def lost() -> None:
        raise PermissionError("someone else has it")

    with pytest.raises(PermissionError):
        store.publish("runs/run", here, still_ours=lost)
    assert store.read("runs/run", "metrics.jsonl") == b"1\n"


def test_what_is_removed_is_gone_with_its_pieces(store: Store, tmp_path: Path):
    origin = written(tmp_path / "run", a_txt="a", state__x="x")
    store.publish("runs/run", origin)
    store.remove("runs/run", inside="state")
    assert set(store.listing("runs/run").files) == {"a.txt"}
    assert len(store._objects.sizes("pieces/runs/run")) == 1
    store.remove("runs/run")
    assert store.names("runs") == []
    assert store._objects.sizes("pieces") == {}
    store.remove("runs/run")


def _fetch_it(url: str, into: str, start: object, results: "multiprocessing.Queue[str]") -> None:
    start.wait()  # type: ignore[attr-defined]
    try:
        folder = Store(url).fetch("checkpoints/kept", Path(into))
        results.put(",".join(sorted(path.name for path in folder.iterdir())))
    except Exception as error:
        results.put(repr(error))


def test_several_processes_that_fetch_one_folder_at_once_all_get_it_whole(tmp_path: Path):
    url = f"file://{tmp_path / 'store'}"
    Store(url).publish("checkpoints/kept", written(tmp_path / "one" / "kept", a_txt="a", b_txt="b" * 99_999))
    context = multiprocessing.get_context("spawn")
    start, results = context.Event(), context.Queue()
    into = str(tmp_path / "two" / "kept")
    processes = [context.Process(target=_fetch_it, args=(url, into, start, results)) for _ in range(3)]
    for process in processes:
        process.start()
    start.set()
    assert [results.get(timeout=120) for _ in processes] == ["a.txt,b.txt"] * 3
    for process in processes:
        process.join()


def test_a_store_that_does_not_answer_says_so_and_what_to_look_at(
    s3_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    # Nobody listens on the discard port; the library's own patience is not what is tested.
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr("training.store._options", lambda protocol: {"skip_instance_cache": True})
    with pytest.raises(StoreUnreachableError, match=r"does not answer .*Check RONDO_STORE_URL"):
        Store(s3_url).publish("runs/run", written(tmp_path / "run", a_txt="a"))


def test_a_bucket_that_is_not_there_is_told(s3_url: str, tmp_path: Path):
    with pytest.raises(StoreUnreachableError, match="bucket"):
        Store("s3://there-is-none-of-this-name").publish("runs/run", written(tmp_path / "run", a_txt="a"))


def test_an_address_that_nothing_can_open_is_refused():
    with pytest.raises(StoreError, match="nonsense://x"):
        Objects("nonsense://x")
