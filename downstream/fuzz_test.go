package downstream

import (
	"encoding/binary"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/downstream/session"
	"github.com/xds-relay/xds-relay/urn"
)

// FuzzDeltaRequests has a client send any requests, while an origin changes and
// responses are read. Whatever they say, the stream ends with an error that is the
// client's, or goes on, and then:
//
//   - no response has a name twice, or is too large;
//   - nothing is sent that the client has not requested;
//   - no resource is sent again that has not changed and was not asked for again;
//   - the limits are kept, and when the client has gone nothing of it is left.
func FuzzDeltaRequests(f *testing.F) {
	addTranscripts(f, deltaForm.name)
	f.Fuzz(func(t *testing.T, script []byte) { play(t, deltaForm.name, script) })
}

// FuzzSotWRequests is FuzzDeltaRequests in the other form.
func FuzzSotWRequests(f *testing.F) {
	addTranscripts(f, sotwForm.name)
	f.Fuzz(func(t *testing.T, script []byte) { play(t, sotwForm.name, script) })
}

// A script is a sequence of acts: a byte that says which, the length of its
// argument as an uvarint, and the argument.
const (
	actRequest byte = iota // a request, encoded
	actRead                // all that there is to read
	actReadOne
	actOrigin // type, what becomes of the name, and the name
	actAnswer // type, and whether it is a NACK
	numActs
)

// newest stands for the nonce or version of the newest response in a script's
// requests.
const newest = "newest"

// fuzzedTypes are those that an origin changes. Requests may be for any.
var fuzzedTypes = []string{clusterType, endpointType, listenerType, routeType, secretType, typesByShortName["widget"]}

var fuzzedLimits = Limits{Subscriptions: 20, NameBytes: 64}

func appendAct(script []byte, act byte, argument []byte) []byte {
	script = append(script, act)
	script = binary.AppendUvarint(script, uint64(len(argument)))
	return append(script, argument...)
}

// nextAct takes an act from the script. The last one's argument may be cut.
func nextAct(script []byte) (act byte, argument, rest []byte) {
	act = script[0] % numActs
	n, size := binary.Uvarint(script[1:])
	if size <= 0 {
		return act, nil, nil
	}
	argument = script[1+size:]
	if n > uint64(len(argument)) {
		return act, argument, nil
	}
	return act, argument[:n], argument[n:]
}

// player plays a script, and remembers what a client is sent.
type player struct {
	t     *testing.T
	cache *cache.Cache
	c     *testClient
	// By type URL and key: when a name was sent, and when there was last a reason
	// to send it. A reason for "*" is one for all of the type.
	sentAt, reason map[string]map[string]int
	now            int
	is             map[string]byte // what the origin made of each name
}

func play(t *testing.T, form string, script []byte) {
	p := &player{t: t, cache: newTestCache(&recordingSource{}, 3), sentAt: map[string]map[string]int{}, reason: map[string]map[string]int{}, is: map[string]byte{}}
	defer p.cache.Close()
	server, _ := newTestServer(p.cache, 1000)
	p.c = newTestClient(server, form, nil)
	p.c.st.limits = &fuzzedLimits
	for len(script) > 0 {
		var act byte
		var argument []byte
		act, argument, script = nextAct(script)
		p.now++
		if err := p.act(act, argument); err != nil {
			if code := status.Code(err); code != codes.InvalidArgument && code != codes.ResourceExhausted {
				t.Fatalf("the stream ends with %v", err)
			}
			break
		}
		n := 0
		for _, s := range p.c.st.sessions {
			n += s.Subscribed()
		}
		if n > fuzzedLimits.Subscriptions {
			t.Fatalf("%d names are subscribed to", n)
		}
	}
	p.c.close()
	if held := p.cache.Stats(); held.Idle != held.Entries+held.Sets {
		t.Fatalf("when the client has gone, the cache is left with %+v", held)
	}
}

func (p *player) act(act byte, argument []byte) error {
	switch act {
	case actRequest:
		return p.request(argument)
	case actRead:
		for p.read() {
		}
	case actReadOne:
		p.read()
	case actOrigin:
		if len(argument) > 2 && utf8.Valid(argument[2:]) {
			p.origin(fuzzedType(argument[0]), argument[1], string(argument[2:]))
		}
	case actAnswer:
		if len(argument) > 0 {
			return p.answer(fuzzedType(argument[0]), len(argument) > 1)
		}
	}
	return nil
}

func fuzzedType(b byte) string { return fuzzedTypes[int(b)%len(fuzzedTypes)] }

func (p *player) request(encoded []byte) error {
	if p.c.st.form == deltaForm.name {
		req := new(discoveryv3.DeltaDiscoveryRequest)
		if err := proto.Unmarshal(encoded, req); err != nil {
			return status.Error(codes.InvalidArgument, err.Error()) // no session sees it
		}
		if req.GetResponseNonce() == newest {
			req.ResponseNonce = p.c.memory(req.GetTypeUrl()).nonce
		}
		for name := range deltaNames(req) {
			p.because(req.GetTypeUrl(), name)
		}
		if p.c.st.session(req.GetTypeUrl()) == nil {
			p.because(req.GetTypeUrl(), cache.Wildcard)
		}
		return p.c.delta(req)
	}
	req := new(discoveryv3.DiscoveryRequest)
	if err := proto.Unmarshal(encoded, req); err != nil {
		return status.Error(codes.InvalidArgument, err.Error())
	}
	m := p.c.memory(req.GetTypeUrl())
	if req.GetResponseNonce() == newest {
		req.ResponseNonce = m.nonce
	}
	if req.GetVersionInfo() == newest {
		req.VersionInfo = m.version
	}
	var is session.Inspection
	if s := p.c.st.session(req.GetTypeUrl()); s != nil {
		is = s.Inspect()
	}
	for _, name := range req.GetResourceNames() {
		if !is.Names[name] {
			p.because(req.GetTypeUrl(), name)
		}
	}
	return p.c.sotw(req)
}

func (p *player) answer(typeURL string, rejects bool) error {
	m := p.c.memory(typeURL)
	var no *statuspb.Status
	if rejects {
		no = &statuspb.Status{Message: "no"}
	}
	if p.c.st.session(typeURL) == nil {
		return nil
	}
	if p.c.st.form == deltaForm.name {
		return p.c.delta(&discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: m.nonce, ErrorDetail: no})
	}
	is := p.c.st.session(typeURL).Inspect()
	names := slices.Sorted(maps.Keys(is.Names))
	if is.Wildcard && !is.OldWildcard {
		names = append(names, cache.Wildcard)
	}
	return p.c.sotw(&discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResponseNonce: m.nonce, VersionInfo: m.version, ErrorDetail: no, ResourceNames: names})
}

// origin makes something so, if the cache has asked for it.
func (p *player) origin(typeURL string, what byte, name string) {
	u := cache.Update{Scope: oldStyleScope(""), TypeURL: typeURL}
	if name == cache.Wildcard {
		set := cache.SetUpdate{Name: name, Extent: cache.WholeIf(what%3 == 0)}
		if what%3 == 1 {
			set.Err = &cache.Error{Code: codes.Unavailable, Message: "not now"}
		}
		u.Sets = []cache.SetUpdate{set}
		p.because(typeURL, name)
		p.cache.Apply(u)
		return
	}
	spelled := name
	if urn.IsXdstp(name) {
		k, err := urn.KeyOf(name)
		if err != nil {
			return
		}
		name, u.Scope = k.Name, cache.Scope{Authority: k.Authority}
	}
	// A resource that becomes unavailable is no reason to send it again; one that becomes
	// available again is, because that ends the error.
	key := typeURL + " " + u.Scope.String() + " " + name
	if is := what % 6; p.is[key] != is {
		p.is[key] = is
		if is != 2 {
			p.because(typeURL, spelled)
		}
	}
	change := cache.Change{Name: name}
	switch what % 6 {
	case 0:
		change.Gone = true
	case 1:
		change.Gone, change.Err = true, &cache.Error{Code: codes.NotFound, Message: "none"}
	case 2:
		change.Err = &cache.Error{Code: codes.Unavailable, Message: "not now"}
	case 3:
		change.Resource = newTestResource(typeURL, name, "v1", "one")
	case 4:
		change.Resource = newTestResource(typeURL, name, "v2", "two")
	case 5:
		change.Resource = newTestResource(typeURL, name, "v3", strings.Repeat("x", 400))
	}
	u.Changes = []cache.Change{change}
	if u.Scope.OldStyle {
		u.Sets = []cache.SetUpdate{{Name: cache.Wildcard, Changes: u.Changes}}
	}
	p.cache.Apply(u)
}

// because notes that there is a reason to send a name.
func (p *player) because(typeURL, name string) {
	if p.reason[typeURL] == nil {
		p.reason[typeURL] = map[string]int{}
	}
	p.reason[typeURL][fuzzedKey(name)] = p.now
}

// fuzzedKey is the same for all spellings of a name.
func fuzzedKey(name string) string {
	if urn.IsXdstp(name) {
		if k, err := urn.KeyOf(name); err == nil {
			return k.Authority + " " + k.Name
		}
	}
	return name
}

// read takes one response, and holds it against what is so.
func (p *player) read() bool {
	r := p.c.read(p.t)
	if r == nil {
		return false
	}
	p.now++
	names := slices.Clone(r.removed)
	for _, res := range r.resources {
		names = append(names, res.name)
	}
	for _, e := range r.errors {
		names = append(names, e.name)
	}
	is := p.c.st.session(r.typeURL).Inspect()
	for _, name := range names {
		if !is.Names[name] && !is.Wildcard {
			p.t.Fatalf("%q was not asked for:\n%s", name, r)
		}
	}
	if p.sentAt[r.typeURL] == nil {
		p.sentAt[r.typeURL] = map[string]int{}
	}
	reasons := p.reason[r.typeURL]
	for _, res := range r.resources {
		key := fuzzedKey(res.name)
		sent, before := p.sentAt[r.typeURL][res.name]
		if before && !is.Full && reasons[key] <= sent && reasons[cache.Wildcard] <= sent {
			p.t.Fatalf("%q is sent again without a reason:\n%s", res.name, r)
		}
		p.sentAt[r.typeURL][res.name] = p.now
	}
	for _, e := range r.errors { // a resource says that it is over
		p.now++
		p.because(r.typeURL, e.name)
	}
	if r.typeURL == clusterType { // whose endpoints follow
		p.now++
		p.because(endpointType, cache.Wildcard)
	}
	return true
}

// addTranscripts adds the transcripts of a form to the corpus, all clients of one
// as if they were the same.
func addTranscripts(f *testing.F, form string) {
	files, err := filepath.Glob(filepath.Join("testdata", "*", "*.txt"))
	if err != nil {
		f.Fatal(err)
	}
	n := 0
	for _, file := range files {
		if dir := filepath.Base(filepath.Dir(file)); dir != form && dir != "both" {
			continue
		}
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		if script := scriptOf(form, string(text)); len(script) > 0 {
			f.Add(script)
			n++
		}
	}
	if n == 0 {
		f.Fatal("there are no transcripts")
	}
}

// scriptOf turns a transcript into a script.
func scriptOf(form, text string) (script []byte) {
	for block := range strings.SplitSeq(text, "\n\n") {
		input, _, _ := strings.Cut(block, "----")
		var lines []string
		for line := range strings.Lines(input) {
			if !strings.HasPrefix(line, "#") {
				lines = append(lines, strings.TrimSpace(line))
			}
		}
		if len(lines) == 0 {
			continue
		}
		words := strings.Fields(lines[0])
		typeIndex := func(short string) byte { return byte(max(slices.Index(fuzzedTypes, typesByShortName[short]), 0)) }
		switch {
		case len(words) == 0:
		case words[0] == "request":
			script = appendAct(script, actRequest, requestOf(form, typesByShortName[words[2]], lines[1:]))
		case words[0] == "ack":
			script = appendAct(script, actAnswer, []byte{typeIndex(words[2])})
		case words[0] == "read" && len(words) > 2:
			script = appendAct(script, actReadOne, nil)
		case words[0] == "read":
			script = appendAct(script, actRead, nil)
		case words[0] == "origin":
			for _, line := range lines[1:] {
				words := append(strings.Fields(line), "", "")
				what, name := byte(3), strings.TrimLeft(words[1], "-!")
				switch {
				case words[1] == cache.Wildcard:
					what = byte(len(words) % 3)
				case words[1][0] == '-':
					what = byte(len(words)) % 2
				case words[1][0] == '!':
					what = 2
				case words[3] != "one":
					what = 4 + byte(len(words[3]))%2
				}
				script = appendAct(script, actOrigin, append([]byte{typeIndex(words[0]), what}, name...))
			}
		}
	}
	return script
}

func requestOf(form, typeURL string, lines []string) []byte {
	delta := &discoveryv3.DeltaDiscoveryRequest{TypeUrl: typeURL, ResponseNonce: newest}
	sotw := &discoveryv3.DiscoveryRequest{TypeUrl: typeURL, ResponseNonce: newest, VersionInfo: newest}
	for _, line := range lines {
		words := strings.Fields(line)
		switch words[0] {
		case "subscribe":
			delta.ResourceNamesSubscribe = words[1:]
		case "unsubscribe":
			delta.ResourceNamesUnsubscribe = words[1:]
		case "initial":
			delta.InitialResourceVersions = map[string]string{}
			for _, w := range words[1:] {
				i := strings.LastIndexByte(w, '=')
				delta.InitialResourceVersions[w[:i]] = w[i+1:]
			}
		case "names":
			sotw.ResourceNames = words[1:]
		case "version":
			sotw.VersionInfo = strings.Join(words[1:], " ")
		case "nonce":
			delta.ResponseNonce = words[1]
			sotw.ResponseNonce = words[1]
		case "nack":
			delta.ErrorDetail = &statuspb.Status{Code: int32(codes.InvalidArgument), Message: "no"}
			sotw.ErrorDetail = delta.ErrorDetail
		case "node":
			delta.Node = &corev3.Node{Id: strings.Join(words[1:], " ")}
			sotw.Node = delta.Node
		}
	}
	var encoded []byte
	if form == deltaForm.name {
		encoded, _ = proto.Marshal(delta) // words are UTF-8
	} else {
		encoded, _ = proto.Marshal(sotw)
	}
	return encoded
}
