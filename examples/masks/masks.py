"""What leaves dbs1 of a customer: a pseudonym in the place of the address, and no decimals of the credit."""

import hashlib


def pseudonym(lcr):
    # The old value too: the destination's row has the pseudonym of it.
    for image in ("old", "new"):
        values = lcr.get_values(image, use_old=False)
        email = values.get("email")
        if email is not None and not email.is_null:
            lcr.set_value(image, "email", hashlib.sha256(email.decoded.lower().encode()).hexdigest()[:16])
    return lcr


def without_internal(lcr):
    """At a capture process: internal orders are discarded."""
    kind = lcr.get_value("old" if lcr.command_type == "DELETE" else "new", "kind")
    return [] if kind is not None and kind.decoded == "internal" else lcr
