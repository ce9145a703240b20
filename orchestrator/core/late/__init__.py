"""Late binding: requests wait in the router until an endpoint is free, and the best one goes next."""
