package downstream

import (
	"bytes"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"

	"github.com/xds-relay/xds-relay/downstream/session"
)

// answering is a client that answers when the test says so.
type answering struct {
	*crowd
	st    *stream
	names []string

	mu   sync.Mutex
	sent []sentMessage // guarded by mu
}

// sentMessage is a response that a stream has sent.
type sentMessage struct {
	typeURL, nonce, version string
	encoded                 []byte
}

// SendMsg implements grpc.ServerStream.
func (a *answering) SendMsg(m any) error {
	r := m.(*session.Response)
	encoded := r.Encode().Materialize()
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sent = append(a.sent, sentMessage{r.TypeURL, r.Nonce, r.Version, encoded})
	return nil
}

// got returns what the stream has sent, without those that were forgotten.
func (a *answering) got() []sentMessage {
	synctest.Wait()
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.sent
}

func (a *answering) forget() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sent = nil
}

// answeringStream keeps the crowd's methods and those of gRPC apart.
type answeringStream struct {
	notGRPC
	*answering
}

func (s answeringStream) SendMsg(m any) error { return s.answering.SendMsg(m) }

func newAnswering(t *testing.T, form string) *answering {
	t.Helper()
	a := &answering{crowd: newCrowd(t), names: benchNames(1)}
	a.st = a.join(form, endpointType, a.names...)
	a.st.grpc = answeringStream{answering: a}
	return a
}

// ack acknowledges the newest response of a type.
func (a *answering) ack(typeURL string) {
	a.t.Helper()
	for _, r := range slices.Backward(a.got()) {
		if r.typeURL == typeURL {
			if a.st.form == deltaForm.name {
				a.take(a.st, encoded(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: r.nonce}))
			} else {
				a.take(a.st, encoded(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResponseNonce: r.nonce, VersionInfo: r.version, ResourceNames: a.names}))
			}
			return
		}
	}
	a.t.Fatalf("no response of %s to acknowledge", typeURL)
}

// updates applies so many, one each millisecond.
func (a *answering) updates(n int) {
	for k := range n {
		a.changes(k + 1)
		synctest.Wait()
		time.Sleep(time.Millisecond)
	}
}

// wantSent checks how many responses were sent, and what the newest has in it.
func (a *answering) wantSent(n int, newest string) {
	a.t.Helper()
	got := a.got()
	if len(got) != n {
		a.t.Fatalf("the client was sent %d responses, want %d", len(got), n)
	}
	if b := got[n-1].encoded; !bytes.Contains(b, []byte(newest)) {
		a.t.Errorf("the newest response has not %q in it: %q", newest, b)
	}
}

// eachForm runs a test in both forms, with a client that has answered its first response.
func eachForm(t *testing.T, test func(*testing.T, *answering)) {
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		t.Run(form, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAnswering(t, form)
				a.changes(0)
				synctest.Wait()
				a.ack(endpointType)
				a.forget()
				test(t, a)
			})
		})
	}
}

func TestAClientThatLagsIsSentTheNewestStateWhenItAnswers(t *testing.T) {
	eachForm(t, func(_ *testing.T, a *answering) {
		a.updates(100)
		a.wantSent(maxInFlight, "")
		a.ack(endpointType)
		a.wantSent(maxInFlight+1, "100000000") // of the update 100
		a.ack(endpointType)
		a.wantSent(maxInFlight+1, "")
	})
}

func TestAClientThatLeavesAResponseUnansweredForLongIsSentNoSecond(t *testing.T) {
	eachForm(t, func(_ *testing.T, a *answering) {
		a.changes(1)
		time.Sleep(2 * lagAfter)
		a.updates(10)
		a.wantSent(1, "")
		a.ack(endpointType)
		a.wantSent(2, "100000000") // of the update 10
	})
}

func TestAClientThatAnswersAtOnceIsSentEachUpdate(t *testing.T) {
	eachForm(t, func(_ *testing.T, a *answering) {
		for k := range 100 {
			a.changes(k + 1)
			synctest.Wait()
			a.ack(endpointType)
		}
		a.wantSent(100, "")
	})
}

func TestAClientThatNeverAnswersIsNotWaitedFor(t *testing.T) {
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		synctest.Test(t, func(t *testing.T) {
			a := newAnswering(t, form)
			a.updates(100)
			a.wantSent(100, "")
		})
	}
}

// A client that takes its time for the first response has many others to answer then, more than the stream remembers.
// The stream waits all the same from the first answer on.
func TestAClientWhoseFirstAnswerIsLateIsWaitedFor(t *testing.T) {
	for _, form := range []string{deltaForm.name, sotwForm.name} {
		t.Run(form, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				a := newAnswering(t, form)
				a.updates(100)
				first := a.got()[0]
				if form == deltaForm.name {
					a.take(a.st, encoded(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: endpointType, ResponseNonce: first.nonce}))
				} else {
					a.take(a.st, encoded(&discoveryv3.DiscoveryRequest{TypeUrl: endpointType, ResponseNonce: first.nonce, VersionInfo: first.version, ResourceNames: a.names}))
				}
				a.changes(101)
				synctest.Wait()
				a.wantSent(100, "")
				a.ack(endpointType)
				a.wantSent(101, "101")
			})
		})
	}
}

func TestAClientThatAnswersNoMoreIsSentOneResponseASecond(t *testing.T) {
	eachForm(t, func(_ *testing.T, a *answering) {
		a.updates(9500)
		a.wantSent(maxInFlight+9, "")
		time.Sleep(answerTimeout)
		a.wantSent(maxInFlight+10, "9500")
		time.Sleep(time.Hour)
		a.wantSent(maxInFlight+10, "")
	})
}

// Envoy acknowledges Clusters when they are warm, for which it needs their endpoints.
func TestEndpointsDoNotWaitForTheAnswerToClusters(t *testing.T) {
	eachForm(t, func(t *testing.T, a *answering) {
		a.cache.Apply(puts(clusterType, "v", values(1, 10, 0)...))
		first := encoded(&discoveryv3.DiscoveryRequest{TypeUrl: clusterType, ResourceNames: a.names})
		if a.st.form == deltaForm.name {
			first = encoded(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: clusterType, ResourceNamesSubscribe: a.names})
		}
		a.take(a.st, first)
		for k := range 3 * maxInFlight {
			time.Sleep(2 * lagAfter)
			a.forget()
			a.cache.Apply(puts(clusterType, "v", values(1, 10, k+1)...))
			var types []string
			for _, r := range a.got() {
				types = append(types, r.typeURL)
			}
			if !slices.Equal(types, []string{clusterType, endpointType}) {
				t.Fatalf("after %d responses of clusters without an answer the client was sent %q, want a cluster and its endpoints", k+1, types)
			}
			a.ack(endpointType)
		}
	})
}

func TestAStreamThatEndsWhileItWaitsIsNotSentTo(t *testing.T) {
	eachForm(t, func(_ *testing.T, a *answering) {
		a.updates(10)
		a.st.end()
		time.Sleep(time.Hour)
		a.wantSent(maxInFlight, "")
	})
}
