-- The hold is over, and was never used: whether or not the session that had it is over. What was written of it is taken out; what may yet be
-- asked for it comes too late, for its name stays until the next one takes its place.
INSERT INTO :sessions (name, layout, fence, session, root, since, renewed_at, ttl_ms)
VALUES (:name, 100, 0, NULL, :root, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 0)
    ON DUPLICATE KEY UPDATE
       start_stage = IF(root = :root AND start_fence = fence AND start_stage = 'started', 'undone', start_stage),
       paced_at = IF(root = :root AND paced_fence = fence, NULL, paced_at),
       metadata = IF(root = :root OR session IS NULL, NULL, metadata),
       root = IF(session IS NULL, :root, root),
       session = IF(root = :root, NULL, session);
