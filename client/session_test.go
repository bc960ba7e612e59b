package client

// The transcripts in testdata drive the two sessions without a network. Each
// file begins with why it exists.
//
//	query protocol=delta type=cluster names=(a, b)   starts over, shows the first request
//	reconnect                                        shows the first request of the next stream
//	receive nonce=n [version=v] [type=t]             gives a response, shows the reply and the events
//	unanswered                                       shows the names without an answer
//
// A response has one thing in each line: see response. A version of - is none.

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

func TestSessionTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		var a *queryRun
		datadriven.RunTest(t, path, func(t *testing.T, d *datadriven.TestData) string {
			switch d.Cmd {
			case "query":
				a = newQueryRun(Server{}, scannedQuery(t, d))
				return opened(a)
			case "reconnect":
				return opened(a)
			case "receive":
				return received(t, a, d)
			case "unanswered":
				if names := a.state.unanswered(); len(names) > 0 {
					return strings.Join(names, " ") + "\n"
				}
				return "none\n"
			}
			d.Fatalf(t, "unknown command %q", d.Cmd)
			return ""
		})
	})
}

func scannedQuery(t *testing.T, d *datadriven.TestData) Query {
	t.Helper()
	var q Query
	var protocol, word string
	d.ScanArgs(t, "protocol", &protocol)
	d.ScanArgs(t, "type", &word)
	for _, arg := range d.CmdArgs {
		if arg.Key == "names" {
			q.Names = arg.Vals
		}
	}
	var err error
	if q.Protocol, err = ParseProtocol(protocol); err != nil {
		d.Fatalf(t, "%v", err)
	}
	if q.TypeURL, err = xdstype.Parse(word); err != nil {
		d.Fatalf(t, "%v", err)
	}
	return q
}

func opened(a *queryRun) string {
	if a.state.query.Protocol == SotW {
		return describeSotW(a.sotw.open())
	}
	return describeDelta(deltaSession{a.state}.open())
}

func received(t *testing.T, a *queryRun, d *datadriven.TestData) string {
	t.Helper()
	resp := response(t, a.state.query.TypeURL, d)
	var reply string
	var events []Event
	if a.state.query.Protocol == SotW {
		req, changes := a.sotw.receive(&discoveryv3.DiscoveryResponse{
			TypeUrl:        resp.TypeUrl,
			VersionInfo:    resp.SystemVersionInfo,
			Nonce:          resp.Nonce,
			ResourceErrors: resp.ResourceErrors,
			Resources:      sotwResources(resp.Resources),
		})
		reply, events = describeSotW(req), changes
	} else {
		req, changes := deltaSession{a.state}.receive(resp)
		reply, events = describeDelta(req), changes
	}
	for _, e := range events {
		reply += describeEvent(e)
	}
	return reply
}

// response builds a delta response from lines. SotW tests turn it into theirs.
func response(t *testing.T, typeURL string, d *datadriven.TestData) *discoveryv3.DeltaDiscoveryResponse {
	t.Helper()
	resp := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURL}
	d.ScanArgs(t, "nonce", &resp.Nonce)
	d.MaybeScanArgs(t, "version", &resp.SystemVersionInfo)
	if word := ""; d.MaybeScanArgs(t, "type", &word) {
		resp.TypeUrl, _ = xdstype.Parse(word)
	}
	for line := range strings.Lines(d.Input) {
		word := append(strings.Fields(line), "", "", "", "")
		r := &discoveryv3.Resource{Name: word[1], Version: strings.TrimPrefix(word[2], "-")}
		content := &clusterv3.Cluster{Name: word[1], AltStatName: word[3]}
		switch word[0] {
		case "resource": // NAME VERSION CONTENT
			r.Resource = &anypb.Any{TypeUrl: typeURL, Value: encode(t, content)}
		case "alias": // NAME VERSION CONTENT ALIAS
			r.Aliases = word[4:5]
			r.Resource = &anypb.Any{TypeUrl: typeURL, Value: encode(t, content)}
		case "nameless":
			content.Name = ""
			r.Resource = &anypb.Any{TypeUrl: typeURL, Value: encode(t, content)}
		case "table": // CONTENT, of Istio's NameTable: a map
			r.Name = ""
			entry := protowire.AppendString(protowire.AppendTag(nil, 1, protowire.BytesType), word[1])
			r.Resource = &anypb.Any{TypeUrl: typeURL, Value: protowire.AppendBytes(protowire.AppendTag(nil, 1, protowire.BytesType), entry)}
		case "undecodable": // NAME VERSION
			r.Resource = &anypb.Any{TypeUrl: typeURL, Value: append(encode(t, content), 0xff)}
		case "other-type": // NAME VERSION
			r.Resource = &anypb.Any{TypeUrl: xdstype.ListenerV3, Value: encode(t, content)}
		case "redirect": // NAME VERSION
			r.Resource = &anypb.Any{TypeUrl: xdstype.Locator}
		case "no-content": // NAME
		case "heartbeat": // NAME VERSION
			r.Ttl = durationpb.New(time.Second)
		case "removed": // NAME
			resp.RemovedResources = append(resp.RemovedResources, word[1])
			continue
		case "removed-name": // NAME
			resp.RemovedResourceNames = append(resp.RemovedResourceNames, &discoveryv3.ResourceName{Name: word[1]})
			continue
		case "error": // NAME CODE MESSAGE
			var code codes.Code
			if err := code.UnmarshalJSON([]byte(`"` + word[2] + `"`)); err != nil {
				d.Fatalf(t, "%v", err)
			}
			resp.ResourceErrors = append(resp.ResourceErrors, &discoveryv3.ResourceError{
				ResourceName: &discoveryv3.ResourceName{Name: word[1]},
				ErrorDetail:  &statuspb.Status{Code: int32(code), Message: word[3]},
			})
			continue
		default:
			d.Fatalf(t, "unknown line %q", line)
		}
		resp.Resources = append(resp.Resources, r)
	}
	return resp
}

// sotwResources puts plain resources as they are, and wraps those with a version
// or a TTL.
func sotwResources(resources []*discoveryv3.Resource) []*anypb.Any {
	var list []*anypb.Any
	for _, r := range resources {
		if r.Version == "" && r.Ttl == nil {
			list = append(list, r.Resource)
			continue
		}
		value, _ := proto.Marshal(r)
		list = append(list, &anypb.Any{TypeUrl: xdstype.Wrapper, Value: value})
	}
	return list
}

func encode(t *testing.T, m proto.Message) []byte {
	t.Helper()
	value, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return value
}

func describeDelta(req *discoveryv3.DeltaDiscoveryRequest) string {
	var b strings.Builder
	switch {
	case req.ErrorDetail != nil:
		fmt.Fprintf(&b, "NACK nonce=%s: %s\n", req.ResponseNonce, oneLine(req.ErrorDetail.Message))
	case req.ResponseNonce != "":
		fmt.Fprintf(&b, "ACK nonce=%s\n", req.ResponseNonce)
	default:
		fmt.Fprintf(&b, "subscribe %s %v", xdstype.Word(req.TypeUrl), req.ResourceNamesSubscribe)
		if len(req.InitialResourceVersions) > 0 {
			fmt.Fprintf(&b, " having %v", req.InitialResourceVersions)
		}
		b.WriteString("\n")
	}
	return b.String()
}

func describeSotW(req *discoveryv3.DiscoveryRequest) string {
	what := fmt.Sprintf("%s %v version=%q", xdstype.Word(req.TypeUrl), req.ResourceNames, req.VersionInfo)
	switch {
	case req.ErrorDetail != nil:
		return fmt.Sprintf("NACK nonce=%s: %s\n  %s\n", req.ResponseNonce, oneLine(req.ErrorDetail.Message), what)
	case req.ResponseNonce != "":
		return fmt.Sprintf("ACK nonce=%s %s\n", req.ResponseNonce, what)
	}
	return fmt.Sprintf("request %s\n", what)
}

var kindWords = map[Kind]string{
	Added: "added", Changed: "changed", Removed: "removed", Missing: "missing",
	Failed: "failed", Rejected: "rejected", Unrequested: "unasked",
}

func describeEvent(e Event) string {
	line := fmt.Sprintf("%s %q", kindWords[e.Kind], e.Name)
	if e.Resource != nil {
		line += fmt.Sprintf(" version=%q", e.Resource.Version)
	}
	if e.Err != nil {
		line += ": " + oneLine(e.Err.Error())
	}
	return line + "\n"
}

// oneLine also takes out protobuf's own words, which vary on purpose.
func oneLine(message string) string {
	var lines []string
	for _, line := range strings.Split(message, "\n") {
		if before, _, ok := strings.Cut(line, ": proto:"); ok {
			line = before
		}
		lines = append(lines, line)
	}
	return strings.Join(lines, "; ")
}

func FuzzNameFieldIsWhatProtobufDecodes(f *testing.F) {
	for _, name := range []string{"", "a", "xdstp://a/b/c"} {
		value, err := proto.Marshal(&clusterv3.Cluster{Name: name, AltStatName: "x"})
		if err != nil {
			f.Fatal(err)
		}
		f.Add(value)
		f.Add(slices.Concat(value, value, []byte{0xff}))
	}
	f.Fuzz(func(t *testing.T, value []byte) {
		name, err := wire.InnerName(value)
		var cluster clusterv3.Cluster
		if proto.Unmarshal(value, &cluster) == nil && (cluster.Name != name || err != nil) {
			t.Errorf("InnerName: %q, protobuf: %q", name, cluster.Name)
		}
	})
}
