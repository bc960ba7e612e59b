package downstream

import "iter"

// Subscriber is a client's stream, and its subscriptions.
type Subscriber struct {
	// Client is as NewServer's names got it, without Through.
	Client
	Door  *Door // of its listener; nil without one
	Types []SubscribedType
	// More reports that there are more subscriptions than Types has names.
	More bool
}

// SubscribedType has the names of one type that a client has subscribed to, as it requested them.
type SubscribedType struct {
	TypeURL string
	Names   []string
}

// Streams returns how many open streams came in by the door.
func (d *Door) Streams() int { return int(d.streams.Load()) }

// Subscribers iterates over the open streams that have requested something, with up to most names of each. It locks a
// stream only while it copies the names.
func (s *Server) Subscribers(most int) iter.Seq[Subscriber] {
	return func(yield func(Subscriber) bool) {
		s.mu.Lock()
		streams := s.streams.all()
		s.mu.Unlock()
		for _, st := range streams {
			if sub, ok := st.subscriber(most); ok && !yield(sub) {
				return
			}
		}
	}
}

func (st *stream) subscriber(most int) (sub Subscriber, ok bool) {
	st.mu.Lock()
	defer st.mu.Unlock()
	if st.names == nil || st.closed {
		return sub, false
	}
	sub.Client = Client{Node: st.node, Identity: st.identity}
	if st.gate != nil {
		sub.Door = st.gate.door
		sub.SecretsForAnyone = sub.Door.newest.Load().secretsForAnyone
	}
	for _, s := range st.sessions {
		of := SubscribedType{TypeURL: s.TypeURL()}
		for name := range s.Names() {
			if most--; most < 0 {
				sub.More = true
				break
			}
			of.Names = append(of.Names, name)
		}
		sub.Types = append(sub.Types, of)
	}
	return sub, true
}
