-- The records of holders that may have vanished, and whether their hold was being broken.
-- $1 name
SELECT s.fence, (extract(epoch FROM s.since) * 1000)::bigint AS since_ms, NULL::bigint AS ended_ms,
       CASE WHEN m.mark IS NULL THEN 'expired' ELSE 'broken' END AS how,
       m.mark AS outcome, s.metadata
  FROM {sessions} AS s LEFT JOIN {marks} AS m ON m.name = $1 AND m.fence = s.fence
 WHERE s.name = $1
