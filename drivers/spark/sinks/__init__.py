"""Where jobs put their results; writing the same batch again changes nothing."""
