package upstream

import (
	"time"

	"github.com/xds-relay/xds-relay/cache"
)

// batch has suspects that came together. A good one among a few does not wait for the many that came before.
type batch struct {
	parts [][]cache.Key // to be tried each
}

// ready returns when the next trial may begin.
func (q *quarantine) ready() time.Time { return later(q.next, q.spent.Add(-trialsAtOnce*trialEvery)) }

// waits reports whether there are suspects to be tried that are not known to be bad.
func (q *quarantine) waits() bool { return len(q.batches) > 0 }

// take takes the suspects that are tried next, and their batch.
func (q *quarantine) take(now time.Time) (keys []cache.Key, from *batch) {
	if now.Before(q.ready()) {
		return nil, nil
	}
	for len(q.batches) > 0 {
		b := q.batches[0]
		q.batches[0] = nil
		q.batches = q.batches[1:]
		if b == q.fresh {
			q.fresh = nil
		}
		for len(b.parts) > 0 && len(keys) == 0 {
			keys = q.unqueue(b.parts[0])
			b.parts[0] = nil
			b.parts = b.parts[1:]
		}
		if len(b.parts) > 0 {
			q.batches = append(q.batches, b)
		}
		if len(keys) > 0 {
			return keys, b
		}
	}
	if len(q.trials) > 0 {
		return nil, nil // what is known to be bad has time
	}
	if k, at, ok := q.retries.First(); ok && !now.Before(later(at, q.nextRetry)) {
		return []cache.Key{k}, nil // the one that has waited longest, so that each has its turn
	}
	return nil, nil
}

// unqueue returns those of a part that are still suspects, and wait for a trial no longer.
func (q *quarantine) unqueue(part []cache.Key) (keys []cache.Key) {
	for _, k := range part {
		if x := q.suspects[k]; x != nil && x.queued {
			x.queued = false
			keys = append(keys, k)
		}
	}
	return keys
}

// put queues suspects of a batch for another trial, after its other parts.
func (q *quarantine) put(b *batch, part []cache.Key) {
	for _, k := range part {
		q.suspects[k].queued = true
	}
	if len(b.parts) == 0 {
		q.batches = append(q.batches, b)
	}
	b.parts = append(b.parts, part)
}
