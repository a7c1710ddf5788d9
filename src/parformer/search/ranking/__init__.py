"""How well cheap scores rank trained models."""
