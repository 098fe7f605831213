"""Components, controllers and overviews of a topology, without Ray."""
