"""Which blocks of a trained model can give way to others, and what does that cost?"""
