"""Line searches: transformations that find how far to go along an update."""
