"""The only place of AFD that changes someone else's code: its settings and its patches."""
