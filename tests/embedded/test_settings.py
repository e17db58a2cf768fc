from pathlib import Path

import pytest
from marlaas.workers.settings import Addresses, AddressUnknown, Settings, load_settings
from marlaas.workers.stack_file import StackError


@pytest.fixture(autouse=True)
def _clean(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.chdir(tmp_path)


ELSEWHERE = """
data = "there"
[temporal]
address = "file:7233"
namespace = "file"
[nats]
url = "nats://file:4222"
[s3]
endpoint = "file:9000"
access_key = "file-key"
secret_key = "file-secret"
secure = true
"""


def test_without_anything_all_servers_are_embedded(tmp_path: Path) -> None:
    settings = load_settings()
    assert settings.data == tmp_path / ".marlaas"
    assert settings.embedded == ("temporal", "nats", "s3")
    assert settings.temporal.namespace == "default"


def test_flags_come_before_variables_before_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Path("marlaas.toml").write_text(ELSEWHERE)
    monkeypatch.setenv("MARLAAS_TEMPORAL_ADDRESS", "variable:7233")
    monkeypatch.setenv("MARLAAS_NATS_URL", "nats://variable:4222")
    monkeypatch.setenv("MARLAAS_S3_ACCESS_KEY", "variable-key")
    settings = load_settings(nats_url="nats://flag:4222")
    assert settings.data == tmp_path / "there"
    assert settings.addresses() == Addresses(
        temporal_address="variable:7233",
        temporal_namespace="file",
        nats_url="nats://flag:4222",
        s3_endpoint="file:9000",
        s3_access_key="variable-key",
        s3_secret_key="file-secret",
        s3_secure=True,
    )


def test_a_variable_names_the_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "other.toml").write_text('[nats]\nurl = "nats://other:4222"\n')
    monkeypatch.setenv("MARLAAS_CONFIG", "other.toml")
    assert load_settings().nats.url == "nats://other:4222"
    monkeypatch.setenv("MARLAAS_CONFIG", "missing.toml")
    with pytest.raises(StackError, match=r"missing\.toml cannot be read"):
        load_settings()


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARLAAS_NATS_URL", "")
    assert load_settings().nats.url is None


def test_the_environment_of_addresses_gives_them_back(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("marlaas.toml").write_text(ELSEWHERE)
    addresses = load_settings().addresses()
    Path("marlaas.toml").unlink()
    for name, value in addresses.environment().items():
        monkeypatch.setenv(name, value)
    assert load_settings().addresses() == addresses


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[nats]\nurl = 'nonsense'", "nats.url"),
        ("[s3]\nendpoint = 'http://host:9000'\naccess_key = 'a'\nsecret_key = 'b'", "s3.endpoint"),
        ("[s3]\nendpoint = 'host:9000'", "MARLAAS_S3_ACCESS_KEY"),
        ("[s3]\naccess_key = 'a'", "belong to an endpoint"),
        ("[temporal]\nadress = 'host:7233'", "temporal.adress"),
        ("colour = 'red'", "colour"),
        ("data = [", "marlaas.toml"),
    ],
)
def test_a_wrong_value_is_named(text: str, named: str) -> None:
    Path("marlaas.toml").write_text(text)
    with pytest.raises(StackError, match=named):
        load_settings()


def test_a_mistyped_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARLAAS_NATS_ADDRESS", "nats://host:4222")
    with pytest.raises(StackError, match=r"nats\.address"):
        load_settings()


def test_an_unknown_address_says_what_to_do() -> None:
    settings = load_settings(nats_url="nats://host:4222")
    with pytest.raises(AddressUnknown, match="temporal, s3") as raised:
        settings.addresses()
    for part in ("marlaas up", "MARLAAS_TEMPORAL_ADDRESS", "MARLAAS_S3_ENDPOINT"):
        assert part in str(raised.value)
    assert "MARLAAS_NATS_URL" not in str(raised.value)


def test_built_directly_settings_ignore_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MARLAAS_NATS_URL", "nats://host:4222")
    assert Settings().nats.url is None


def test_a_secret_is_in_no_repr() -> None:
    Path("marlaas.toml").write_text(ELSEWHERE)
    settings = load_settings()
    assert "file-secret" not in repr(settings)
    assert "file-secret" not in repr(settings.addresses())
