"""All of the app but the page: one package a subject, in layers that tests/test_rooms.py holds."""
