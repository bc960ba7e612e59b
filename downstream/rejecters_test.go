package downstream

import (
	"fmt"
	"testing"

	"github.com/xds-relay/xds-relay/downstream/session"
)

// A client may have several streams of one type, as Envoy has without ADS.
func TestAClientWithSeveralStreamsIsOneRejecter(t *testing.T) {
	one, other := clientKey{"envoy", &limitedConn{}}, clientKey{"envoy", &limitedConn{}}
	describe := func(r *Rejecters) string {
		return fmt.Sprintf("%d of %d %s: %s, undecided: %t", r.Rejecting, r.Clients, r.Names, r.Reason, r.Undecided)
	}
	rejection := func(at uint32, reason string) *session.Rejection {
		return &session.Rejection{At: at, Reason: reason}
	}
	var r Rejecters
	r.add(one, nil, false)
	r.add(one, rejection(2, "newest"), false)
	r.add(one, rejection(1, "first"), false)
	r.add(one, nil, true)
	r.add(other, nil, true) // it has rejected nothing
	if got, want := describe(&r), "1 of 2 [envoy]: newest, undecided: false"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	for i := range 5 {
		r.add(clientKey{fmt.Sprint(i), nil}, rejection(3, "bad"), false)
	}
	r.add(clientKey{"late", nil}, rejection(4, "not decided"), true)
	if got, want := describe(&r), "6 of 8 [envoy 0 1]: bad, undecided: true"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}
