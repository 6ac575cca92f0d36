l.name::text AS name, l.locked_by::text AS locked_by, l.layout, l.owner, l.fence, l.revision,
  l.document, l.mode,
       {waited} AS waited,
       (extract(epoch FROM t.now) * 1000000)::bigint AS now_us,
       {until} AS lock_until_us,
       (extract(epoch FROM l.locked_at) * 1000000)::bigint AS locked_at_us,
       (extract(epoch FROM coalesce(l.renewed_at, l.locked_at)) * 1000000)::bigint AS renewed_us,
       {starts}
