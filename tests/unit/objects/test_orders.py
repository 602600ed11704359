"""What a host writes is declared for three readers: objects on the wire, the database, and typed arguments."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from kilonova import objects
from kilonova.compute.operation import ClaimFields, SaveFields
from kilonova.db.queries import claims


@pytest.mark.parametrize(
    ('sent', 'written', 'arguments'),
    [(objects.Claim, claims.ClaimWrite, ClaimFields), (objects.Save, claims.SaveWrite, SaveFields)],
)
def test_what_a_host_writes_has_the_same_fields_everywhere(sent: Any, written: Any, arguments: Any) -> None:
    assert set(sent.fields) == {field.name for field in dataclasses.fields(written)}
    assert set(sent.fields) >= arguments.__annotations__.keys()
