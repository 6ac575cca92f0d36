floor(extract(epoch FROM l.paced_at) * 1000)::bigint AS paced_at_ms, l.paced_fence, l.paced_place,
  l.guard_ms, l.at_least_ms, l.paced_who, l.paced_hold,
       floor(extract(epoch FROM l.start_at) * 1000)::bigint AS start_at_ms, l.start_fence,
         l.start_stage, l.start_tries,
       l.start_window_ms, l.start_who, l.start_hold, l.paced_replaced, l.start_replaced
