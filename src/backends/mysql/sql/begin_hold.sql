-- Counts the fence of a hold that was just taken, and writes its record. Does nothing if an earlier
-- run record may deny the grant, if the lease of a hold whose server was restarted or replaced may
-- not be over, if a vanished hold is not in the history (its lease may have ended since that was
-- written), if another mode may keep the lock, or if another holder counted a fence since the row
-- was locked: this request is late then. A retry gets the same fence, and nothing if the hold was
-- undone; so does a request that arrives after its retry, for an older session, too. The fence is
-- committed while the lock is held, so that it survives every end of the hold. So is the end of the
-- drain delay of holders that vanished: a retry and the next holder have the delay, too.
UPDATE :sessions
   SET :start_set
       drains = :draining,
       fence = GREATEST(fence + 1, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))),
       session = :session, root = :root, since = UTC_TIMESTAMP(6), renewed_at = UTC_TIMESTAMP(6),
         ttl_ms = :ttl, metadata = :metadata,
       server = :server, ends = NULL
 WHERE name = :name AND :has AND COALESCE(:seen = fence, 1)
   AND NOT (root <=> :root AND session IS NULL)
   AND NOT (root <=> :root AND session >= :session AND :lives)
   AND :clear
   AND EXISTS (SELECT 1 FROM :table AS k WHERE k.name = :name AND k.mode = :mode)
   AND NOT (session IS NOT NULL AND root <> :root AND (:left OR NOT :told))
   AND NOT EXISTS (SELECT 1 FROM :readers WHERE name = :name AND root <> :root
     AND (:left OR NOT :told));
SELECT fence, layout, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
  COALESCE(drains > UTC_TIMESTAMP(6), 0) FROM :sessions
 WHERE name = :name AND session = :session AND root = :root AND :has;
