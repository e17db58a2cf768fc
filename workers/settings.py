"""Where the servers are: flags, then environment, then a config file, then the embedded stack."""

import os
import tomllib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_settings import BaseSettings, InitSettingsSource, PydanticBaseSettingsSource, SettingsConfigDict

from .credentials import read_credentials
from .stack_file import ServerName, StackError, StackFile, read_stack

HOST = "127.0.0.1"
"""What embedded servers listen on; they are not for other machines."""

_CONFIG_FILE = "marlaas.toml"
_VARIABLES: dict[ServerName, str] = {
    "temporal": "MARLAAS_TEMPORAL_ADDRESS",
    "nats": "MARLAAS_NATS_URL",
    "s3": "MARLAAS_S3_ENDPOINT",
}


class AddressUnknown(StackError):
    """Nothing says where a server is; the message names what would."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class TemporalSettings(_Section):
    address: str | None = None
    """`host:port` of a Temporal cluster; None for the embedded server."""
    namespace: str = "default"


class NatsSettings(_Section):
    url: Annotated[str, Field(pattern=r"^(nats|tls|ws|wss)://")] | None = None
    """`nats://host:port` of a NATS cluster with JetStream; None for the embedded server."""


class S3Settings(_Section):
    endpoint: Annotated[str, Field(pattern=r"^[^/]+$")] | None = None
    """`host:port` of an S3-compatible store, without a scheme; None for the embedded server."""
    access_key: str | None = None
    secret_key: str | None = Field(default=None, repr=False)
    secure: bool = False
    """True for https."""

    @model_validator(mode="after")
    def _keys_with_endpoint(self) -> Self:
        given = [self.access_key is not None, self.secret_key is not None]
        if any(given) and self.endpoint is None:
            raise ValueError("access_key and secret_key belong to an endpoint, and none is given")
        if not all(given) and self.endpoint is not None:
            raise ValueError(
                f"the endpoint {self.endpoint} needs access_key and secret_key: "
                "set MARLAAS_S3_ACCESS_KEY and MARLAAS_S3_SECRET_KEY"
            )
        return self


@dataclass(frozen=True)
class Addresses:
    """Where all three servers are, and how to get in."""

    temporal_address: str
    temporal_namespace: str
    nats_url: str
    s3_endpoint: str
    s3_access_key: str
    s3_secret_key: str = field(repr=False)
    s3_secure: bool

    def environment(self) -> dict[str, str]:
        """The variables that make `load_settings` give these addresses in another process."""
        return {
            "MARLAAS_TEMPORAL_ADDRESS": self.temporal_address,
            "MARLAAS_TEMPORAL_NAMESPACE": self.temporal_namespace,
            "MARLAAS_NATS_URL": self.nats_url,
            "MARLAAS_S3_ENDPOINT": self.s3_endpoint,
            "MARLAAS_S3_ACCESS_KEY": self.s3_access_key,
            "MARLAAS_S3_SECRET_KEY": self.s3_secret_key,
            "MARLAAS_S3_SECURE": str(self.s3_secure).lower(),
        }


class Settings(BaseModel):
    """What a process was told. A server without an address is the embedded one.

    Built directly it takes nothing from the environment; `load_settings` does.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, validate_default=True)

    data: Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())] = Path(".marlaas")
    """Folder of the embedded stack."""
    temporal: TemporalSettings = TemporalSettings()
    nats: NatsSettings = NatsSettings()
    s3: S3Settings = S3Settings()

    @property
    def embedded(self) -> tuple[ServerName, ...]:
        """The servers without an address: those that `marlaas up` starts."""
        given: dict[ServerName, str | None] = {
            "temporal": self.temporal.address,
            "nats": self.nats.url,
            "s3": self.s3.endpoint,
        }
        return tuple(name for name, address in given.items() if address is None)

    def on_stack(self, stack: StackFile | None) -> Self:
        """These settings with the addresses of the servers that a stack runs now, where they have none.

        Raises:
            StackError: when the data folder lacks the credentials of the stack's object store.
        """
        if stack is None or not stack.is_supervised:
            return self
        servers = [name for name in self.embedded if name in stack.embedded]
        update: dict[str, Any] = {}
        if "temporal" in servers:
            address = f"{HOST}:{stack.ports.temporal}"
            update["temporal"] = TemporalSettings(address=address, namespace=self.temporal.namespace)
        if "nats" in servers:
            update["nats"] = NatsSettings(url=f"nats://{HOST}:{stack.ports.nats}")
        if "s3" in servers:
            keys = read_credentials(self.data)
            endpoint = f"{HOST}:{stack.ports.s3}"
            update["s3"] = S3Settings(
                endpoint=endpoint, access_key=keys.access_key, secret_key=keys.secret_key
            )
        return self.model_copy(update=update)

    def addresses(self) -> Addresses:
        """All addresses; those of embedded servers are of the stack that runs in the data folder.

        Raises:
            AddressUnknown: when a server has no address and no stack that runs it.
            StackError: when the data folder's files cannot be read.
        """
        whole = self.on_stack(read_stack(self.data)) if self.embedded else self
        temporal, nats, s3 = whole.temporal, whole.nats, whole.s3
        if not (temporal.address and nats.url and s3.endpoint and s3.access_key and s3.secret_key):
            missing = whole.embedded
            raise AddressUnknown(
                f"There is no address for {', '.join(missing)}, and no embedded stack that runs it in "
                f"{self.data}. Run `marlaas up`, or set {', '.join(_VARIABLES[name] for name in missing)} "
                f"or the same in {_CONFIG_FILE}."
            )
        return Addresses(
            temporal_address=temporal.address,
            temporal_namespace=temporal.namespace,
            nats_url=nats.url,
            s3_endpoint=s3.endpoint,
            s3_access_key=s3.access_key,
            s3_secret_key=s3.secret_key,
            s3_secure=s3.secure,
        )


def load_settings(
    *,
    data: Path | None = None,
    temporal_address: str | None = None,
    temporal_namespace: str | None = None,
    nats_url: str | None = None,
    s3_endpoint: str | None = None,
    s3_access_key: str | None = None,
    s3_secret_key: str | None = None,
    s3_secure: bool | None = None,
) -> Settings:
    """Settings from these arguments, then MARLAAS_ variables, then the config file.

    The variables are named as the arguments: MARLAAS_DATA, MARLAAS_TEMPORAL_ADDRESS, and so on. The
    config file is `marlaas.toml` in the current folder or the one that MARLAAS_CONFIG names; it has
    `data` and the tables `temporal`, `nats` and `s3`.

    Raises:
        StackError: when the config file cannot be read, or a value is wrong wherever it came from;
            the message has its path.
    """
    flags: dict[str, Any] = {
        "data": data,
        "temporal": _given(address=temporal_address, namespace=temporal_namespace),
        "nats": _given(url=nats_url),
        "s3": _given(
            endpoint=s3_endpoint, access_key=s3_access_key, secret_key=s3_secret_key, secure=s3_secure
        ),
    }
    try:
        return _LoadedSettings(**_given(**flags))
    except ValidationError as error:
        lines = [f"{'.'.join(map(str, each['loc'])) or 'settings'}: {each['msg']}" for each in error.errors()]
        raise StackError("The settings are wrong. " + "; ".join(lines)) from error


class _LoadedSettings(Settings, BaseSettings):
    model_config = SettingsConfigDict(
        env_prefix="MARLAAS_", env_nested_delimiter="_", env_nested_max_split=1, env_ignore_empty=True
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, InitSettingsSource(settings_cls, _config_file())


def _given(**values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _config_file() -> dict[str, Any]:
    named = os.environ.get("MARLAAS_CONFIG")
    path = Path(named or _CONFIG_FILE)
    if not named and not path.exists():
        return {}
    try:
        return tomllib.loads(path.read_text())
    except (OSError, tomllib.TOMLDecodeError) as error:
        raise StackError(f"The config file {path.absolute()} cannot be read: {error}") from error
