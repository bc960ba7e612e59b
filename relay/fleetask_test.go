package relay

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"

	"github.com/xds-relay/xds-relay/internal/fleet"
	"github.com/xds-relay/xds-relay/operator"
)

// askJSON gets a document of a relay's admin listener.
func askJSON[T any](t *testing.T, r *Relay, path string) *T {
	t.Helper()
	w := askAdmin(r, path)
	into := new(T)
	if err := json.Unmarshal(w.Body.Bytes(), into); err != nil || w.Code != http.StatusOK {
		t.Fatalf("%s: status %d, %v\n%s", path, w.Code, err, w.Body)
	}
	return into
}

// TestAnyRelayAnswersForTheFleet: operators see the clients of all relays.
func TestAnyRelayAnswersForTheFleet(t *testing.T) {
	f := startFleetTest(t)
	for i := range f.relays {
		f.run(i, f.config(i, "a", f.fleetOf(i, "", f.peers[0], f.peers[1])))
	}
	f.awaitShared()
	f.connect()
	for i, r := range f.relays {
		list := askJSON[operator.ClientList](t, r, "/api/clients?limit=1000")
		at := map[string]int{}
		for _, c := range list.Clients {
			at[c.Relay]++
			if c.Elsewhere {
				t.Errorf("relay %d: JSON has what is for pages", i)
			}
		}
		local := askJSON[operator.ClientList](t, r, "/api/clients?local=true")
		if at[f.peers[i]] != len(local.Clients) || at[f.peers[i]] < fleetZones || at[f.peers[1-i]] < fleetZones || len(at) != 2 || len(list.NoAnswer) > 0 || list.More {
			t.Errorf("relay %d has %d clients, and lists %v, more %t, no answer %v", i, len(local.Clients), at, list.More, list.NoAnswer)
		}
		if cut := askJSON[operator.ClientList](t, r, "/api/clients?limit=1"); len(cut.Clients) != 1 || !cut.More {
			t.Errorf("relay %d lists %d clients, more %t; want 1, and more", i, len(cut.Clients), cut.More)
		}
		if page := askAdmin(r, "/ui/clients").Body.String(); strings.Count(page, f.peers[1-i]) < fleetZones {
			t.Errorf("relay %d's page does not name the relay of the other clients:\n%s", i, page)
		}

		s := askJSON[operator.RelayStatus](t, r, "/api/status")
		if s.Relay != f.peers[i] || s.AllClients <= s.Clients || len(s.NoAnswer) > 0 {
			t.Errorf("relay %d says that it is %s; %d of %d clients are its own; no answer: %v", i, s.Relay, s.Clients, s.AllClients, s.NoAnswer)
		}

		other := f.clientOf(1 - i)
		e := askJSON[operator.Explanation](t, r, "/api/explain?type=cluster&name=m1&client="+other)
		if e.Relay != f.peers[1-i] || !e.Has {
			t.Errorf("relay %d explains a client of the other one: %+v", i, e)
		}
		d := askJSON[operator.ClientDifference](t, r, "/api/diff?a="+other+"&b="+other)
		if d.A.Relay != f.peers[1-i] || d.Same == 0 || d.Total > 0 {
			t.Errorf("relay %d compares clients of the other one: %+v", i, d)
		}
		if w := askAdmin(r, "/api/explain?type=cluster&name=m1&local=true&client="+other); w.Code != http.StatusNotFound {
			t.Errorf("relay %d knows a client of the other one: %d", i, w.Code)
		}
		if w := askAdmin(r, "/api/explain?type=cluster&name=m1&client=nobody"); w.Code != http.StatusNotFound {
			t.Errorf("relay %d explains a client that nobody has: %d", i, w.Code)
		}
	}
}

// clientOf returns the node id of a client of a relay.
func (f *fleetTest) clientOf(i int) string { return []string{"0-0", "1-0"}[i] }

// TestAMemberThatHangsDelaysNoAnswer for long, and is named.
func TestAMemberThatHangsDelaysNoAnswer(t *testing.T) {
	f := startFleetTest(t)
	_, hangs := startHangingMember(t)
	f.run(0, f.config(0, "a", f.fleetOf(0, "", f.peers[0], f.peers[1], hangs)))
	member := func(address string) operator.FleetMember {
		for _, m := range f.relays[0].fleetStatus().Members {
			if m.Address == address {
				return m
			}
		}
		return operator.FleetMember{}
	}
	await(t, "the members are known", func() bool { return member(hangs).Reachable && member(f.peers[1]).Reason != "" })
	begun := time.Now()
	s := askJSON[operator.RelayStatus](t, f.relays[0], "/api/status")
	if took := time.Since(begun); took > 5*time.Second {
		t.Errorf("the answer took %v", took)
	}
	why := map[string]string{}
	for _, n := range s.NoAnswer {
		why[n.Relay] = n.Reason
	}
	if len(why) != 2 || why[hangs] != "no answer within 1s" || why[f.peers[1]] == "" {
		t.Errorf("no answer: %v", s.NoAnswer)
	}
}

// startHangingMember starts a member that is there, and never answers questions.
func startHangingMember(t *testing.T) (*grpc.Server, string) {
	t.Helper()
	socket, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g, h := grpc.NewServer(), health.NewServer()
	h.SetServingStatus(fleet.ServiceOf("edge"), healthpb.HealthCheckResponse_SERVING)
	healthpb.RegisterHealthServer(g, h)
	fleet.RegisterAnswers(g, func(ctx context.Context, _ fleet.Question) (fleet.Answer, error) {
		<-ctx.Done()
		return fleet.Answer{}, ctx.Err()
	})
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = g.Serve(socket)
	}()
	t.Cleanup(func() { g.Stop(); <-done })
	return g, socket.Addr().String()
}

// TestAnActOfAnOperatorHoldsForTheFleet whichever relay the operator uses.
func TestAnActOfAnOperatorHoldsForTheFleet(t *testing.T) {
	f := startFleetTest(t)
	for i := range f.relays {
		c := f.config(i, "a", f.fleetOf(i, "", f.peers[0], f.peers[1]))
		f.run(i, strings.Replace(c, "authorities: [{name: a,", "authorities: [{name: a, rollout: {},", 1))
	}
	f.awaitShared()
	f.connect()
	frozen := func(query string) (at map[string]int) {
		at = map[string]int{}
		for _, s := range *askJSON[[]operator.RolloutStatus](t, f.relays[1], "/rollouts"+query) {
			if s.Frozen {
				at[s.Relay]++
			}
		}
		return at
	}
	if at := frozen(""); len(at) > 0 {
		t.Errorf("rollouts are frozen before anybody has said so: %v", at)
	}
	act := func(action, values string) (did operator.RolloutAction) {
		t.Helper()
		w := httptest.NewRecorder()
		req := httptest.NewRequest(http.MethodPost, "http://localhost/rollout/"+action, strings.NewReader(values))
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		f.relays[0].admin.ServeHTTP(w, req)
		if err := json.Unmarshal(w.Body.Bytes(), &did); err != nil {
			t.Fatalf("%v\n%s", err, w.Body)
		}
		return did
	}
	if did := act("freeze", ""); did.Rollouts == 0 || len(did.NoAnswer) > 0 {
		t.Errorf("freeze: %+v", did)
	}
	if at := frozen(""); at[f.peers[0]] == 0 || at[f.peers[1]] == 0 {
		t.Errorf("frozen rollouts are at %v, want both relays", at)
	}
	act("thaw", "local=true")
	if at := frozen(""); at[f.peers[0]] > 0 || at[f.peers[1]] == 0 {
		t.Errorf("after a thaw at the first relay only, frozen rollouts are at %v", at)
	}
	act("thaw", "")
	if at := frozen(""); len(at) > 0 {
		t.Errorf("after a thaw, frozen rollouts are at %v", at)
	}
}

// TestMembersAnswerOnlyWhatOperatorsAsk: the door gives no other page.
func TestMembersAnswerOnlyWhatOperatorsAsk(t *testing.T) {
	f := startFleetTest(t)
	f.run(0, f.config(0, "a", f.fleetOf(0, "", f.peers[0])))
	for _, q := range []fleet.Question{
		{Method: http.MethodGet, Path: "/metrics"},
		{Method: http.MethodPost, Path: "/reload"},
		{Method: http.MethodPost, Path: "/api/status"},
		{Method: http.MethodGet, Path: "/rollout/freeze"},
		{Method: "GET /", Path: "/api/status"},
	} {
		if _, err := f.relays[0].observer.AnswerMember(t.Context(), q); status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s %s: %v", q.Method, q.Path, err)
		}
	}
}
