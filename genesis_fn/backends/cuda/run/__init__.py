"""Steps as graphs on memory, launched on arrays."""
