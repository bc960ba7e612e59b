package sessiontest

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Transcript has the directives that transcripts of one stream and of two streams share.
type Transcript struct {
	// Type is the short name of the type, see TypeURLs.
	Type string
	// Answers says to print to which answer each update of a set belongs.
	Answers bool
	// Out is the output.
	Out strings.Builder
}

// NamesIn returns the names in a directive and in its input. Names in the input can have any characters.
func NamesIn(d *datadriven.TestData) []string {
	var names []string
	for _, a := range d.CmdArgs {
		names = append(names, a.Key)
	}
	names = append(names, strings.Fields(d.Input)...)
	for i, name := range names {
		if name == "wildcard" {
			names[i] = cache.Wildcard
		}
	}
	return names
}

// Response encodes the response of a directive and its input, in delta or in SotW.
func (s *Transcript) Response(t *testing.T, d *datadriven.TestData, delta bool) []byte {
	t.Helper()
	var version, nonce string
	typ := s.Type
	d.MaybeScanArgs(t, "version", &version)
	d.MaybeScanArgs(t, "nonce", &nonce)
	d.MaybeScanArgs(t, "type", &typ)
	inDelta := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: TypeURLs[typ], Nonce: nonce, SystemVersionInfo: version}
	inSotW := &discoveryv3.DiscoveryResponse{TypeUrl: TypeURLs[typ], Nonce: nonce, VersionInfo: version}
	var tail []byte // elements that cannot be in a message
	for line := range strings.Lines(d.Input) {
		words := strings.Fields(line)
		switch words[0] {
		case "malformed": // the response itself
			tail = append(tail, 0xff)
		case "removed":
			if len(words) > 2 {
				match := strings.TrimPrefix(words[2], "match=")
				inDelta.RemovedResourceNames = append(inDelta.RemovedResourceNames, VariantName(words[1], match))
				continue
			}
			inDelta.RemovedResources = append(inDelta.RemovedResources, words[1])
		case "complete":
			for _, name := range words[1:] {
				if name == "wildcard" {
					name = cache.Wildcard
				}
				tail = wire.AppendString(tail, wire.DeltaComplete, name)
			}
		case "error":
			e := &discoveryv3.ResourceError{
				ResourceName: &discoveryv3.ResourceName{Name: strings.Trim(words[1], `"`)},
				ErrorDetail:  &status.Status{Code: int32(code(words[2])), Message: strings.Join(words[3:], " ")},
			}
			inDelta.ResourceErrors = append(inDelta.ResourceErrors, e)
			inSotW.ResourceErrors = append(inSotW.ResourceErrors, e)
		default:
			r, wrap, broken := resource(t, typ, words)
			switch {
			case broken != nil:
				tail = protowire.AppendTag(tail, wire.ResponseResources, protowire.BytesType)
				tail = protowire.AppendBytes(tail, broken(delta))
			case delta:
				inDelta.Resources = append(inDelta.Resources, r)
			case wrap:
				inSotW.Resources = append(inSotW.Resources, WrapAny(t, r))
			default:
				inSotW.Resources = append(inSotW.Resources, r.Resource)
			}
		}
	}
	var m proto.Message = inDelta
	if !delta {
		m = inSotW
	}
	b, err := proto.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return append(b, tail...)
}

func code(name string) codes.Code {
	var c codes.Code
	if err := c.UnmarshalJSON([]byte(strconv.Quote(name))); err != nil {
		panic(err)
	}
	return c
}

// resource makes one of a line, or bytes that are none.
func resource(t *testing.T, typ string, words []string) (r *discoveryv3.Resource, wrap bool, broken func(delta bool) []byte) {
	t.Helper()
	name := strings.Trim(words[0], `"`)
	if name == "nameless" {
		name = ""
	}
	if name == "wildcard" {
		name = cache.Wildcard
	}
	r = &discoveryv3.Resource{Name: name, Resource: &anypb.Any{TypeUrl: TypeURLs[typ]}}
	text, kind := "", ""
	for _, word := range words[1:] {
		switch key, val, _ := strings.Cut(word, "="); {
		case strings.HasPrefix(word, `"`):
			text = strings.Trim(word, `"`)
		case key == "fill":
			n, err := strconv.Atoi(val)
			if err != nil {
				t.Fatal(err)
			}
			text = strings.Repeat("x", n)
		case word == "ttl":
			r.Ttl = durationpb.New(time.Minute)
		case key == "ttl":
			ttl, err := time.ParseDuration(val)
			if err != nil {
				t.Fatal(err)
			}
			r.Ttl = durationpb.New(ttl)
		case word == "nocache":
			r.CacheControl = &discoveryv3.Resource_CacheControl{DoNotCache: true}
		case key == "match":
			r.ResourceName, r.Name = VariantName(r.Name, val), ""
		case key == "alias":
			r.Aliases = append(r.Aliases, val)
		case word == "bodiless":
			r.Resource = nil
		case word == "wrapped":
			wrap = true
		case word == "unnamed":
			r.Name = ""
		case key == "type":
			r.Resource.TypeUrl = TypeURLs[val]
			typ = val
		case key == "redirect":
			r.Resource.TypeUrl = xdstype.Locator
			r.Resource.Value = redirect(t, val)
		case word == "garbage":
			r.Resource.Value = []byte{0xff}
		case word == "misfit":
			// A name, and a field that should be a message and is none.
			num := protowire.Number(2)
			if typ == "cds" {
				num = 4
			}
			r.Resource.Value = AppendText(AppendText(nil, 1, name), num, "\xff")
		case word == "good", word == "for-grpc", word == "for-envoy":
			kind = word
		case word == "undecodable":
			broken = func(delta bool) []byte {
				if !delta {
					return []byte{0xff}
				}
				b := AppendText(nil, wire.ResourceName, name)
				return AppendText(b, wire.ResourceAny, "\xff")
			}
		case word == "unspeakable":
			broken = func(delta bool) []byte {
				if delta {
					return AppendText(nil, wire.ResourceName, "\xff")
				}
				b := AppendText(nil, wire.AnyTypeURL, TypeURLs["other"])
				return AppendText(b, wire.AnyValue, string(AppendText(nil, 1, "\xff")))
			}
		default:
			r.Version = word
		}
	}
	if r.Resource != nil && r.Resource.Value == nil {
		r.Resource.Value = Value(t, typ, name, text)
	}
	if kind != "" {
		r.Resource.Value = ClusterFor(t, kind, name, text)
	}
	return r, wrap, broken
}

// Send prints a request.
func (s *Transcript) Send(m proto.Message) {
	var parts []string
	add := func(what string, list []string) {
		for i, name := range list {
			list[i] = shorten(name)
		}
		parts = append(parts, fmt.Sprintf("%s=[%s]", what, strings.Join(list, " ")))
	}
	var detail *status.Status
	switch m := m.(type) {
	case *discoveryv3.DeltaDiscoveryRequest:
		if m.GetTypeUrl() != TypeURLs[s.Type] {
			parts = append(parts, "type="+m.GetTypeUrl())
		}
		addLocators := func(what string, list []*discoveryv3.ResourceLocator) {
			if len(list) > 0 {
				add(what, Locators(list))
			}
		}
		addLocators("subscribe", m.GetResourceLocatorsSubscribe())
		addLocators("unsubscribe", m.GetResourceLocatorsUnsubscribe())
		if len(m.GetResourceNamesSubscribe()) > 0 {
			add("subscribe", slices.Clone(m.GetResourceNamesSubscribe()))
		}
		if len(m.GetResourceNamesUnsubscribe()) > 0 {
			add("unsubscribe", slices.Clone(m.GetResourceNamesUnsubscribe()))
		}
		if v := m.GetInitialResourceVersions(); len(v) > 0 {
			var known []string
			for _, name := range slices.Sorted(maps.Keys(v)) {
				known = append(known, name+"="+v[name])
			}
			add("known", known)
		}
		detail = m.GetErrorDetail()
		if m.GetResponseNonce() != "" {
			parts = append(parts, map[bool]string{true: "ACK ", false: "NACK "}[detail == nil]+m.GetResponseNonce())
		}
		if len(parts) == 0 {
			parts = append(parts, "nothing (the wildcard)")
		}
	case *discoveryv3.DiscoveryRequest:
		add("names", append(slices.Clone(m.GetResourceNames()), Locators(m.GetResourceLocators())...))
		parts = append(parts, fmt.Sprintf("version=%s nonce=%s", m.GetVersionInfo(), m.GetResponseNonce()))
		if detail = m.GetErrorDetail(); detail != nil {
			parts = append(parts, "NACK")
		}
	}
	fmt.Fprintf(&s.Out, "send %s\n", strings.Join(parts, " "))
	if detail != nil {
		for line := range strings.Lines(detail.GetMessage()) {
			fmt.Fprintf(&s.Out, "       %s\n", shorten(strings.TrimSpace(line)))
		}
	}
}

// shorten makes long ones readable.
func shorten(s string) string {
	const long = 240
	if len(s) > long {
		return fmt.Sprintf("%s...(%d bytes)", s[:20], len(s))
	}
	return s
}

// Print prints an update of the cache.
func (s *Transcript) Print(u cache.Update) {
	for _, c := range u.Changes {
		fmt.Fprintf(&s.Out, "update %s: %s\n", shorten(c.Name), change(c))
	}
	for _, set := range u.Sets {
		if set.Err != nil {
			fmt.Fprintf(&s.Out, "update set %s: failed: %s\n", set.Name, set.Err)
			continue
		}
		fmt.Fprintf(&s.Out, "update set %s:", set.Name)
		if set.Extent.Full() {
			fmt.Fprintf(&s.Out, " full, version=%s", set.Origin.Latest())
		}
		if set.Extent == cache.Ends {
			fmt.Fprint(&s.Out, " complete")
		}
		if set.Partial {
			fmt.Fprint(&s.Out, " partial")
		}
		if s.Answers {
			fmt.Fprint(&s.Out, map[cache.Answer]string{cache.FirstAnswer: " (first answer)", cache.LaterAnswer: " (later answer)", cache.NoAnswer: " (no answer)"}[set.Answer])
		}
		fmt.Fprintln(&s.Out)
		for _, c := range set.Changes {
			fmt.Fprintf(&s.Out, "       %s: %s\n", shorten(c.Name), change(c))
			if s.Answers && c.Answer != cache.NoAnswer {
				fmt.Fprintln(&s.Out, "         (later answer)")
			}
		}
	}
}

func change(c cache.Change) string {
	var parts []string
	switch {
	case c.Resource != nil:
		r := c.Resource
		if len(r.Version()) == 16 {
			parts = append(parts, "(hash)")
		} else {
			parts = append(parts, r.Version())
		}
		if r.Redirect() != "" {
			parts = append(parts, "redirect to "+r.Redirect())
		} else if s := Text(r); s != "" {
			parts = append(parts, strconv.Quote(shorten(s)))
		}
		if r.TTL() > 0 {
			parts = append(parts, "ttl="+r.TTL().String())
		}
		if r.Name() != c.Name {
			parts = append(parts, "named "+r.Name())
		}
	case c.Err != nil && !c.Gone && c.Err.Unanswered:
		parts = append(parts, "silent:")
	case c.Err != nil && !c.Gone:
		parts = append(parts, "failed:")
	default:
		parts = append(parts, "absent")
	}
	if c.Err != nil {
		parts = append(parts, c.Err.Error())
	}
	if c.Member {
		parts = append(parts, "(the member follows)")
	}
	return strings.Join(parts, " ")
}
