-- Removes the record of a hold that was never used, whether or not its session is over. A late
-- request for the hold writes nothing: the hold's id stays in the row until the next hold replaces
-- it.
INSERT INTO :sessions (name, layout, fence, session, root, since, renewed_at, ttl_ms)
VALUES (:name, 100, 0, NULL, :root, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 0)
    ON DUPLICATE KEY UPDATE
       start_stage = IF(root = :root AND start_fence = fence AND start_stage = 'started', 'undone',
         start_stage),
       paced_at = IF(root = :root AND paced_fence = fence, NULL, paced_at),
       metadata = IF(root = :root OR session IS NULL, NULL, metadata),
       root = IF(session IS NULL, :root, root),
       session = IF(root = :root, NULL, session);
