"""Start processes of the harness: a kept one stands under a keeper, and leaves no process behind."""
