"""How values become bytes in Temporal's histories, and what becomes of bytes that are no values."""

import dataclasses
from collections.abc import Sequence
from typing import Any

from temporalio.api.common.v1 import Payload
from temporalio.common import RawValue
from temporalio.contrib.pydantic import PydanticPayloadConverter, pydantic_data_converter


class LenientPayloadConverter(PydanticPayloadConverter):
    """Pydantic's, but what is asked for without a type and cannot be decoded is given as a `RawValue`.

    The SDK decodes a workflow's input before any code of the workflow runs, and where that fails it
    tries again for ever. So the workflow gets what there is, and refuses it in its own words.
    """

    def from_payloads(self, payloads: Sequence[Payload], type_hints: list[type] | None = None) -> list[Any]:
        """One value for each payload."""
        if type_hints:
            return super().from_payloads(payloads, type_hints)
        return [self._value(payload) for payload in payloads]

    def _value(self, payload: Payload) -> Any:
        try:
            return super().from_payloads([payload])[0]
        except Exception:  # each encoding's decoder raises errors of its own
            return RawValue(payload)


DATA_CONVERTER = dataclasses.replace(pydantic_data_converter, payload_converter_class=LenientPayloadConverter)
