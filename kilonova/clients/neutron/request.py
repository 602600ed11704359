"""Send requests to Neutron as a user or as the service: for one object, some objects, or all in pages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any
from urllib.parse import quote, urlsplit

import requests
from keystoneauth1.adapter import Adapter
from oslo_utils import uuidutils

from kilonova import errors
from kilonova.clients.neutron.refusals import WHO, body_of, kind_and_text
from kilonova.clients.query import encode, repeated
from kilonova.clients.session import RestClient
from kilonova.context import RequestContext


class NeutronRequests(RestClient):
    """The base class of the Neutron client's calls. It sends requests as a user or as the service."""

    def __init__(self, adapter: Adapter) -> None:
        super().__init__(adapter, WHO)

    def _one(
        self,
        method: str,
        collection: str,
        identifier: str,
        ctxt: RequestContext,
        missing: errors.NotFound,
        fields: Mapping[str, Any] | None = None,
        **said: str,
    ) -> Any:
        """Send a user's request about one object. Return the object, or None if the response has no body.

        ``collection`` is the plural name in the URL, for example 'ports'. ``fields`` are the fields of the object in
        the request's body, or None if the request has no body. ``said`` has values that the texts of errors contain,
        for example ``port_id``.

        Raises ``missing`` if the object does not exist. Raises ``missing`` without a request if the identifier is not a
        UUID, because an identifier like '..' would change the path of the URL.
        """
        if not uuidutils.is_uuid_like(identifier):
            raise missing
        name = _singular(collection)
        more: dict[str, Any] = {'json': {name: dict(fields)}} if fields is not None else {}
        response = self._send(method, f'/{collection}/{quote(identifier, safe="")}', ctxt=ctxt, **more)
        if response.status_code == 204:
            return None
        if response.status_code == 404 and kind_and_text(response)[0] in _MISSING[collection]:
            raise missing
        return body_of(response, ctxt, **said)[name]

    def _made(self, collection: str, fields: Mapping[str, Any], ctxt: RequestContext, **said: str) -> Any:
        name = _singular(collection)
        return body_of(self._send('POST', f'/{collection}', ctxt=ctxt, json={name: dict(fields)}), ctxt, **said)[name]

    def _some(
        self, collection: str, query: Sequence[tuple[str, str]], ctxt: RequestContext, limit: int, offset: int = 0
    ) -> list[Mapping[str, Any]]:
        if not limit:
            return []
        return list(islice(self._pages(collection, [*query, ('limit', str(limit))], ctxt), offset, offset + limit))

    def _list(
        self,
        collection: str,
        key: str,
        values: Iterable[str],
        more: Iterable[tuple[str, str]] = (),
        *,
        ctxt: RequestContext | None = None,
    ) -> Iterator[Mapping[str, Any]]:
        """Yield all objects whose field ``key`` has one of these values.

        ``collection`` is the plural name in the URL, for example 'ports'. ``more`` has further pairs (name, value) for
        the query string of each request. If the values are too long for one URL, several requests are sent.
        """
        for part in repeated(key, values):
            yield from self._pages(collection, [*more, *part], ctxt)

    def _pages(
        self, collection: str, query: Sequence[tuple[str, str]], ctxt: RequestContext | None
    ) -> Iterator[Mapping[str, Any]]:
        name, path = collection.replace('-', '_'), f'/{collection}'
        asked: str | None = encode(query)
        before: set[str] = set()
        while asked is not None:
            if asked in before:
                raise errors.Unanswered(f'{WHO} returned the same page of {collection} again')
            before.add(asked)
            answer = body_of(self._send('GET', f'{path}?{asked}' if asked else path, ctxt=ctxt), ctxt)
            yield from answer[name]
            # Neutron returns links to further pages only if it limits the size of pages.
            # Take only the query string from the link to the next page, and send it to the usual endpoint.
            # The host name in the link may be a public one, which this process can't reach.
            following = [link['href'] for link in answer.get(f'{name}_links', ()) if link['rel'] == 'next']
            asked = urlsplit(following[0]).query if following else None

    def _send(self, method: str, path: str, **kwargs: Any) -> requests.Response:
        return super()._send(method, f'/v2.0{path}', **kwargs)


# A dict from a collection to the error types in Neutron's response if an object of this collection does not exist.
_MISSING = {
    'networks': ('NetworkNotFound',),
    'floatingips': ('FloatingIPNotFound',),
    'security-groups': ('SecurityGroupNotFound',),
    'security-group-rules': ('SecurityGroupRuleNotFound',),
}


def _singular(collection: str) -> str:
    """Return the key of a single object in a request or response body, such as 'port' for the collection 'ports'."""
    return collection.removesuffix('s').replace('-', '_')
