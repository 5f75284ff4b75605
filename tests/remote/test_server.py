"""Servers by name and by address, and what the operator's file may say."""

from pathlib import Path

import pytest

from backend.errors import DerbyError
from backend.remote.server import VARIABLE, named_servers, read_servers, server_at


def written(folder: Path, text: str) -> Path:
    path = folder / "servers.toml"
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("address", "url"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080/v1"),
        ("https://a.example/v1/", "https://a.example/v1"),
        ("http://[::1]:8000/some/path", "http://[::1]:8000/some/path/v1"),
        ("http://a:8000/v3", "http://a:8000/v3"),
        ("http://a/v2x", "http://a/v2x/v1"),
    ],
)
def test_an_address_names_a_server(address: str, url: str) -> None:
    assert server_at(address).url == url
    assert server_at(address).name == address.split("/")[2]
    assert server_at(address).key == ""


@pytest.mark.parametrize(
    "address",
    [
        "http://",
        "http://:80",
        "http://a:99999",
        "http://[::1",
        "http://user:secret@a",
        "http://a/?key=1",
        "http://a/#b",
        "http://a\n",
    ],
)
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(DerbyError, match="not a server's address"):
        server_at(address)


def test_the_operators_file_names_servers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(
        tmp_path,
        '[vllm]\nurl = "http://10.0.0.5:8000"\nmodel = "a/b"\nkey_variable = "A_KEY"\n'
        '[own]\nurl = "http://10.0.0.6"\nkey = "hush"\n',
    )
    monkeypatch.setenv("A_KEY", "secret")
    monkeypatch.setenv(VARIABLE, str(path))
    known = named_servers()
    assert list(known) == ["vllm", "own"]
    vllm = server_at("vllm")
    assert (vllm.name, vllm.url, vllm.model) == ("vllm", "http://10.0.0.5:8000/v1", "a/b")
    assert (vllm.key, known["own"].key) == ("secret", "hush")
    assert "secret" not in repr(vllm)
    with pytest.raises(DerbyError, match="no server 'other': choose from vllm, own"):
        server_at("other")
    monkeypatch.delenv(VARIABLE)
    assert named_servers() == {}
    with pytest.raises(DerbyError, match="no server 'vllm': write an address"):
        server_at("vllm")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[a", "cannot be read"),
        ('["a b"]\nurl = "http://a"', "is called 'a b'"),
        ("[a]\n", "must have a url"),
        ('a = "http://a"', "must have a url"),
        ("[a]\nurl = 3", "must have a url"),
        ('[a]\nurl = "http://a"\nport = "1"', "must have a url"),
        ('[a]\nurl = "file:///etc/passwd"', "not a server's address"),
        ('[a]\nurl = "http://a"\nkey_variable = "NOT_SET_AT_ALL"', "NOT_SET_AT_ALL"),
    ],
)
def test_a_flaw_in_the_file_is_one_sentence(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(DerbyError, match=reason):
        read_servers(written(tmp_path, text))


def test_a_file_that_is_not_there_is_told_without_its_place(tmp_path: Path) -> None:
    with pytest.raises(DerbyError, match="cannot be read") as told:
        read_servers(tmp_path / "none.toml")
    assert str(tmp_path) not in str(told.value)
    assert str(tmp_path) in told.value.with_place
