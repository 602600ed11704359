"""Why a request got its host, or none: reasons, stored decisions, and trial runs."""
