"""Which architecture is best for this text and this device?"""
