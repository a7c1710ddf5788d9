"""How do files survive a crash, a full disk, another process and a stranger?"""
