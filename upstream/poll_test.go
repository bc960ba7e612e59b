package upstream

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
)

// fakePoller is a poller that records its requests, and returns a test's answers.
type fakePoller struct {
	answers chan *answerJSON

	mu     sync.Mutex
	polled []*discoveryv3.DiscoveryRequest
}

// requests returns all requests so far.
func (a *fakePoller) requests() []*discoveryv3.DiscoveryRequest {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Clone(a.polled)
}

func (a *fakePoller) poll(ctx context.Context, _ string, r *discoveryv3.DiscoveryRequest) (*answerJSON, error) {
	a.mu.Lock()
	a.polled = append(a.polled, proto.CloneOf(r))
	a.mu.Unlock()
	select {
	case answer := <-a.answers:
		return answer, nil
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// runPoll runs a test of a pollStream by itself.
func runPoll(t *testing.T, test func(p *pollStream, a *fakePoller)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		a := &fakePoller{answers: make(chan *answerJSON)}
		p := newPollStream(ctx, "/path", a, time.Minute)
		test(p, a)
		cancel()
		<-p.done
	})
}

func (p *pollStream) sends(t *testing.T, nonce, version string, names ...string) {
	t.Helper()
	if err := p.SendMsg(&discoveryv3.DiscoveryRequest{ResourceNames: names, VersionInfo: version, ResponseNonce: nonce}); err != nil {
		t.Fatal(err)
	}
	synctest.Wait()
}

func (p *pollStream) receives(t *testing.T, wantVersion string) {
	t.Helper()
	var f frame
	if err := p.RecvMsg(&f); err != nil {
		t.Fatal(err)
	}
	got := "nothing new"
	if f.poll.response != nil {
		got = f.poll.response.Version
	}
	if got != wantVersion {
		t.Errorf("received %q, want %q", got, wantVersion)
	}
}

// A request without names after one with names is no wildcard. For a server that sees only that
// request it would be, so it is not sent.
func TestNoNamesAfterSomeAreNotPolledFor(t *testing.T) {
	runPoll(t, func(p *pollStream, a *fakePoller) {
		p.sends(t, "", "", "a")
		a.answers <- &answerJSON{version: "1"}
		p.receives(t, "1")
		p.sends(t, "1", "1")
		pass(time.Hour)
		if sent := a.requests(); len(sent) != 1 {
			t.Errorf("polled for %v", sent[1:])
		}
		p.sends(t, "1", "1", "b")
		if sent := a.requests(); len(sent) != 2 || sent[1].GetVersionInfo() != "" {
			t.Errorf("polled for %v", sent)
		}
	})
}

// The first poll shows the version of an earlier stream, as on any stream.
func TestFirstPollShowsTheVersionThatIsHeld(t *testing.T) {
	runPoll(t, func(p *pollStream, a *fakePoller) {
		p.sends(t, "", "7", "a", "b")
		if got := a.requests()[0].GetVersionInfo(); got != "7" {
			t.Errorf("polled with version %q", got)
		}
		// A control plane that does not compare versions answers with the same.
		a.answers <- &answerJSON{version: "7"}
		p.receives(t, "nothing new")
		if got := p.question(); got != 1 {
			t.Errorf("question %d", got)
		}
	})
}

// An answer for the names before does not answer new names.
func TestNewNamesAreRequestedAfterAnAnswerToTheOthers(t *testing.T) {
	runPoll(t, func(p *pollStream, a *fakePoller) {
		p.sends(t, "", "", "a")
		a.answers <- &answerJSON{version: "1"}
		p.receives(t, "1")
		p.sends(t, "1", "1", "a")
		for len(a.requests()) < 2 {
			pass(holdKnown / 10)
		}
		p.sends(t, "1", "1", "a", "b") // while the second request is in flight
		a.answers <- nil
		p.receives(t, "nothing new")
		synctest.Wait()
		if sent := a.requests(); len(sent) != 3 || sent[1].GetVersionInfo() != "1" || sent[2].GetVersionInfo() != "" {
			t.Errorf("polled for %v", sent)
		}
		a.answers <- &answerJSON{version: "1"}
		p.receives(t, "1")
	})
}

// Names with parameters are in locators.
func TestLocatorsArePolledFor(t *testing.T) {
	runPoll(t, func(p *pollStream, a *fakePoller) {
		send := func(nonce string, names ...string) {
			m := &discoveryv3.DiscoveryRequest{VersionInfo: nonce, ResponseNonce: nonce}
			for _, name := range names {
				m.ResourceLocators = append(m.ResourceLocators, &discoveryv3.ResourceLocator{Name: name, DynamicParameters: map[string]string{"k": "v"}})
			}
			if err := p.SendMsg(m); err != nil {
				t.Fatal(err)
			}
			synctest.Wait()
		}
		send("", "a")
		a.answers <- &answerJSON{version: "1"}
		p.receives(t, "1")
		send("1", "a", "b")
		if sent := a.requests(); len(sent) != 2 || sent[1].GetVersionInfo() != "" || len(sent[1].GetResourceLocators()) != 2 ||
			sent[1].GetResourceLocators()[1].GetDynamicParameters()["k"] != "v" {
			t.Fatalf("polled for %v", sent)
		}
		a.answers <- &answerJSON{version: "1"}
		p.receives(t, "1")
		send("2")
		pass(time.Hour)
		if sent := a.requests(); len(sent) != 2 {
			t.Errorf("polled for %v", sent[2:])
		}
	})
}

func TestPollStreamEnds(t *testing.T) {
	runPoll(t, func(p *pollStream, a *fakePoller) {
		p.sends(t, "", "", "a")
		if err := p.CloseSend(); err != nil {
			t.Error(err)
		}
		if err := p.RecvMsg(&frame{}); !errors.Is(err, io.EOF) {
			t.Errorf("received %v", err)
		}
		if err := p.SendMsg(&discoveryv3.DiscoveryRequest{}); !errors.Is(err, io.EOF) {
			t.Errorf("sent: %v", err)
		}
		if p.Context().Err() == nil || len(a.requests()) != 1 {
			t.Errorf("it goes on, %d times", len(a.requests()))
		}
	})
	runPoll(t, func(p *pollStream, _ *fakePoller) {
		for _, m := range []any{nil, &discoveryv3.DeltaDiscoveryRequest{}} {
			if p.SendMsg(m) == nil || p.RecvMsg(m) == nil {
				t.Errorf("%T was taken", m)
			}
		}
	})
}
