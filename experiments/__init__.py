"""What the developers of Decode Derby measure now and then, run by `python -m experiments NAME`.

Outside the product and its checks: nothing in `backend`, `page` or `app.py` imports it. It may
import all of `backend`.
"""
