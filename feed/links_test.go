package feed

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/xds-relay/xds-relay/internal/delivery"
)

// A type moves from a stream of its own to the shared one, and its own stream ends after the shared one was answered.
func TestAStreamThatEndsIsNotTheOneThatHasTakenItsPlace(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Links{}
		own, shared := new(int), new(int)
		event := func(kind delivery.Kind, stream *int) {
			l.Event(0, delivery.Event{Kind: kind, TypeURL: "cds", Stream: stream})
		}
		waits := func(held time.Time, want bool) {
			t.Helper()
			if until := l.Waits("cds", held, time.Time{}); until.After(time.Now()) != want {
				t.Errorf("what is held waits until %v, want: %t", until, want)
			}
		}
		event(delivery.TypeOpened, own)
		event(delivery.TypeAnswered, own)
		event(delivery.TypeOpened, shared)
		event(delivery.TypeAnswered, shared)
		held := time.Now()
		event(delivery.TypeLost, own)
		time.Sleep(time.Minute)
		waits(held, false)

		event(delivery.TypeLost, shared)
		waits(held, true)
		time.Sleep(time.Hour)
		waits(held, true)
		event(delivery.TypeOpened, shared)
		event(delivery.TypeAnswered, shared)
		waits(held, true)
		time.Sleep(settle)
		waits(held, false)

		l.close(0)
		waits(held, true)
	})
}
