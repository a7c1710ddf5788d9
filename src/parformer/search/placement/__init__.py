"""Which block belongs where: PAR Transformer's differentiable search."""
