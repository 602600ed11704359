"""The words that nouns say with what requests may hold, and the check against it."""
