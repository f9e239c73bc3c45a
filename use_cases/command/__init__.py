"""Commands and rollouts: their life, kept and driven by evidence."""
