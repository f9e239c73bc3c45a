"""Property tests of the entities, against brute force."""
