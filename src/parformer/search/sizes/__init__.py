"""All sizes worth having on a device: LiteTransformerSearch's evolution."""
