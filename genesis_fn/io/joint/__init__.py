"""Files of arrays that several processes hold together."""
