"""Customers whose number is taken at the destination."""


def keep_both(lcr, error, session):
    if error.kind != "insert_exists":
        raise ValueError(f"not for {error.kind or error.number}")
    new = {name: value.decoded for name, value in lcr.get_values("new").items()}
    session.execute(
        "INSERT INTO shop.doubles (id, name, error) VALUES ($1, $2, $3)", new["id"], new["name"], error.message
    )
