"""Field cases: what happened to people who run such systems, tried on a running gateway through its doors."""
