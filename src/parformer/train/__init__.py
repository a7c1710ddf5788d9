"""How does a model learn?"""
