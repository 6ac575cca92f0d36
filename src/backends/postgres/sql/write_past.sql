remembered AS (
    INSERT INTO {runs} (name, fence, since, ended, how, outcome, metadata)
    SELECT $1, p.fence, timestamp 'epoch' + p.since * interval '1 millisecond',
           coalesce(timestamp 'epoch' + p.ended * interval '1 millisecond',
             timezone('utc', clock_timestamp())), p.how, p.outcome, p.metadata
      FROM written, (VALUES $15) AS p (fence, since, ended, how, outcome, metadata)
    ON CONFLICT (name, fence) DO NOTHING
    RETURNING fence
)
