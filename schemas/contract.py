"""The base of every document and message: strict, immutable, versioned where stored."""

from typing import Annotated, ClassVar, Self

from pydantic import BaseModel, ConfigDict, StringConstraints, model_validator

Digest = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
"""A sha256 as 64 lower-case hexadecimal digits."""

LABEL_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"
Label = Annotated[str, StringConstraints(pattern=LABEL_PATTERN)]
"""A DNS label: 1 to 63 of a-z, 0-9 and '-', no '-' at either end."""

TENANT_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,53}[a-z0-9])?$"
TenantLabel = Annotated[str, StringConstraints(pattern=TENANT_PATTERN)]
"""A label short enough to be part of a bucket's name, which has at most 63 characters."""


class Contract(BaseModel):
    """A message between parts of the system: unknown fields are refused, values never change."""

    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class Document(Contract):
    """A contract that is stored, and so carries the format that it was written in.

    Raises:
        pydantic.ValidationError: when the document was written in a format that this code does
            not know; the message names both.
    """

    FORMAT: ClassVar[int] = 1
    format: int = 1
    """In which the document is written; a person leaves it out."""

    @model_validator(mode="after")
    def _known_format(self) -> Self:
        if self.format != self.FORMAT:
            raise ValueError(
                f"{type(self).__name__} has format {self.format}; "
                f"this version of marlaas reads format {self.FORMAT}"
            )
        return self


class BlobRef(Contract):
    """A content-addressed blob in the tenant's bucket.

    Attributes:
        digest: sha256 of the bytes; also the key.
        size: in bytes.
    """

    digest: Digest
    size: int
