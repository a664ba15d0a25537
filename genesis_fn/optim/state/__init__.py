"""Reading, changing and computing with optimizer states, which are trees."""
