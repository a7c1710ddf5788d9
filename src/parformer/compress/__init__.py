"""How does a model become smaller and faster, and what does that cost?"""
