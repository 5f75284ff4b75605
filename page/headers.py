"""The headers by which every answer limits what the browser may do with it."""

from page.document import described

_POLICY = {
    "default-src": "'none'",
    # gradio makes functions of a page's own JavaScript in the browser, hence 'unsafe-eval'.
    "script-src": "'self' 'nonce-{nonce}' 'unsafe-eval'",
    "style-src": "'self' 'unsafe-inline'",
    "img-src": "'self' data: blob:",
    "font-src": "'self' data:",
    "connect-src": "'self'",
    "manifest-src": "'self'",
    "base-uri": "'self'",
    "form-action": "'none'",
    "frame-ancestors": "'self'",
}

#: Who shows a Space within a page of theirs.
_HUB = "https://huggingface.co https://*.hf.space"

_FIXED = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Permissions-Policy": "camera=(), display-capture=(), geolocation=(), microphone=(), "
    "payment=(), usb=()",
}


def security_headers(nonce: str, *, framed: bool) -> dict[str, str]:
    """The headers of one answer. `nonce` marks the scripts of the document itself, so a script that
    somebody's text smuggled in does not run.
    """
    policy = _POLICY | ({"frame-ancestors": f"'self' {_HUB}"} if framed else {})
    text = "; ".join(f"{name} {value.format(nonce=nonce)}" for name, value in policy.items())
    return _FIXED | {"Content-Security-Policy": text}


def marked(document: bytes, nonce: str) -> bytes:
    """The page's document with our metadata and with its scripts marked. Its data hold no "<",
    because gradio escapes it.
    """
    return described(document).replace(b"<script", f'<script nonce="{nonce}"'.encode())
