"""Redirects of a web server are followed within that server only, unless the user allows other servers."""

from __future__ import annotations

from pathlib import Path

import pytest

from framedex.errors import FramedexError, StorageError
from framedex.storage import objects, web
from tests.support.web import serving

CONTENT = bytes(range(256)) * 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.bin").write_bytes(CONTENT)
    return tmp_path


@pytest.mark.parametrize("spelling", ["/a.bin", "a.bin", "{home}/a.bin", "//{host}/a.bin"])
def test_a_redirect_within_the_server_is_followed(spelling: str, folder: Path) -> None:
    redirects: dict[str, str] = {}
    with serving(folder, etags=True, redirects=redirects) as home:
        redirects["/old.bin"] = spelling.format(home=home, host=home.removeprefix("http://"))
        facts = objects.head(f"{home}/old.bin")
        assert facts.size_bytes == len(CONTENT)
        data, same = objects.fetch(f"{home}/old.bin", 10, 300, facts)
        assert (bytes(data), same) == (CONTENT[10:300], facts)


def test_a_redirect_to_another_server_is_refused_and_that_one_not_asked(folder: Path) -> None:
    asked: list[str] = []
    redirects: dict[str, str] = {}
    with (
        serving(folder, etags=True, requests=asked) as other,
        serving(folder, etags=True, redirects=redirects) as home,
    ):
        for location in (
            f"{other}/a.bin",
            f"//{other.removeprefix('http://')}/a.bin",
            f"{home.replace('http', 'https')}/a.bin",
        ):
            redirects["/old.bin"] = location
            for ask in (objects.head, lambda uri: objects.fetch(uri, 0, 10)):
                with pytest.raises(StorageError, match="FRAMEDEX_STORAGE_REDIRECTS=scheme") as error:
                    ask(f"{home}/old.bin")
                assert (error.value.kind, error.value.where) == ("redirected", f"{home}/old.bin")
                assert str(error.value.found).endswith("/a.bin")
    assert asked == []


@pytest.mark.parametrize(
    "location", ["file:///etc/passwd", "gopher://127.0.0.1:1/", "http://127.0.0.1:port/", "http://u:p@{host}/a.bin"]
)
def test_a_redirect_to_what_is_no_web_address_of_its_own_is_refused(location: str, folder: Path) -> None:
    redirects: dict[str, str] = {}
    with serving(folder, etags=True, redirects=redirects) as home:
        redirects["/old.bin"] = location.format(host=home.removeprefix("http://"))
        with pytest.raises(StorageError) as error:
            objects.head(f"{home}/old.bin")
    assert error.value.kind == "redirected"
    assert "u:p" not in str(error.value)


def test_a_redirect_goes_where_the_user_says_without_credentials(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []
    redirects: dict[str, str] = {}
    with (
        serving(folder, etags=True, requests=asked) as other,
        serving(folder, etags=True, redirects=redirects) as home,
    ):
        redirects["/old.bin"] = f"{other}/a.bin"
        monkeypatch.setenv(web.REDIRECTS, f"https://example.org, {other}")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "not-to-be-sent")
        facts = objects.head(f"{home}/old.bin")
        assert bytes(objects.fetch(f"{home}/old.bin", 5, 9, facts)[0]) == CONTENT[5:9]
    assert len(asked) == 2
    for line in asked:
        assert not [word for word in ("Authorization", "Cookie", "not-to-be-sent") if word in line]


def test_a_loop_of_redirects_ends_soon(folder: Path) -> None:
    asked: list[str] = []
    loop = {"/x": "/y", "/y": "/x"}
    with (
        serving(folder, etags=True, redirects=loop, requests=asked) as home,
        pytest.raises(StorageError, match="redirects too often"),
    ):
        objects.head(f"{home}/x")
    assert len(asked) == web.MAX_REDIRECTS + 1


@pytest.mark.parametrize("value", ["example.org", "ftp://example.org", "https://example.org/path", "http://h:port"])
def test_servers_that_redirects_may_lead_to_are_addresses(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(web.REDIRECTS, value)
    with pytest.raises(FramedexError, match="must be a list of servers"):
        web.allowed_origins()


def test_what_a_server_refuses_has_its_kind(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(objects.RETRIES, "0")
    with serving(folder, etags=True) as home:
        facts = objects.head(f"{home}/a.bin")
        with pytest.raises(StorageError) as error:
            objects.head(f"{home}/missing.bin")
        assert error.value.kind == "missing"
        (folder / "a.bin").write_bytes(CONTENT[::-1])
        with pytest.raises(StorageError) as error:
            objects.fetch(f"{home}/a.bin", 0, 10, facts)
        assert error.value.kind == "changed"
        assert bytes(objects.fetch(f"{home}/a.bin", len(CONTENT) - 3, len(CONTENT) + 9)[0]) == CONTENT[::-1][-3:]
        assert bytes(objects.fetch_end(f"{home}/a.bin", 7)[0]) == CONTENT[::-1][-7:]


def test_many_ranges_come_over_few_connections(folder: Path) -> None:
    with serving(folder, etags=True) as home:
        facts = objects.head(f"{home}/a.bin")
        ranges = [(begin, begin + 100) for begin in range(0, 10_000, 100)]
        found = objects.fetch_many(f"{home}/a.bin", ranges, facts)
    assert b"".join(map(bytes, found)) == CONTENT[:10_000]


def test_a_server_that_is_gone_is_asked_again_and_then_said_to_be(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(folder, etags=True) as home:
        pass
    monkeypatch.setenv(objects.RETRIES, "1")
    monkeypatch.setattr(objects, "TRIES", 1)
    with pytest.raises(StorageError) as error:
        objects.head(f"{home}/a.bin")
    assert error.value.kind == "unanswered"
