"""From rows to bodies: one table of fields a resource, each with the versions in which it is shown."""
