"""Translation between outside formats and entities, both ways, without I/O."""
