"""Where in the user's program something happened, and what messages say of it."""
