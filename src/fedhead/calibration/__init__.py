"""Class statistics that add up, virtual features drawn from them, and heads trained on those."""
