"""Makes sure that Temporal knows the search attributes that jobs set."""

from temporalio.api.enums.v1 import IndexedValueType
from temporalio.api.operatorservice.v1 import AddSearchAttributesRequest, ListSearchAttributesRequest
from temporalio.client import Client
from temporalio.service import RPCError, RPCStatusCode

from ..workflows.search_attributes import SEARCH_ATTRIBUTES


class SearchAttributesMissing(Exception):
    """Temporal does not know them, and does not let us add them. The message says what to do."""


async def ensure_search_attributes(client: Client) -> None:
    """Adds those that the namespace does not have. Run twice or at once, it has the same effect.

    Without them a job's workflow could not set them, and would stop at its first.

    Raises:
        SearchAttributesMissing: when this client may not add them.
        RPCError: when Temporal does not answer.
    """
    wanted = {key.name: IndexedValueType.ValueType(key.indexed_value_type) for key in SEARCH_ATTRIBUTES}
    found = await client.operator_service.list_search_attributes(
        ListSearchAttributesRequest(namespace=client.namespace)
    )
    missing = {name: kind for name, kind in wanted.items() if name not in found.custom_attributes}
    if not missing:
        return
    request = AddSearchAttributesRequest(namespace=client.namespace, search_attributes=missing)
    try:
        await client.operator_service.add_search_attributes(request)
    except RPCError as error:
        if error.status == RPCStatusCode.ALREADY_EXISTS:
            return
        if error.status != RPCStatusCode.PERMISSION_DENIED:
            raise
        flags = " ".join(
            f"--name {key.name} --type {key.indexed_value_type.name.title()}"
            for key in SEARCH_ATTRIBUTES
            if key.name in missing
        )
        raise SearchAttributesMissing(
            f"the namespace {client.namespace} lacks search attributes, and adding them is not permitted; "
            f"let its administrator run: temporal operator search-attribute create "
            f"--namespace {client.namespace} {flags}"
        ) from error
