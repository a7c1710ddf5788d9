"""Where do blocks belong, by training many patterns a little and the better ones on?"""
