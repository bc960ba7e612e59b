package session

import (
	"encoding/binary"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	xdscorev3 "github.com/cncf/xds/go/xds/core/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// FuzzResponses lets a control plane send any responses while
// names are wanted and given up, time passes and streams end. In every case:
//
//   - the cache gets only wanted topics, and nothing twice in one update;
//   - a full set that the cache gets has everything that is held of it;
//   - every response is answered, once, with its nonce, in requests of bounded size;
//   - a NACK says why, at a bounded length.
//
// FuzzAccept is for what a single response may have in it.
func FuzzResponses(f *testing.F) {
	files, err := filepath.Glob(filepath.Join("testdata", "*.txt"))
	if err != nil || len(files) == 0 {
		f.Fatalf("no transcripts: %v", err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(scriptOf(string(text)))
	}
	f.Fuzz(func(t *testing.T, script []byte) { playScript(t, script) })
}

// A script is a byte for the form, the type and globs, and acts: a byte that says which,
// the length of its argument as an uvarint, and the argument.
const (
	actResponse byte = iota // encoded, as the control plane sends it
	actSubscribe
	actUnsubscribe
	actAfter // seconds
	actLost  // and another stream, perhaps of the other form
	numActs
)

var fuzzedTypes = []string{"cds", "eds", "other"}

const (
	fuzzedLimit = 1 << 10 // of a request
	fuzzedNames = 50
	// fuzzedNoGlobs, in a script's first byte, says that globs are not requested.
	fuzzedNoGlobs = 6
)

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

func formOf(b byte) Form { return []Form{Delta, SotW}[b%2] }

// fuzzed is a script being played.
type fuzzed struct {
	t       *testing.T
	form    Form
	of      *Topics
	mixed   bool // there are names and globs, which share a stream in delta
	session Session
	now     time.Time
	nonces  []string // of the responses that are to be answered
}

// playScript plays a script with names, with sets, and with names and globs in delta.
func playScript(t *testing.T, script []byte) {
	playScriptOf(t, script, func(name string) bool { return !IsSet(name) })
	playScriptOf(t, script, IsSet)
	if len(script) > 0 && formOf(script[0]) == Delta && script[0]/fuzzedNoGlobs%2 == 0 {
		playScriptOf(t, script, func(name string) bool { return name != cache.Wildcard })
	}
}

// playScriptOf plays a script with some names.
func playScriptOf(t *testing.T, script []byte, takes func(name string) bool) {
	if len(script) == 0 {
		return
	}
	typ := fuzzedTypes[int(script[0]/2)%len(fuzzedTypes)]
	scope := cache.Scope{Authority: "a"}
	p := &fuzzed{t: t, form: formOf(script[0]), now: time.Unix(0, 0), of: newTopics(scope, typeURLs[typ], !takes("a"))}
	p.mixed = takes("a") && takes("xdstp://a/t/*")
	p.session = p.form.Begin(p.of)
	noGlobs := script[0]/fuzzedNoGlobs%2 == 1
	for script = script[1:]; len(script) > 0; {
		var act byte
		var argument []byte
		act, argument, script = nextAct(script)
		u := p.of.NewUpdate()
		switch act {
		case actResponse:
			p.response(argument, &u)
		case actSubscribe:
			// The cache asks for each name once, by its key.
			name := keyOf(string(argument))
			if sub := p.of.get(name); name != "" && takes(name) && (sub == nil || !sub.started) && p.of.Wanted() < fuzzedNames {
				withKind(p.of, scope, typeURLs[typ], name)
				if s := p.of.Sets; s != nil {
					s.noGlobs = noGlobs
				}
				p.of.Start(name, nil, &u)
			}
		case actUnsubscribe:
			p.of.Stop(keyOf(string(argument)))
		case actAfter:
			p.now = p.now.Add(time.Duration(len(argument)) * time.Second)
		case actLost:
			p.reopen(len(argument) > 0)
		}
		p.check(u)
		p.send()
	}
}

// keyOf returns the cache's key of a name: the canonical spelling of an xdstp name, and a bad
// name itself.
func keyOf(name string) string {
	name = strings.ToValidUTF8(name, "")
	if k, err := urn.KeyOf(name); err == nil && (k.Name == name || urn.HasID(name)) {
		return k.Name
	}
	return name
}

func (p *fuzzed) reopen(other bool) {
	p.of.Lost()
	p.nonces = nil
	if other && !p.mixed {
		p.form = map[Form]Form{Delta: SotW, SotW: Delta}[p.form]
	}
	p.session = p.form.Begin(p.of)
}

func (p *fuzzed) response(encoded []byte, u *cache.Update) {
	r, err := p.form.Parse(encoded)
	if err != nil {
		p.reopen(false)
		return
	}
	if r.TypeURL != p.of.TypeURL() || !p.session.Begun() {
		return
	}
	var nack string
	*u, nack = p.session.Response(p.now, r)
	p.nonces = append(p.nonces, r.Nonce)
	r.Clear() // nothing may refer to it any more
	if len(nack) > 4*maxMessage {
		p.t.Fatalf("a NACK of %d bytes", len(nack))
	}
	for _, set := range u.Sets {
		for key := range p.membersOf(set.Name) {
			if set.Extent.Full() && !slices.ContainsFunc(set.Changes, func(c cache.Change) bool { return c.Name == key }) {
				p.t.Fatalf("%q is held, and not in the full set", key)
			}
		}
	}
}

// membersOf returns the members of a set, or of a glob that is fed from the wildcard.
func (p *fuzzed) membersOf(name string) map[string]*cache.Resource {
	s := p.of.Sets
	if name == cache.Wildcard || !s.filters() {
		return maps.Collect(s.find(name).members.All())
	}
	members := map[string]*cache.Resource{}
	for key, r := range s.members().All() {
		// A bad name is in no directory.
		if k, err := urn.KeyOf(key); err != nil || k.Name != key {
			continue
		}
		if glob, _ := urn.GlobOf(key); glob == name {
			members[key] = r
		}
	}
	return members
}

// check checks the updates of the cache.
func (p *fuzzed) check(u cache.Update) {
	got := map[string]bool{}
	for _, c := range u.Changes {
		if p.of.get(c.Name) == nil {
			p.t.Fatalf("the cache gets %q, which nobody wants", c.Name)
		}
		if got[c.Name] {
			p.t.Fatalf("the cache gets %q twice", c.Name)
		}
		got[c.Name] = true
		p.checkChange(c)
	}
	sets := map[string]bool{}
	for _, set := range u.Sets {
		if sub := p.of.get(set.Name); sub == nil || !sub.wanted && !sub.started {
			p.t.Fatalf("the cache gets the set %q, which nobody wants", set.Name)
		}
		if sets[set.Name] {
			p.t.Fatalf("the cache gets the set %q twice", set.Name)
		}
		sets[set.Name] = true
		got := map[string]bool{}
		for _, c := range set.Changes {
			if got[c.Name] {
				p.t.Fatalf("the cache gets the member %q of %q twice: %+v", c.Name, set.Name, set)
			}
			got[c.Name] = true
			p.checkChange(c)
		}
	}
}

func (p *fuzzed) checkChange(c cache.Change) {
	if c.Resource == nil {
		return
	}
	if c.Gone {
		p.t.Fatalf("%q is there and is not: %+v", c.Name, c)
	}
	typeURL := p.of.TypeURL()
	if c.Resource.Redirect() != "" {
		typeURL = xdstype.Locator
	}
	if c.Resource.TypeURL() != typeURL || keyOf(c.Resource.Name()) != c.Name && !c.Resource.Alias() {
		p.t.Fatalf("%q comes as %q of %s", c.Name, c.Resource.Name(), c.Resource.TypeURL())
	}
}

// send takes the requests, as the stream does after each act.
func (p *fuzzed) send() {
	if p.of.NeedStream(p.session.Begun()) {
		p.reopen(false)
	}
	p.check(p.of.Expire(p.now))
	p.check(p.session.Conclude(p.now, DefaultResponseTimeout, silenceAfter(p.of.Answered())))
	for _, m := range p.session.Requests(p.now, fuzzedLimit) {
		nonce, detail := "", (*status.Status)(nil)
		switch m := m.(type) {
		case *discoveryv3.DeltaDiscoveryRequest:
			// A SotW request cannot be split.
			if n := proto.Size(m); n > fuzzedLimit && len(m.GetResourceNamesSubscribe())+len(m.GetResourceNamesUnsubscribe())+len(m.GetInitialResourceVersions()) > 1 {
				p.t.Fatalf("a request of %d bytes", n)
			}
			nonce, detail = m.GetResponseNonce(), m.GetErrorDetail()
		case *discoveryv3.DiscoveryRequest:
			nonce, detail = m.GetResponseNonce(), m.GetErrorDetail()
			p.nonces = p.nonces[max(len(p.nonces)-1, 0):] // the newest answers for all
		}
		if detail != nil && detail.GetMessage() == "" {
			p.t.Fatal("a NACK without a reason")
		}
		if nonce != "" && len(p.nonces) > 0 {
			if p.nonces[0] != nonce {
				p.t.Fatalf("the response %q is answered with nonce %q", p.nonces[0], nonce)
			}
			p.nonces = p.nonces[1:]
		}
	}
	p.session.Unfit()
	p.nonces = slices.DeleteFunc(p.nonces, func(nonce string) bool { return nonce == "" })
	if p.of.Wanted() > 0 && len(p.nonces) > 0 {
		p.t.Fatalf("the responses %q are not answered", p.nonces)
	}
}

// scriptOf turns a transcript into a script: its resources as far as their names,
// versions and texts, and garbage where something is wrong with them.
func scriptOf(transcript string) []byte {
	script := []byte{0}
	typ := ""
	for block := range strings.SplitSeq(transcript, "\n\n") {
		input, _, _ := strings.Cut(block, "----")
		var lines []string
		for line := range strings.Lines(input) {
			if line = strings.TrimSpace(line); line != "" && !strings.HasPrefix(line, "#") {
				lines = append(lines, line)
			}
		}
		if len(lines) == 0 {
			continue
		}
		words := strings.Fields(lines[0])
		args := map[string]string{}
		for _, w := range words[1:] {
			key, value, _ := strings.Cut(w, "=")
			args[key] = value
		}
		all := append(words[1:], strings.Fields(strings.Join(lines[1:], " "))...)
		switch words[0] {
		case "client":
			typ = args["type"]
			script[0] = byte(2 * max(slices.Index(fuzzedTypes, typ), 0))
			if args["form"] == "sotw" {
				script[0]++
			}
			if _, ok := args["noglobs"]; ok {
				script[0] += fuzzedNoGlobs
			}
		case "subscribe", "unsubscribe":
			act := map[string]byte{"subscribe": actSubscribe, "unsubscribe": actUnsubscribe}[words[0]]
			for _, name := range all {
				if name == "wildcard" {
					name = cache.Wildcard
				}
				script = appendAct(script, act, []byte(name))
			}
		case "response":
			script = appendAct(script, actResponse, encodeResponse(script[0]%2 == 0, typ, args, lines[1:]))
		case "after":
			wait, _ := time.ParseDuration(words[1])
			script = appendAct(script, actAfter, make([]byte, int(wait/time.Second)))
		case "lost":
			script = appendAct(script, actLost, nil)
		}
	}
	return script
}

func argument(words []string, key string) string {
	for _, w := range words {
		if value, ok := strings.CutPrefix(w, key+"="); ok {
			return value
		}
	}
	return ""
}

func encodeResponse(delta bool, typ string, args map[string]string, lines []string) []byte {
	typeURL := typeURLs[fuzzedTypes[max(slices.Index(fuzzedTypes, typ), 0)]]
	d := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL, Nonce: args["nonce"], SystemVersionInfo: args["version"]}
	s := &discoveryv3.DiscoveryResponse{TypeUrl: typeURL, Nonce: args["nonce"], VersionInfo: args["version"]}
	for _, line := range lines {
		words := append(strings.Fields(line), "")
		switch words[0] {
		case "removed":
			d.RemovedResources = append(d.RemovedResources, words[1])
		case "error":
			e := &discoveryv3.ResourceError{
				ResourceName: &discoveryv3.ResourceName{Name: words[1]},
				ErrorDetail:  &status.Status{Code: int32(codes.NotFound)},
			}
			d.ResourceErrors, s.ResourceErrors = append(d.ResourceErrors, e), append(s.ResourceErrors, e)
		default:
			value := appendText(nil, 1, words[0])
			version := ""
			for _, w := range words[1:] {
				switch {
				case strings.HasPrefix(w, `"`):
					value = protowire.AppendVarint(protowire.AppendTag(value, 1000, protowire.VarintType), uint64(len(w)))
				case w == "garbage", w == "misfit":
					value = []byte{0xff}
				default:
					version = w
				}
			}
			a := &anypb.Any{TypeUrl: typeURL, Value: value}
			if url := argument(words, "redirect"); url != "" {
				m := &xdscorev3.ResourceLocator{Authority: url}
				if u, err := urn.ParseURL(url); err == nil {
					m, _ = u.Proto()
				}
				a.TypeUrl = xdstype.Locator
				a.Value, _ = proto.Marshal(m)
			}
			d.Resources = append(d.Resources, &discoveryv3.Resource{Name: words[0], Version: version, Resource: a})
			s.Resources = append(s.Resources, a)
		}
	}
	var m proto.Message = d
	if !delta {
		m = s
	}
	b, _ := proto.Marshal(m) // words are UTF-8
	return b
}
