l.name::text AS name, l.locked_by::text AS locked_by, l.layout, l.owner, l.root, coalesce(l.ttl_ms, 0) AS ttl_ms, l.holds, l.fence,
       l.detached, l.metadata, l.revision, l.document, l.mode,
       l.document IS NULL AND EXISTS (SELECT FROM {waiters} AS w WHERE w.name = l.name AND w.seen > clock_timestamp() - interval '15 seconds')
           AS waited,
       (SELECT m.mark FROM {marks} AS m WHERE m.name = l.name AND m.fence = l.fence) AS mark,
       coalesce((SELECT m.seen FROM {marks} AS m WHERE m.name = l.name AND m.fence = l.fence), false) AS seen,
       (extract(epoch FROM t.now) * 1000000)::bigint AS now_us,
       (extract(epoch FROM l.lock_until) * 1000000)::bigint AS lock_until_us,
       (extract(epoch FROM l.locked_at) * 1000000)::bigint AS locked_at_us,
       (extract(epoch FROM coalesce(l.renewed_at, l.locked_at)) * 1000000)::bigint AS renewed_us,
       {starts}
