"""The guest of tests and of ``make up GUESTS=qemu``: Debian's kernel, a busybox, an init that says what it sees."""
