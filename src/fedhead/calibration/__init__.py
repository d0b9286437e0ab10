"""Class statistics that add up over clients, virtual features drawn from them, and heads trained on those."""
