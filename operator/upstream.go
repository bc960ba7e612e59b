package operator

import (
	"cmp"
	"iter"
	"slices"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream"
	"github.com/xds-relay/xds-relay/downstream/session"
)

// The leaf topics of the cache: what the relay has requested from control planes and directories.

// Upstream iterates over the leaf topics, scope by scope. Acked is what the relay has accepted, Nacked what it cannot
// store, with the last good resource if there is one. No lock is held while the loop's body runs. names, if not nil,
// selects topics.
func (r *Observer) Upstream(names func(cache.Key) bool) iter.Seq[downstream.Held] {
	return func(yield func(downstream.Held) bool) {
		scopes := slices.DeleteFunc(r.Cache.Scopes(), func(s cache.Scope) bool { return s.Derived != "" || s.New })
		slices.SortFunc(scopes, func(a, b cache.Scope) int {
			return cmp.Or(cmp.Compare(a.Authority, b.Authority), cmp.Compare(a.Partition, b.Partition), cmp.Compare(a.Params, b.Params))
		})
		for _, scope := range scopes {
			if !r.upstreamOf(scope, names, yield) {
				return
			}
		}
	}
}

// topicRef is a topic of a scope.
type topicRef struct{ typeURL, name string }

func (r *Observer) upstreamOf(scope cache.Scope, names func(cache.Key) bool, yield func(downstream.Held) bool) bool {
	var topics []topicRef
	r.Cache.EachTopic(scope, func(k cache.Key) { topics = append(topics, topicRef{k.TypeURL, k.Name}) })
	slices.SortFunc(topics, func(a, b topicRef) int {
		return cmp.Or(cmp.Compare(a.typeURL, b.typeURL), cmp.Compare(a.name, b.name))
	})
	for _, t := range topics {
		k := cache.Key{Scope: scope, TypeURL: t.typeURL, Name: t.name}
		if names != nil && !names(k) {
			continue
		}
		switch entry, set := r.Cache.Find(k); {
		case entry != nil:
			if !yield(r.requestedName(k, entry.State())) {
				return false
			}
		case set != nil && !r.upstreamSet(k, set, yield):
			return false
		}
	}
	return true
}

func (r *Observer) requestedName(k cache.Key, st cache.State) downstream.Held {
	h := downstream.Held{Held: session.Held{TypeURL: k.TypeURL, Subscription: k.Name, Name: k.Name, Key: k, Err: st.Err, Since: st.Since}}
	switch st.Status {
	case cache.Requested:
	case cache.Present:
		h.State = session.Acked
		if st.Err != nil && st.Err.Invalid {
			h.State = session.Nacked
		}
		h.Resource, h.Version, h.Stale = st.Resource, st.Resource.Version(), st.Stale
	case cache.Absent:
		h.State = session.DoesNotExist
	case cache.Failed:
		h.State = failedState(st.Err)
	}
	h.KeptBack = r.Rollouts.KeepsBack(k, []string{k.Name})[0]
	noteInvalid(&h)
	return h
}

// failedState returns the state of a topic that has only an error.
func failedState(err *cache.Error) session.HeldState {
	switch {
	case err == nil:
		return session.Failed
	case err.Invalid:
		return session.Nacked
	case err.Unanswered, err.Code == codes.DeadlineExceeded:
		return session.TimedOut
	case err.Outage != nil, err.Refused:
		return session.Requested // no control plane has sent the error
	}
	return session.Failed
}

// noteInvalid shows the error of a response that the relay has rejected as its NACK.
func noteInvalid(h *downstream.Held) {
	if h.State == session.Nacked && h.Err != nil {
		h.NACK, h.Err = &downstream.LastNACK{Reason: h.Err.Error()}, nil
	}
}

// membersAtOnce is how many members of a set are read at a time.
const membersAtOnce = 256

func (r *Observer) upstreamSet(k cache.Key, set *cache.Set, yield func(downstream.Held) bool) bool {
	status, err := set.Status()
	stale := set.Stale()
	itself := downstream.Held{Held: session.Held{TypeURL: k.TypeURL, Subscription: k.Name, Key: k, Err: err, Stale: stale, Members: set.Len()}}
	switch status {
	case cache.Present:
		itself.State = session.Acked
	case cache.Failed:
		itself.State = failedState(err)
		noteInvalid(&itself)
	case cache.Requested, cache.Absent:
	}
	if !yield(itself) {
		return false
	}
	var nobody cache.SetWatch
	var page []cache.SetMember
	var names []string
	for at := (cache.SetPosition{}); ; {
		before := at
		page, at = set.Page(&nobody, at, membersAtOnce, page[:0])
		if len(page) == 0 && at == before {
			return true
		}
		names = names[:0]
		for i := range page {
			names = append(names, page[i].Key)
		}
		kept := r.Rollouts.KeepsBack(k, names)
		for i := range page {
			m := &page[i]
			if m.Removed {
				continue
			}
			h := downstream.Held{Held: session.Held{TypeURL: k.TypeURL, Subscription: k.Name, Name: m.Key, Key: k, Err: m.Err, Since: m.Since}, KeptBack: kept[i]}
			if m.Resource == nil {
				h.State = failedState(m.Err)
			} else {
				h.State = session.Acked
				if m.Err != nil && m.Err.Invalid {
					h.State = session.Nacked
				}
				h.Name, h.Resource, h.Version, h.Stale = m.Resource.Name(), m.Resource, m.Resource.Version(), stale
			}
			noteInvalid(&h)
			if !yield(h) {
				return false
			}
		}
	}
}
