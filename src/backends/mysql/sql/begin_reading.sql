-- As begin_hold.sql, for a reader: counts the fence in the row that all readers share, which has no
-- writer any more, unless an earlier run record may deny the grant. The reader gets a row of its
-- own. The rows of vanished readers are deleted.
UPDATE :sessions
   SET fence = LAST_INSERT_ID(GREATEST(fence + 1,
     TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)))),
       drains = :draining,
       session = NULL, root = NULL, metadata = NULL, server = NULL, ends = NULL
 WHERE name = :name AND :has AND :clear
   AND EXISTS (SELECT 1 FROM :table AS k WHERE k.name = :name AND k.mode = :mode)
   AND NOT (session IS NOT NULL AND root <> :root AND (:left OR NOT :told))
   AND NOT EXISTS (SELECT 1 FROM :readers WHERE name = :name AND root = :root AND session
     >= :session AND :lives);
INSERT INTO :readers (name, root, fence, session, since, renewed_at, ttl_ms, metadata, server)
SELECT :name, :root, LAST_INSERT_ID(), :session, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), :ttl,
  :metadata, :server FROM DUAL WHERE ROW_COUNT() > 0 AND :has
    ON DUPLICATE KEY UPDATE fence = VALUES(fence), session = VALUES(session), since = VALUES(since),
      renewed_at = VALUES(renewed_at),
       ttl_ms = VALUES(ttl_ms), metadata = VALUES(metadata), server = VALUES(server), ends = NULL;
SELECT r.fence, s.layout, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)),
  COALESCE(s.drains > UTC_TIMESTAMP(6), 0)
  FROM :readers AS r JOIN :sessions AS s ON s.name = r.name WHERE r.name = :name AND r.root = :root
    AND r.session = :session AND :has;
DELETE r FROM :readers AS r WHERE r.name = :name AND r.root <> :root AND NOT :reads AND NOT :left
  AND :told;
