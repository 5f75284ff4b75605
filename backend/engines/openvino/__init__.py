"""The OpenVINO engine: its declaration, the conversion of models, and sessions that run them."""
