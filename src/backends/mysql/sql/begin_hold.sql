-- Whether the holder before vanished: who gives a lock back takes its session out first. Then counts the fence of a hold
-- that was just taken, and says whose it is, unless a start of a run before may be in the way; asked again it is what it was. It is committed by itself while the lock is held, so that it survives however
-- the hold ends.
SELECT COUNT(*) FROM :sessions WHERE name = :name AND session IS NOT NULL AND root <> :root;
SELECT COUNT(*) INTO @dlock_barred FROM :sessions AS l WHERE l.name = :name AND NOT (:clear);
INSERT INTO :sessions (name, layout, fence, session, root, since, renewed_at, ttl_ms, metadata:start_columns)
SELECT :name, 100, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)), :session, :root, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), :ttl, :metadata:start_values
  FROM DUAL WHERE :has AND @dlock_barred = 0
    ON DUPLICATE KEY UPDATE
       :start_set
       fence = GREATEST(fence + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
       session = :session, root = :root, since = UTC_TIMESTAMP(6), renewed_at = UTC_TIMESTAMP(6), ttl_ms = :ttl, metadata = :metadata;
SELECT fence, layout, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) FROM :sessions
 WHERE name = :name AND session = :session AND root = :root AND :has;
