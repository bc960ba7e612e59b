package downstream

import (
	"fmt"
	"testing"

	"github.com/xds-relay/xds-relay/downstream/session"
)

// The cohort of an identity is that of all of its clients that reject something, if they have one.
func TestTheCohortOfARejecterIsThatOfAllItsClients(t *testing.T) {
	for _, tt := range []struct {
		cohorts []string
		want    string
	}{
		{[]string{"envoy"}, "envoy"}, {[]string{"envoy", "envoy"}, "envoy"}, {[]string{"envoy", "grpc"}, ""},
		{[]string{"envoy", "grpc", "grpc"}, ""}, {[]string{"", "envoy"}, ""},
	} {
		var w Whos
		w.of(whoKey{name: "good"}).clients++
		for _, cohort := range tt.cohorts {
			is := w.of(whoKey{name: "bad"})
			is.clients++
			is.reject(cohort)
		}
		if r := w.Rejecters(); len(r.Whos) != 1 || r.Whos[0].Cohort != tt.want {
			t.Errorf("%q: got %+v, want %q", tt.cohorts, r.Whos, tt.want)
		}
	}
}

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
