freed AS (
    SELECT p.fence, timestamp 'epoch' + p.since * interval '1 millisecond' AS locked_at,
           coalesce(timestamp 'epoch' + p.ended * interval '1 millisecond', timezone('utc', clock_timestamp())) AS ended, p.how, p.why, p.metadata
      FROM written, (VALUES $15) AS p (fence, since, ended, how, why, metadata)
), remembered AS (
    INSERT INTO {runs} (name, fence, since, ended, how, why, metadata)
    SELECT $1, f.fence, f.locked_at, f.ended, f.how, f.why, f.metadata FROM freed AS f
    ON CONFLICT (name, fence) DO NOTHING
)
