"""How fast and how strong: costs and qualities beside those of peers, measured in one run."""
