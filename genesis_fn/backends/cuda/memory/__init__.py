"""Device memory: the pool, staging, and exchange with other libraries."""
