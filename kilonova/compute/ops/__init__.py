"""One file a verb: what the host does for one kind of order, as steps with their undo."""
