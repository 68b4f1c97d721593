"""A second factor for staff: an authenticator app, and backup codes for when it is lost.

``devices`` keeps them, ``gate`` lets nobody past who has not shown theirs, ``pages`` is where it is set
up and asked for. The setting STAFF_SECOND_FACTOR says whether there is any of it.
"""
