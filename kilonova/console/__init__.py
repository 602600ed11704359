"""The proxies of consoles: from a user's websocket to the console of a guest on its host."""
