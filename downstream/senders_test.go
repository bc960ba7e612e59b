package downstream

import (
	"fmt"
	"runtime"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// slowStream counts the messages that it takes, and how many of all streams are taking
// one. It takes each for as long as it is told.
type slowStream struct {
	notGRPC
	takes    time.Duration
	messages atomic.Int64
	busy     *busy
}

type busy struct{ now, most atomic.Int64 }

// SendMsg implements grpc.ServerStream.
func (s *slowStream) SendMsg(any) error {
	n := s.busy.now.Add(1)
	for most := s.busy.most.Load(); n > most && !s.busy.most.CompareAndSwap(most, n); most = s.busy.most.Load() {
	}
	time.Sleep(s.takes)
	s.busy.now.Add(-1)
	s.messages.Add(1)
	return nil
}

// paced are clients whose streams take so long for each message, and wait for one resource.
func paced(t *testing.T, limit, clients int, takes time.Duration) (*crowd, []*slowStream, *busy) {
	t.Helper()
	c, all := newCrowd(t), &busy{}
	c.server.senders.limit = limit
	var streams []*slowStream
	for range clients {
		st := c.join(deltaForm.name, endpointType, benchNames(1)...)
		p := &slowStream{takes: takes, busy: all}
		st.grpc = p
		streams = append(streams, p)
	}
	return c, streams, all
}

func (c *crowd) changes(content int) {
	c.cache.Apply(puts(endpointType, fmt.Sprint("v", content), values(1, 10, content)...))
}

func TestAsManySendersAsThereAreProcessors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, clients = 3, 100
		c, streams, busy := paced(t, limit, clients, lendAfter/2)
		c.changes(1)
		time.Sleep(time.Minute)
		for i, s := range streams {
			if n := s.messages.Load(); n != 1 {
				t.Errorf("client %d was sent %d messages, want 1", i, n)
			}
		}
		if most := busy.most.Load(); most != limit {
			t.Errorf("%d were sent to at once, want %d", most, limit)
		}
	})
}

// Who takes less than two ticks of the senders' timer holds up nobody, and the timer runs only as long as there is a sender.
func TestASenderKeepsItsPlaceForShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, streams, busy := paced(t, 1, 2, lendAfter*7/5)
		q := c.server.senders
		q.mu.Lock()
		q.idle = nil // a new sender keeps its place, too
		q.mu.Unlock()
		c.changes(1)
		time.Sleep(time.Minute)
		for i, s := range streams {
			if n := s.messages.Load(); n != 1 {
				t.Errorf("client %d was sent %d messages, want 1", i, n)
			}
		}
		if most := busy.most.Load(); most != 1 {
			t.Errorf("%d were sent to at once: a place was lent", most)
		}
		q.mu.Lock()
		defer q.mu.Unlock()
		if q.ticks || len(q.idle) != 1 {
			t.Errorf("the timer runs: %v; %d senders are idle, want 1", q.ticks, len(q.idle))
		}
	})
}

// Who has to wait for its turn is sent the newest state, once.
func TestUnderLoadClientsAreSentFewerResponses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients, updates = 100, 200
		// No client's turn comes at the very moment of an update.
		c, streams, _ := paced(t, 1, clients, lendAfter/2-time.Microsecond)
		for k := range updates {
			c.changes(k)
			time.Sleep(lendAfter)
		}
		time.Sleep(time.Minute)
		for i, s := range streams {
			// In the time that it takes to send to all, there are so many updates.
			const merged = clients / 2
			if n := s.messages.Load(); n < updates/merged || n > updates/merged+2 {
				t.Errorf("client %d was sent %d messages, want %d", i, n, updates/merged)
			}
		}
	})
}

func TestAClientThatDoesNotReadHoldsUpNoSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients = 20
		c, streams, busy := paced(t, 1, clients, 0)
		for _, s := range streams[:clients/2] {
			s.takes = time.Hour
		}
		c.changes(1)
		time.Sleep(clients * lendAfter)
		synctest.Wait()
		for i, s := range streams[clients/2:] {
			if n := s.messages.Load(); n != 1 {
				t.Errorf("client %d, which reads, was sent %d messages, want 1", clients/2+i, n)
			}
		}
		// The next time they have nobody's place to take.
		time.Sleep(2 * time.Hour)
		c.changes(2)
		synctest.Wait()
		for i, s := range streams[clients/2:] {
			if n := s.messages.Load(); n != 2 {
				t.Errorf("client %d was sent %d messages at once, want 2", clients/2+i, n)
			}
		}
		time.Sleep(2 * time.Hour)
		for i, s := range streams {
			if n := s.messages.Load(); n != 2 {
				t.Errorf("client %d was sent %d messages in the end, want 2", i, n)
			}
		}
		if n, _ := c.atWork(); n != 0 || busy.now.Load() != 0 {
			t.Errorf("%d senders are left", n)
		}
	})
}

// A request for very many names is taken under the stream's lock, and so are they given up.
func TestAStreamThatTakesARequestHoldsUpNoSender(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit, clients = 2, 5
		c, sent, _ := paced(t, limit, clients, 0)
		taking := c.streams[:limit+1]
		for _, st := range taking {
			st.mu.Lock()
		}
		c.changes(1)
		for i := range clients - len(taking) {
			s := sent[len(taking)+i]
			// Who waits for a mutex does not count as blocked for synctest.Wait.
			for tries := 0; s.messages.Load() == 0 && tries < 1_000_000; tries++ {
				runtime.Gosched()
			}
		}
		for i, s := range sent {
			if n, want := s.messages.Load(), int64(min(1, i/len(taking))); n != want {
				t.Errorf("client %d was sent %d messages, want %d", i, n, want)
			}
		}
		for _, st := range taking {
			st.mu.Unlock()
		}
		synctest.Wait()
		for i, s := range sent {
			if n := s.messages.Load(); n != 1 {
				t.Errorf("client %d was sent %d messages in the end, want 1", i, n)
			}
		}
	})
}
