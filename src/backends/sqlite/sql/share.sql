-- Counts the fence for a share, and frees the lock from an exclusive hold that is over.
-- ?1 namespace, ?2 key, ?3 now in ms, ?4 lock file
INSERT INTO locks (namespace, key, fence, owner, hold, detached, lock_file, since_ms, renewed_ms, ttl_ms, hold_expires_ms, expires_ms)
VALUES (?1, ?2, ?3 * 1000, NULL, NULL, 0, ?4, ?3, ?3, 0, 0, 0)
ON CONFLICT (namespace, key) DO UPDATE SET
    fence = max(fence + 1, excluded.fence),
    owner = NULL,
    hold = NULL,
    metadata = NULL,
    mark = NULL,
    broken = NULL,
    seen = 0,
    ended = NULL,
    why = NULL
RETURNING fence
