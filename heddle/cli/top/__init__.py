"""`heddle top`: the whole fleet on one screen, looked at every second.

`gather.py` reads, `rows.py` says what there is to see, `keys.py` what a key does, `screens.py` draws and `terminal.py`
is the terminal. Nothing but what a key asks for is ever changed.
"""
