package relay

import (
	"fmt"
	"sync"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/inbox"
)

// refusingSource is the source of a scope whose authority is not configured any more. Its topics get an error and
// keep what they have: that the relay has no source for a resource does not mean that the resource is gone.
type refusingSource struct {
	why   *cache.Error
	sink  sink
	inbox *inbox.Inbox[cache.Key]
	stop  chan struct{}
	done  chan struct{}
	once  sync.Once
}

func newRefusingSource(scope cache.Scope, to sink) *refusingSource {
	s := &refusingSource{
		why: &cache.Error{
			Code: codes.Unavailable, Refused: true,
			Message: fmt.Sprintf("authority %q is not configured at this relay any more", scope.Authority),
		},
		sink: to, inbox: inbox.New[cache.Key](), stop: make(chan struct{}), done: make(chan struct{}),
	}
	go s.run()
	return s
}

func (s *refusingSource) run() {
	defer close(s.done)
	for {
		select {
		case <-s.inbox.Awake():
		case <-s.stop:
			return
		}
		for _, k := range s.inbox.Take() {
			u := cache.Update{Scope: k.Scope, TypeURL: k.TypeURL}
			if k.IsSet() {
				u.Sets = []cache.SetUpdate{{Name: k.Name, Err: s.why}}
			} else {
				u.Changes = []cache.Change{{Name: k.Name, Err: s.why}}
			}
			s.sink.Apply(u)
		}
	}
}

// Start implements cache.Source.
func (s *refusingSource) Start(k cache.Key) { s.inbox.Put(k) }

// Refresh implements cache.Source.
func (s *refusingSource) Refresh(k cache.Key) { s.inbox.Put(k) }

// Resume implements cache.Resumer.
func (*refusingSource) Resume(cache.Key) {}

// Adopt implements cache.Adopter.
func (*refusingSource) Adopt(cache.Key) {}

// Answered implements source.
func (*refusingSource) Answered() <-chan struct{} { return nil }

// Stop implements cache.Source. An error for a topic that has ended goes nowhere.
func (s *refusingSource) Stop(cache.Key) {}

// Drain implements source.
func (*refusingSource) Drain() {}

// Mute implements source. The error that the authority is not configured still reaches the topics.
func (*refusingSource) Mute() {}

// Close implements source.
func (s *refusingSource) Close() {
	s.once.Do(func() { close(s.stop) })
	<-s.done
}
