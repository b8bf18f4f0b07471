"""How long one look of the operator at a large job takes, beside the code that this project started from."""
