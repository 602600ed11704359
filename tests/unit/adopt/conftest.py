"""Sites as the tests of the API have them."""

from tests.unit.api.conftest import empty_databases, make_site, site

__all__ = ('empty_databases', 'make_site', 'site')
