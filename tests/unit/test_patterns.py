"""Tests of all regular expressions in the tree: none is slow for any text, and schemas match the whole text."""

from __future__ import annotations

import ast
import importlib
import pathlib
import pkgutil
import re

import pytest

import kilonova
from kilonova.api.routes import OWN_ROUTES, ROUTES
from kilonova.api.schemas import base, extra_specs
from tests.api import table
from tests.unit.patterns import weakness

ROOT = pathlib.Path(kilonova.__file__).parent
FUNCTIONS = ('compile', 'match', 'search', 'fullmatch', 'sub', 'subn', 'split', 'findall', 'finditer')
# Functions of re that begin at each character of a text.
SEARCHING = ('search', 'sub', 'subn', 'split', 'findall', 'finditer')
# Expressions that are put together while the program runs: what they are made of, and why that is no risk.
MADE = {
    ('api/schemas/extra_specs.py', 'pattern'): 'those of SPECS, which are looked at here',
    ('api/schemas/extra_specs.py', 'spec.name'): 'those of SPECS, which are looked at here',
    ('api/schemas/extra_specs.py', "'|'.join((f'({name})' for name in (_NAMESPACES, *theirs)))"): 'of the whole table',
    ('api/schemas/base.py', "pattern[:-1] + '\\\\Z' if pattern.endswith('$') else pattern"): 'those of schemas',
    ('api/v2/instance_actions.py', "f'(?<![\\\\w-])(?:{known})(?![\\\\w-])'"): 'words that are escaped',
    ('objects/fields.py', 'self.PATTERN'): 'fixed',
    ('objects/image_meta.py', "f'{name}\\\\.([0-9]{{1,9}})'"): 'a word and a number',
    ('virt/hardware/constraints.py', "f'hw:{name}\\\\.(\\\\d{{1,9}})'"): 'a word and a number',
    ('adopt/verify.py', 'known.path'): 'those of EXPECTED, fixed',
    ('adopt/verify.py', 'known.member'): 'those of EXPECTED, fixed',
    ('pci/address.py', "fields.get(name, '.*')"): "the operator's own, for texts of eight characters at most",
}
# Weak by the letter, and why they aren't.
FINE = {
    r"(?<![\w.:/~-])(?:/[^\s/'\":,;()]+)*/([^\s/'\":,;()]+)/?": 'what stands before its slash lets no other begin',
}


@pytest.mark.parametrize(
    ('pattern', 'search', 'weak'),
    [
        ('(a+)+$', False, True),
        ('(a*)*', False, True),
        ('(a|aa)*b', False, True),
        ('(a|ab|b)*c', False, True),
        ('(a?b?)*', False, True),
        ('(a*b?)*c', False, True),
        (r'^[a-z0-9]+[a-z0-9-]*[a-z0-9]+$', False, True),
        (r'^[a-z0-9][a-z0-9-]*[a-z0-9]$', False, False),
        (r'\d+(-\d+)?(,\d+(-\d+)?)*', False, False),
        (r'\^?\d+((-\d+)?(,\^?\d+(-\d+)?)?)*', False, True),
        (r'(.*)\1', False, True),
        ('a*b*a*', False, True),
        ('a*ba*', False, False),
        (r'\s+x', False, False),
        (r'\s+x', True, True),
        (r'\s+', True, False),
        (r'\s+$', True, True),
        ('<[^>]*>', True, True),
        ('<[^<>]*>', True, False),
        ('(?i)[a-c]+B+', False, True),
        (r'(\w+\s?)*$', False, True),
        ('^(([a-z])+.)+[A-Z]', False, True),
    ],
)
def test_the_checker(pattern, search, weak):
    assert bool(weakness(pattern, search=search)) is weak


def schemas():
    """Each plain schema of the route table, whole."""
    for route in (*ROUTES, *OWN_ROUTES):
        for version in table.versions_of(route) if route.body or route.query.props else ():
            if route.body is not None:
                yield route, base.at(route.body, version)
            yield route, route.query.at(version)


def parts(schema):
    """The schema and all schemas in it."""
    if isinstance(schema, dict):
        yield schema
        for word, value in schema.items():
            if word in ('properties', 'patternProperties'):
                for inner in value.values():
                    yield from parts(inner)
            elif word in ('items', 'additionalProperties'):
                yield from parts(value)
            elif word in ('anyOf', 'oneOf', 'allOf'):
                for inner in value:
                    yield from parts(inner)


PARTS = {repr(part): part for _, schema in schemas() for part in parts(schema)}
OF_SCHEMAS = sorted(
    {
        pattern
        for part in PARTS.values()
        for pattern in (*([part['pattern']] if 'pattern' in part else ()), *part.get('patternProperties', ()))
    }
)


def test_patterns_of_schemas():
    """No pattern of a schema takes a time that grows faster than the text."""
    assert len(OF_SCHEMAS) > 10
    weak = {pattern: found for pattern in OF_SCHEMAS if (found := weakness(pattern, search=True))}
    assert weak == {}


def test_patterns_of_schemas_end_with_the_text():
    """No pattern of a schema accepts a line feed after its end."""
    for pattern in OF_SCHEMAS:
        assert '$' not in pattern[:-1].replace(r'\$', ''), pattern
        assert not base.compiled(pattern).pattern.endswith('$')
    body = base.Obj(
        base.Prop('a', {'type': 'string', 'pattern': '^[a-z]*$', 'maxLength': 9}), patternProperties={'^[0-9]+$': {}}
    )
    body.check({'a': 'x', '1': 1}, 1)
    body.check({'a': 'x', '1': 1}, 1, relaxed=True)
    for bad in ({'a': 'x\n'}, {'1\n': 1}):
        with pytest.raises(base.ValidationError):
            body.check(bad, 1)


def test_each_text_and_each_list_has_a_bound():
    """What is not bounded by its schema would be bounded by the body alone."""
    assert len(PARTS) > 100
    for part in PARTS.values():
        kinds = part.get('type', ())
        kinds = [kinds] if isinstance(kinds, str) else kinds
        if 'string' in kinds and 'enum' not in part:
            assert 'maxLength' in part, part
        if 'array' in kinds and not (set(part) == {'type', 'items'} and 'string' in repr(part)):
            assert 'maxItems' in part, part
        if 'integer' in kinds or 'number' in kinds:
            assert {'minimum', 'maximum'} <= part.keys() or 'largest' in part, part


def literals():
    """(file, function, first argument) of each call of re in the tree."""
    for path in sorted(ROOT.rglob('*.py')):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in FUNCTIONS
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id == 're'
            ):
                yield str(path.relative_to(ROOT)), node


def test_patterns_of_the_code():
    weak, made = {}, set()
    for name, node in literals():
        if isinstance(node.args[0], ast.Constant):
            pattern = node.args[0].value
            ignoring = any('IGNORECASE' in ast.unparse(arg) for arg in node.args[1:])
            found = weakness(pattern, re.IGNORECASE if ignoring else 0, search=node.func.attr in SEARCHING)
            if found and pattern not in FINE:
                weak[name, pattern] = found
        elif node.func.attr != 'compile' or not isinstance(node.args[0], ast.JoinedStr) or node.col_offset > 40:
            made.add((name, ast.unparse(node.args[0])))
    assert weak == {}
    assert made - {(name, text) for name, text in made if _is_global(name, text)} == set(MADE)


def _is_global(name, text):
    """Whether it is compiled while its module is loaded: then the attribute is looked at."""
    return any(
        f'= re.compile({text}' in line.replace('"', "'") and not line.startswith(' ')
        for line in (ROOT / name).read_text().splitlines()
    )


def test_patterns_that_modules_hold():
    """Those that are put together while a module is loaded, and the table of extra specs."""
    weak = {}
    for module in pkgutil.walk_packages([str(ROOT)], 'kilonova.'):
        if '.migrations.' in module.name or module.name.endswith('.libvirt.host'):
            continue
        for attribute, value in vars(importlib.import_module(module.name)).items():
            if isinstance(value, re.Pattern) and value.pattern not in FINE:
                found = weakness(value.pattern, value.flags & re.IGNORECASE)
                if found:
                    weak[module.name, attribute] = found
    rows = extra_specs._compile()
    for pattern in (*(name for name, _ in rows.rows), rows.namespaces):
        if found := weakness(pattern.pattern):
            weak['extra specs', pattern.pattern[:60]] = found
    for spec in extra_specs.SPECS:
        for cell in spec.check.__closure__ or ():
            if isinstance(cell.cell_contents, str) and '\\d' in cell.cell_contents:
                found = weakness(cell.cell_contents)
                if found:
                    weak[spec.name] = found
    assert weak == {}
