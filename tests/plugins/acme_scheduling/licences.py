"""Images that need a licence go where it is: asked of Placement, so that other hosts aren't looked at."""


def licences(query, spec, facts):
    """The flavor's acme:licence is a trait of the host."""
    licence = spec.flavor.extra_specs.get('acme:licence')
    if licence:
        query.root_required.add(f'CUSTOM_ACME_{licence.upper()}')
