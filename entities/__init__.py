"""What things are: topics, messages, positions, principals. Pure; the standard library only."""
