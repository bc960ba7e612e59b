package downstream

import "iter"

// Subscriber is a client's stream, and what it is subscribed to.
type Subscriber struct {
	// Client is as it was given to NewServer's names, without Through.
	Client
	Door  *Door // of its listener; nil of none
	Types []SubscribedType
	// More says that it is subscribed to more names than are in Types.
	More bool
}

// SubscribedType has the names that a client is subscribed to of one type, as it requested them.
type SubscribedType struct {
	TypeURL string
	Names   []string
}

// Streams returns how many streams are open that came in by the door.
func (d *Door) Streams() int { return int(d.streams.Load()) }

// Subscribers gives the open streams on which something was requested, with up to most names of each. A
// stream is locked only while its names are copied.
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
