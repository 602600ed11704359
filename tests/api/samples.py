"""Samples of answers as files: docs/reference/api-samples/<resource>/<route>-<version>.json.

A file is named by the first version that answers so; the next file of the route begins where the answer is another.
What differs from run to run stands as a placeholder that tells its form: {uuid}, {time}, {time.micro}, {request-id} …
"""

from __future__ import annotations

import json
import pathlib
import re
from typing import Any

ROOT = pathlib.Path(__file__).parents[2] / 'docs' / 'reference' / 'api-samples'
_FORMS = (
    (re.compile(r'http://localhost(:\d+)?'), 'http://openstack.example.com'),
    (re.compile(r'req-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}'), '{request-id}'),
    (re.compile(r'[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}'), '{uuid}'),
    (re.compile(r'\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\.\d{6}(?!\d)'), '{time.micro}'),
    (re.compile(r'\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?![.\d])'), '{time}'),
    (re.compile(r'\br-[a-z0-9]{8}\b'), '{reservation-id}'),
    (re.compile(r'-----BEGIN [A-Z ]*PRIVATE KEY-----.*', re.DOTALL), '{private key}'),
)
# Values that are made anew each time, by the key that they stand under and the form that they must have.
_MADE: dict[str | None, tuple[str, str]] = {
    'adminPass': (r'\S{12}', '{password}'),
    'fingerprint': (r'([0-9a-f]{2}:){15}[0-9a-f]{2}', '{fingerprint}'),
    # A key that is given stays as it is.
    'public_key': (r'\S+ \S+ Generated-by-\S+', '{public key}'),
}
_TOKEN = re.compile(r'token%3D[^"&]+|token=[^"&]+')


def plain(value: Any, key: str | None = None) -> Any:
    """``value`` with placeholders."""
    if isinstance(value, dict):
        return {plain(name): plain(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [plain(item) for item in value]
    if not isinstance(value, str):
        return '{seconds}' if key == 'uptime' and isinstance(value, int) else value
    if key in _MADE and re.fullmatch(_MADE[key][0], value):
        return _MADE[key][1]
    for form, placeholder in _FORMS:
        value = form.sub(placeholder, value)
    return _TOKEN.sub('token={token}', value)


def of_answer(path: str, method: str, body: Any, response: Any) -> dict[str, Any]:
    """What a file holds: the request and its answer."""
    request: dict[str, Any] = {'method': method, 'path': path}
    if body is not None:
        request['body'] = body
    answer: dict[str, Any] = {'status': response.status_int}
    if 'Location' in response.headers:
        answer['headers'] = {'Location': response.headers['Location']}
    if response.body:
        answer['body'] = response.json
    return {'request': plain(request), 'response': plain(answer)}


def grouped(answers: dict[int, dict[str, Any]]) -> dict[int, dict[str, Any]]:
    """{first version: answer} of answers by version, equal neighbours together."""
    found: dict[int, dict[str, Any]] = {}
    last = None
    for version in sorted(answers):
        if answers[version] != last:
            last = found[version] = answers[version]
    return found


def text(sample: dict[str, Any]) -> str:
    """A file's text."""
    return json.dumps(sample, indent=2, ensure_ascii=False) + '\n'


def files(name: str) -> dict[int, pathlib.Path]:
    """The files of a route, by version."""
    folder, _, stem = name.rpartition('/')
    form = re.compile(re.escape(stem) + r'-2\.(\d+)\.json')
    found = {}
    for path in sorted((ROOT / folder).glob('*.json')):
        match = form.fullmatch(path.name)
        if match:
            found[int(match[1])] = path
    return found


def write(name: str, answers: dict[int, dict[str, Any]]) -> None:
    """The files of a route, and none of what it answered once."""
    for path in files(name).values():
        path.unlink()
    for version, sample in grouped(answers).items():
        path = ROOT / f'{name}-2.{version}.json'
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text(sample))


def read(name: str) -> dict[int, dict[str, Any]]:
    """What the files of a route hold."""
    return {version: json.loads(path.read_text()) for version, path in files(name).items()}
