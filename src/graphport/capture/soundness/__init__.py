"""What a single trace assumes: guards, side effects, and what is restored after it."""
