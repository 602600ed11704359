"""Schemas with windows."""

from __future__ import annotations

import time

import jsonschema
import pytest

from kilonova.api.schemas import base
from kilonova.api.schemas import types as t
from kilonova.api.schemas.base import FORMATS, Obj, Prop, QuerySchema, ValidationError, Window, Windows

BODY = Obj(
    Prop(
        'thing',
        Obj(
            Prop('name', t.NAME, required=True),
            Prop('late', t.TEXT, since=5),
            Prop('early', t.TEXT, until=4),
            Prop('list', {'type': 'array', 'items': Obj(Prop('n', t.integer(1, 9)), Prop('m', t.BOOLEAN, since=7))}),
        ),
        required=True,
    )
)


def message(schema, body, version=10, **kwargs):
    with pytest.raises(ValidationError) as error:
        schema.check(body, version, **kwargs)
    assert error.value.code == 400
    return str(error.value)


def test_windows_of_properties():
    assert BODY.check({'thing': {'name': 'a', 'late': 'x'}}, 5)
    assert BODY.check({'thing': {'name': 'a', 'early': 'x'}}, 4)
    assert "'late' was unexpected" in message(BODY, {'thing': {'name': 'a', 'late': 'x'}}, 4)
    assert "'early' was unexpected" in message(BODY, {'thing': {'name': 'a', 'early': 'x'}}, 5)
    assert "'m' was unexpected" in message(BODY, {'thing': {'name': 'a', 'list': [{'m': True}]}}, 6)
    assert BODY.check({'thing': {'name': 'a', 'list': [{'m': 'on', 'n': '3'}]}}, 7)


def test_windows_of_bodies():
    schema = Windows(Window({'type': 'null'}, until=3), Window({'type': 'string'}, since=4))
    assert schema.check(None, 3) is None
    assert schema.check('x', 4) == 'x'
    assert 'None is not of type' in message(schema, None, 4)


@pytest.mark.parametrize(
    ('schema', 'value'),
    [
        ({'type': 'string', 'maxLength': 9, 'pattern': '^a*$'}, 'b' * 10),
        ({'type': 'string', 'maxLength': 9, 'format': 'date-time'}, 'b' * 10),
        ({'type': 'array', 'maxItems': 2, 'uniqueItems': True, 'items': {'type': 'string'}}, [1, 1, {}]),
        (
            {
                'type': 'object',
                'maxProperties': 1,
                'patternProperties': {'^a$': {'type': 'string'}},
                'additionalProperties': False,
            },
            {'a': 1, 'b': 2},
        ),
    ],
)
def test_bounds_come_first(schema, value):
    """A value that exceeds a maximum of its schema is not checked against the other keywords."""
    found = list(base.VALIDATOR(schema, format_checker=FORMATS).iter_errors(value))
    assert [error.validator for error in found] == [word for word in schema if word.startswith('max')]


@pytest.mark.parametrize(
    ('items', 'unique'),
    [
        ([1, 'a', {'a': [1]}, {'a': [2]}, None, True, '1'], True),
        ([{'a': 1, 'b': 2}, {'b': 2, 'a': 1}], False),
        ([[1, 'a'], [1, 'a']], False),
        ([None, None], False),
        ([1, True, 'True'], True),
    ],
)
def test_what_is_unique(items, unique):
    validator = base.VALIDATOR({'type': 'array', 'uniqueItems': True, 'maxItems': 9})
    assert validator.is_valid(items) is unique


def test_lists_are_looked_at_once():
    """The check of uniqueItems takes less than 2 s of CPU time for 40,000 items that can't be sorted.

    A comparison of each item with each other would take minutes.
    """
    validator = base.VALIDATOR({'type': 'array', 'uniqueItems': True, 'maxItems': 50000})
    items = [value for number in range(10000) for value in (number, str(number), {'a': number}, [number])]
    begun = time.process_time()
    assert validator.is_valid(items)
    assert time.process_time() - begun < 2


def test_few_errors_of_many_are_compared(monkeypatch):
    """A list of a hundred thousand wrong items is no list of as many errors."""
    made = []
    schema = {'type': 'array', 'items': {'type': 'string'}, 'maxItems': 100000}
    validator = base.VALIDATOR(schema)
    monkeypatch.setattr(
        type(validator),
        'iter_errors',
        lambda self, value: (made.append(1) or jsonschema.ValidationError('x') for _ in value),
    )
    assert base.first_of(validator, [1] * 100000) is not None
    assert len(made) <= base.MOST_ERRORS


def test_a_refusal_is_no_copy_of_a_large_body():
    assert len(message(BODY, {'thing': {'name': ['x'] * 20000}})) < 5000


def test_unknown_keys_are_dropped_by_2_0():
    body = {'thing': {'name': 'a', 'x': 1, 'list': [{'n': 1, 'y': 2}]}, 'z': 3}
    assert BODY.check(body, 1, relaxed=True) == {'thing': {'name': 'a', 'list': [{'n': 1}]}}
    assert body['thing']['x'] == 1


@pytest.mark.parametrize(
    'schema',
    [
        t.NAME,
        t.ZONE,
        {'allOf': [t.NAME, {'type': 'string', 'maxLength': 9}]},
        {'anyOf': [t.NULL, {'allOf': [t.ZONE, {'type': 'string'}]}]},
        {'oneOf': [t.NAME, t.NULL]},
    ],
)
def test_names_are_trimmed_by_2_0(schema):
    thing = Obj(Prop('things', {'type': 'array', 'items': Obj(Prop('v', schema), Prop('text', t.TEXT))}))
    body = {'things': [{'v': ' a b\t', 'text': ' t '}]}
    assert thing.check(body, 1, relaxed=True) == {'things': [{'v': 'a b', 'text': ' t '}]}
    assert body['things'][0]['v'] == ' a b\t'
    message(thing, body, 1)
    for bad in (' ', ' a\x07 ', ' ' + 'x' * 256, 7):
        message(thing, {'things': [{'v': bad}]}, 1, relaxed=True)


@pytest.mark.parametrize(
    ('value', 'end'),
    [
        (' a', 'Can not start or end with whitespace.'),
        ('', 'is too short'),
        ('x' * 256, 'is too long'),
        (None, "None is not of type 'string'"),
        ('a\x07', 'printable characters'),
        (7, "7 is not of type 'string'"),
    ],
)
def test_names(value, end):
    text = message(BODY, {'thing': {'name': value}})
    assert end in text or 'non-empty' in text
    # What a name must be is said without the rest.
    assert text.startswith(
        "An invalid 'name' value was provided."
        if value in (' a', 'a\x07')
        else f'Invalid input for field/attribute name. Value: {value}. '
    )


@pytest.mark.parametrize(
    ('value', 'good'),
    [
        (1, True),
        ('9', True),
        (0, False),
        ('10', False),
        ('x', False),
        (True, False),
        (1.5, False),
        (None, False),
        ('', False),
        ('-1', False),
        ('9' * 21, False),
        (2**64, False),
    ],
)
def test_numbers_may_be_text(value, good):
    body = {'thing': {'name': 'a', 'list': [{'n': value}]}}
    if good:
        assert BODY.check(body, 1)
    else:
        message(BODY, body, 1)


@pytest.mark.parametrize(
    ('schema', 'good', 'bad'),
    [
        (t.UUID, ['11111111-2222-3333-4444-555555555555'], ['x', '11111111-2222']),
        (t.IPV4, ['10.0.0.1'], ['10.0.0', '10.0.0.256', 'fe80::1', '']),
        (t.IPV6, ['fe80::1', '::'], ['10.0.0.1', 'x', '']),
        (t.BOOLEAN, [True, 'yes', '0', 'False'], ['maybe', 2, 1, None]),
        (t.DATE_TEXT, ['2026-11-21T10:00:00Z', '2026-11-21', '2026-11-21T10:00:00+01:00'], ['x', '', '2026-13-01']),
        (t.HOSTNAME, ['a1', 'my-host'], ['a', '-a', 'a-', 'a.b', 'a' * 64]),
        (t.FQDN, ['a.example'], ['.a', 'a.', 'a_b']),
        (t.TAG, ['t', 'a b'], ['', 'a,b', 'a/b', 'x' * 61]),
        ({'type': 'string', 'format': 'base64'}, ['YQ==', 'YW\nI=', ''], ['YQ', '%%%', 'é']),
        (t.LONG_TEXT, ['a\nb', None, ''], ['a\x00', 'é' * 40000]),
    ],
)
def test_words(schema, good, bad):
    value = Obj(Prop('v', schema))
    for text in good:
        assert value.check({'v': text}, 1) == {'v': text}
    for text in bad:
        message(value, {'v': text}, 1)


def test_queries():
    query = QuerySchema.of(Prop('limit', t.NUMBER_TEXT), Prop('late', t.ANY_TEXT, since=80))
    assert query.check({'limit': ['1'], 'nosuch': ['x'], 'late': ['y']}, 74) is None
    for values, end in (
        ({'nosuch': ['x']}, "'nosuch' was unexpected)"),
        ({'limit': ['1', 'x']}, "Value: x. 'x' does not match '^[0-9]*$'"),
    ):
        with pytest.raises(ValidationError) as error:
            query.check(values, 75)
        assert str(error.value).endswith(end)
    assert QuerySchema().check({'nosuch': ['x']}, 101) is None
    with pytest.raises(ValidationError):
        QuerySchema().check({'nosuch': ['x']}, 102)
