package downstream

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
)

// TestPollTranscripts plays the transcripts of requests that are answered once.
// Besides the directives of TestTranscripts there are:
//
//	poll NAME TYPE [hold=30s] [patience=D] [cluster=C] [able] [denied=(NAME,NAME)]
//	  One request, with the lines "names A B", "version V", "nonce N" and "nack
//	  why", where @NAME is the version of NAME's answer; patience is how long the
//	  client says that it waits; able, that it announces TTLs and wrapped
//	  resources. It prints the answer, or that it waits.
//
//	wait NAME [for=D]
//	  What has become of the request meanwhile, and when; with for, at the end of
//	  that time.
//
//	drop NAME
//	  The client goes away without waiting for the answer.
//
//	end
//	  The relay does not wait any more.
func TestPollTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata/poll", func(t *testing.T, path string) {
		synctest.Test(t, func(t *testing.T) {
			tr := &pollTranscript{
				transcript: transcript{source: &recordingSource{}, clients: map[string]*testClient{}},
				polls:      map[string]*poll{},
			}
			datadriven.RunTest(t, path, tr.run)
			for name, p := range tr.polls {
				p.cancel()
				if p.look() == nil {
					t.Errorf("%s waits though its client has gone", name)
				}
			}
			if n := tr.server.Clients(); n != 0 {
				t.Errorf("%d requests are left", n)
			}
			tr.cache.Close()
		})
	})
}

type pollTranscript struct {
	transcript
	polls map[string]*poll
}

// poll is one request that is answered once.
type poll struct {
	cancel context.CancelFunc
	ended  chan answer
	answer *answer // nil while it waits
}

type answer struct {
	after time.Duration
	r     *session.Response
	err   error
}

// look looks at what has become of the request.
func (p *poll) look() *answer {
	synctest.Wait()
	select {
	case a := <-p.ended:
		p.answer = &a
	default:
	}
	return p.answer
}

func (tr *pollTranscript) run(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	switch d.Cmd {
	case "poll":
		if tr.cache == nil {
			tr.transcript.run(t, &datadriven.TestData{Cmd: "relay"})
		}
		return tr.poll(t, d)
	case "wait":
		if d.HasArg("for") {
			time.Sleep(durationArg(t, d, "for", 0))
		}
		return tr.show(t, tr.polls[d.CmdArgs[0].Key])
	case "drop":
		p := tr.polls[d.CmdArgs[0].Key]
		p.cancel()
		return tr.show(t, p)
	case "end":
		tr.server.EndPolls()
		return ""
	}
	return tr.transcript.run(t, d)
}

func durationArg(t *testing.T, d *datadriven.TestData, key string, otherwise time.Duration) time.Duration {
	t.Helper()
	var text string
	if !d.MaybeScanArgs(t, key, &text) {
		return otherwise
	}
	v, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func (tr *pollTranscript) poll(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	name, typeURL := d.CmdArgs[0].Key, tr.typeURL(t, d.CmdArgs[1].Key)
	req := &discoveryv3.DiscoveryRequest{TypeUrl: typeURL, Node: &corev3.Node{Id: name}}
	d.MaybeScanArgs(t, "cluster", &req.Node.Cluster)
	req.Node.Metadata = deniedMetadata(d)
	if d.HasArg("able") {
		req.Node.ClientFeatures = []string{session.FeatureTTL, session.FeatureWrapped}
	}
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		rest := strings.Join(words[1:], " ")
		switch words[0] {
		case "names":
			req.ResourceNames, req.ResourceLocators = namesAndLocators(words[1:])
		case "version":
			req.VersionInfo = tr.version(rest)
		case "nonce":
			req.ResponseNonce = tr.version(rest)
		case "nack":
			req.ErrorDetail = &statuspb.Status{Code: int32(codes.InvalidArgument), Message: rest}
		default:
			t.Fatalf("%s: unknown line %q", d.Pos, line)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	if patience := durationArg(t, d, "patience", 0); patience > 0 {
		ctx, cancel = context.WithTimeout(ctx, patience)
	}
	p := &poll{cancel: cancel, ended: make(chan answer, 1)}
	tr.polls[name] = p
	hold := durationArg(t, d, "hold", 30*time.Second)
	go func() {
		began := time.Now()
		r, err := tr.server.fetch(ctx, newGate(ListenerOptions{Limits: tr.limits}), nil, formREST, typeURL, req, hold)
		p.ended <- answer{time.Since(began), r, err}
	}()
	return tr.show(t, p)
}

// version is what is written, or with @NAME that of an answer.
func (tr *pollTranscript) version(text string) string {
	if name, ok := strings.CutPrefix(text, "@"); ok {
		return tr.polls[name].look().r.Version
	}
	return text
}

func (tr *pollTranscript) show(t *testing.T, p *poll) string {
	t.Helper()
	a := p.look()
	out := tr.log.take()
	if a == nil {
		return strings.Join(append(out, "waits"), "\n")
	}
	if a.after > 0 {
		out = append(out, fmt.Sprintf("after %v:", a.after))
	}
	switch {
	case a.err != nil:
		out = append(out, a.err.Error())
	case a.r == nil:
		out = append(out, "not modified")
	default:
		got := decode(t, sotwForm.name, a.r)
		got.check(t, DefaultMaxResponseBytes)
		if got.nonce != got.version {
			t.Errorf("the nonce is %q, want the version %q", got.nonce, got.version)
		}
		slices.SortFunc(got.errors, func(a, b receivedError) int { return strings.Compare(a.name, b.name) })
		out = append(out, strings.Replace(got.String(), "nonce="+got.nonce+" ", "", 1))
	}
	return strings.Join(out, "\n")
}

// A change that comes between two looks at the state is not missed.
func TestAPollMissesNoChange(t *testing.T) {
	const updates = 500
	ch := newTestCache(&recordingSource{}, 1000)
	defer ch.Close()
	server, _ := newTestServer(ch, DefaultMaxResponseBytes)
	put := func(content string) {
		ch.Apply(cache.Update{Scope: oldStyleScope(""), TypeURL: endpointType, Changes: []cache.Change{
			{Name: "a", Resource: newTestResource(endpointType, "a", "", content)},
		}})
	}
	key := cache.Key{Scope: oldStyleScope(""), TypeURL: endpointType, Name: "a"}
	ch.Watch(key, &watcher{})
	go func() {
		for i := range updates {
			put(fmt.Sprint(i + 1))
		}
	}()
	ctx := testContext(t)
	version, content := "", ""
	for content != fmt.Sprint(updates) {
		req := &discoveryv3.DiscoveryRequest{VersionInfo: version, ResourceNames: []string{"a"}}
		r, err := server.fetch(ctx, newGate(ListenerOptions{}), nil, formREST, endpointType, req, patience)
		if err != nil || r == nil {
			t.Fatalf("after %q there is no more: %v", content, err)
		}
		got := decode(t, sotwForm.name, r)
		version, content = got.version, got.resources[0].content
	}
}

// A client that polls comes again, so a name that a control plane has not answered yet goes on being requested.
func TestAPollsNameLingersWithoutAnAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		src := &recordingSource{}
		ch := newTestCache(src, 1000)
		defer ch.Close()
		server, _ := newTestServer(ch, DefaultMaxResponseBytes)
		req := &discoveryv3.DiscoveryRequest{ResourceNames: []string{"a"}}
		if r, err := server.fetch(t.Context(), newGate(ListenerOptions{}), nil, formREST, endpointType, req, time.Second); r != nil {
			t.Fatalf("%v, %v; want no answer", r, err)
		}
		<-time.After(time.Minute)
		synctest.Wait()
		src.mu.Lock()
		defer src.mu.Unlock()
		if len(src.events) != 1 {
			t.Errorf("%q; want that it starts, and does not stop", src.events)
		}
	})
}
