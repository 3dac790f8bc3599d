"""The browser answers its own page only: other hosts, other sites, other paths and large bodies are refused."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from framedex.errors import FramedexError
from tests.support.audited import write_rows
from tests.support.datasets import content
from tests.support.served import Client, served


@pytest.fixture(scope="module")
def client(synthetic: Path) -> Iterator[Client]:
    with served(synthetic / "DS") as found:
        yield found


def test_the_page_loads_nothing_from_elsewhere(client: Client) -> None:
    answer = client.get("")
    assert answer.status == 200
    policy = answer.content.decode().split('http-equiv="Content-Security-Policy" content="')[1].split('"')[0]
    rules = dict(rule.split(" ", 1) for rule in policy.split("; "))
    assert rules["default-src"] == "'none'"
    assert (rules["connect-src"], rules["media-src"]) == ("'self'", "blob:")
    assert rules["img-src"] == "data: blob:"
    assert rules["script-src"].startswith("'sha256-")
    assert b"http://" not in answer.content
    assert b"https://" not in answer.content
    assert answer.headers["Referrer-Policy"] == "no-referrer"
    assert answer.headers["Content-Security-Policy"] == "frame-ancestors 'none'"


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:{port}"},
        {"Host": "127.0.0.1"},
        {"Host": "127.0.0.1:1"},
        {"Host": ""},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "https://127.0.0.1:{port}"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=str,
)
def test_a_request_of_another_site_is_refused(headers: dict[str, str], client: Client) -> None:
    sent = {name: value.format(port=client.address.port) for name, value in headers.items()}
    answer = client.raw(f"/{client.address.token}/subject", headers=sent)
    assert answer.status == 403
    assert client.address.token.encode() not in answer.content


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST"])
def test_the_page_itself_is_answered(host: str, client: Client) -> None:
    own = f"{host}:{client.address.port}"
    headers = {"Host": own, "Origin": f"http://{own}", "Sec-Fetch-Site": "same-origin"}
    assert client.raw(f"/{client.address.token}/subject", headers=headers).json()["kind"] == "dataset"


@pytest.mark.parametrize(
    "path",
    ["/", "/subject", "/{wrong}/subject", "/{token}", "/{token}x/", "{token}/subject", "/é/"],
)
def test_a_request_without_the_token_is_refused(path: str, client: Client) -> None:
    token = client.address.token
    answer = client.raw(path.format(token=token, wrong=token[:-1] + "!").replace("é", "%C3%A9"))
    assert answer.status in (400, 403)
    assert b"DS" not in answer.content


@pytest.mark.parametrize(
    "path", ["../dataset.json", "..%2f..%2fetc/passwd", "dataset.json", "browser.js", "//etc/passwd"]
)
def test_no_path_leads_to_a_file(path: str, client: Client) -> None:
    assert client.raw(f"/{client.address.token}/{path}").status == 404


def test_other_methods_and_bodies_are_refused(client: Client) -> None:
    path = f"/{client.address.token}/items"
    assert client.raw(path, method="PUT", body=b"{}").status == 501
    assert client.raw(path).status == 404, "a resource with a body is no page"
    assert client.raw(path, method="POST", body=b"no JSON").status == 400
    assert client.raw(path, method="POST", headers={"Content-Length": str(1 << 30)}).status == 413
    assert client.raw(path, method="POST").status == 400


@pytest.mark.parametrize("length", ["-1", "²", "9" * 5000, "1_0", "2.0", "+3", ""])
def test_a_length_that_is_no_number_is_explained(length: str, client: Client) -> None:
    answer = client.raw(f"/{client.address.token}/items", method="POST", headers={"Content-Length": length})
    assert (answer.status, b"Content-Length" in answer.content) == (400, True)


@pytest.mark.parametrize(
    "body",
    [
        [],
        {},
        {"wanted": {}, "page": -1},
        {"wanted": {}, "page": True},
        {"wanted": {"filters": 1}, "page": 0},
        {"wanted": {"filters": [{"column": "uri"}]}, "page": 0},
        {"wanted": {"other": 1}, "page": 0},
        {"wanted": {"sort": "nothing"}, "page": 0},
        {"wanted": {"finding": "nothing"}, "page": 0},
    ],
    ids=str,
)
def test_wrong_parameters_are_explained(body: object, client: Client) -> None:
    answer = client.post("items", body)
    assert answer.status == 422
    assert answer.content


def test_a_wrong_number_is_explained(client: Client) -> None:
    assert b"a whole number" in client.get("picture", key="0", place="-1").content
    assert b"a whole number" in client.get("picture", key="0", place="٣").content
    assert b"no such clip" in client.get("item", key="99999999").content
    assert b"no such clip" in client.get("poster", key="x").content


@pytest.mark.parametrize("number", ["9" * 5000, "²", "٣", "-0", "1_0"])
def test_a_number_in_other_digits_is_explained(number: str, client: Client) -> None:
    for resource in ("item", "poster", "sound"):
        answer = client.get(resource, key=number)
        assert (answer.status, b"no such clip" in answer.content) == (422, True)
    assert b"first must be a whole number" in client.get("item", key="0", first=number).content


def test_each_browser_has_a_token_of_its_own(tmp_path: Path) -> None:
    index = write_rows(tmp_path / "INDEX")
    addresses = []
    for _ in range(10):
        with served(index) as client:
            addresses.append(client.address)
    tokens = {address.token for address in addresses}
    assert len(tokens) == 10
    assert min(map(len, tokens)) >= 43
    assert not any(address.token in repr(address) for address in addresses)


def test_a_port_that_is_taken_is_an_error(client: Client, synthetic: Path) -> None:
    with (
        pytest.raises(FramedexError, match=f"--port {client.address.port}"),
        served(synthetic / "DS", port=client.address.port),
    ):
        pass


def test_browsing_changes_nothing(synthetic: Path) -> None:
    before = content(synthetic)
    with served(synthetic / "DS") as client:
        client.get("")
        client.keys(filters=[{"column": "label", "operation": "=", "value": "cook"}])
        client.post("sql", {"sql": "SELECT * FROM clips"})
    assert content(synthetic) == before
