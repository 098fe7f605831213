"""Orders at the destination: the status in capitals, and no order is ever deleted."""


def apply_order(lcr, session):
    if lcr.command_type == "DELETE":
        key = lcr.get_value("old", "id").decoded
        session.execute("UPDATE shop.orders SET status = 'DELETED' WHERE id = $1", key)
        return
    # The old value too: it is compared with the row, which has capitals.
    for kind in ("old", "new"):
        status = lcr.get_value(kind, "status", use_old=False)
        if status is not None and not status.is_null:
            lcr.set_value(kind, "status", status.decoded.upper())
    lcr.execute(conflict_resolution=True)
