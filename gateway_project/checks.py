"""System checks for settings that can't work. ``manage.py check`` runs them, ``serve`` too."""
