"""``manage.py doctor``: looks at a deployment from inside and from its public address.

One module a subject: each reads what there is into a plain object, and judges it by functions that
only compute. ``docs/doctor.md`` says what every finding means.
"""
