"""Who may come in, how often, and when they are sent away again."""
