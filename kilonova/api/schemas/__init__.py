"""What requests may say: one table of properties a resource, each row with the versions in which it holds."""
