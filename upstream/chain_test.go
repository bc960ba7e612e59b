package upstream

import (
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/xds-relay/xds-relay/internal/chain"
)

// behind are relays that a test sets.
type behind struct {
	mu    sync.Mutex
	ids   []string
	watch func()
}

func (b *behind) Chain() chain.Chain {
	b.mu.Lock()
	defer b.mu.Unlock()
	return chain.Chain{Relay: true, IDs: b.ids}
}

func (b *behind) Stale(announced []string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return !slices.Equal(b.ids, announced)
}

func (b *behind) ID() string { return "own" }

func (b *behind) Refused([]string, string) bool { return false }

func (b *behind) Watch(f func()) (stop func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.watch = f
	return func() { b.set() }
}

func (b *behind) set(ids ...string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.ids = ids
	if b.watch != nil {
		b.watch()
	}
}

// Polls announce relays as streams do.
func TestPollsAnnounceRelays(t *testing.T) {
	relays := &behind{}
	runREST(t, Options{Chain: relays}, RESTOptions{PollInterval: time.Minute}, func(b *restBench) {
		b.cache.WatchSet(key("cds", "*"), &setWatcher{})
		asked := func(want string) {
			t.Helper()
			r := b.next()
			if got := r.http.Header.Values(chain.Header); !slices.Equal(got, []string{want}) {
				t.Errorf("asked with %q, want %q", got, want)
			}
			r.reply(200, answerOf(t, "cds", "1", "1", "a"))
		}
		asked("*")
		relays.set("edge,1", "hub")
		asked("edge%2C1,hub") // at once
		relays.set("hub")
		synctest.Wait()
		b.none(8 * time.Second) // whoever makes up relays does not keep it busy
		asked("hub")
	})
}
