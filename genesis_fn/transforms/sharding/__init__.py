"""Programs over meshes: one device's part of them, and what whole arrays become of it."""
