"""Roles of staff: what each may do, and why. Groups of these names are made by
``migrations/0001_roles.py``; whoever runs the gateway may change them afterwards.

A role is a group like any other: somebody may have several, and permissions besides. Without
``streaming.all_tenants`` they see the tenants that they are a member of, and no others.
"""

from __future__ import annotations

Reasons = dict[str, str]

_SESSIONS: Reasons = {
    "streaming.view_streamsession": "finds sessions, those interrupted first, and reads what happened",
    "streaming.view_attempt": "… on which nodes",
    "streaming.view_sessionevent": "… and when",
}
_ALL: Reasons = {
    "streaming.all_tenants": "works for all customers",
    "streaming.view_tenant": "finds a customer by name",
}

ROLES: dict[str, Reasons] = {
    "support": {
        **_ALL,
        **_SESSIONS,
        "streaming.view_tokencheckpoint": "sees how far a log reaches; it is listed without text",
        "streaming.view_incident": "tells a customer that it was not only them",
        "streaming.view_inferencenode": "sees whether the node is well again",
        "streaming.view_nodeevent": "… and what had happened to it",
        "streaming.watch_live_board": "sees whether something is going on now",
        "streaming.review_session": "works through what readers noticed; sees the content of tenants "
        "that allow it",
        "streaming.stop_session": "stops what a customer cannot stop",
        "streaming.continue_session": "has an answer finished while the customer is on the phone",
        "streaming.export_sessions": "hands a customer the list of what was hit",
    },
    "content_reviewer": {
        **_ALL,
        **_SESSIONS,
        "streaming.reveal_content": "judges answers; each view is audited, with its reason",
        "streaming.purge_content": "forgets what somebody wants forgotten",
    },
    "finance": {
        **_ALL,
        **_SESSIONS,
        "streaming.view_incident": "credits what an incident has cost customers",
        "streaming.credit_incident": "… all of its sessions at once",
        "billing.view_usagerecord": "explains the bill of a session",
        "billing.view_settlement": "… line by line",
        "billing.view_ledgerentry": "reads the ledger",
        "billing.book_credit": "books credits and adjustments",
        "billing.view_creditrequest": "sees large credits that wait",
        "billing.approve_credit": "approves large credits of others; nobody approves their own",
        "billing.view_pricelist": "reads prices",
        "billing.view_priceplan": "… and what they were",
        "billing.add_priceplan": "sets prices, which are never changed",
        "billing.view_billingaccount": "reads accounts",
        "billing.add_billingaccount": "… opens them before they are needed",
        "billing.change_billingaccount": "… sets limits and time zones",
        "billing.view_billingperiod": "reads periods",
        "billing.view_periodtotal": "… and what they came to",
        "billing.change_billingperiod": "closes the month",
        "billing.view_export": "finds exports",
        "billing.export_ledger": "makes exports and statements, and downloads them",
        "billing.view_auditentry": "proves what was booked, and by whom",
        "billing.view_quotause": "sees what a customer has used of its limits",
        "billing.view_budgetalert": "… and what it was told",
        "billing.view_usagesink": "sees where usage events go",
        "billing.add_usagesink": "sends them to a new place",
        "billing.change_usagesink": "… switches places on and off, and signs anew",
        "billing.view_eventdelivery": "… and which did not arrive",
    },
    "operator": {
        **_ALL,
        **_SESSIONS,
        "streaming.view_tokencheckpoint": "sees how far a log reaches; it is listed without text",
        "streaming.view_inferencenode": "keeps the nodes",
        "streaming.add_inferencenode": "… adds them",
        "streaming.change_inferencenode": "… drains, resumes and switches them",
        "streaming.delete_inferencenode": "… takes them away",
        "streaming.operate_node": "… probes them, frees their caches, resets circuits",
        "streaming.view_nodeevent": "reads what happened to them",
        "streaming.view_modelpolicy": "keeps the switches of models",
        "streaming.add_modelpolicy": "… sets them",
        "streaming.change_modelpolicy": "… changes them",
        "streaming.delete_modelpolicy": "… removes them",
        "streaming.view_modelalias": "keeps the names of models",
        "streaming.add_modelalias": "… gives them",
        "streaming.change_modelalias": "… changes them",
        "streaming.delete_modelalias": "… takes them away",
        "streaming.view_gatewayinstance": "sees which gateways live",
        "streaming.view_taskrun": "sees whether the tasks run",
        "streaming.view_outboxmessage": "… and what waits for billing",
        "streaming.view_incident": "looks at what needs somebody",
        "streaming.change_incident": "… closes what is over, and reopens it",
        "streaming.watch_live_board": "sees what goes on",
    },
    "tenant_admin": {
        **_SESSIONS,
        "streaming.view_tenant": "sees its own entry",
        "streaming.view_apikey": "keeps its own keys",
        "streaming.add_apikey": "… makes them",
        "streaming.change_apikey": "… changes and revokes them",
        "streaming.view_modelalias": "sees its own names of models",
        "billing.view_usagerecord": "sees what its sessions have come to",
        "billing.view_quotause": "sees what it has used of its limits",
        "billing.view_budgetalert": "… and what it was told",
    },
}
