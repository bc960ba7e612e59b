package taster

import (
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/xds-relay/xds-relay/internal/descriptors"
)

// This file finds everything that clients would reject in a resource, rule by rule. A verdict has only the first
// reason, which is enough to refuse a resource and costs little for each resource.

// Family is a family of clients.
type Family string

// The families. All stands for both.
const (
	All   Family = "all"
	Envoy Family = "envoy"
	GRPC  Family = "grpc"
)

// Finding is a rule that a resource breaks. It quotes no values of the resource.
type Finding struct {
	Rule string // the ID of a rule in Rules
	// By is the family that rejects the resource.
	By Family
	// Path is the field, or the message that contains it. It is empty for the resource itself. In gRPC's rules, it
	// leaves out typed_config.
	Path string
	// Text says what is wrong, or what is required.
	Text string

	undecodable anyKey // as in violation
}

const (
	// mostFindings bounds the findings for one resource and family.
	mostFindings = 50
	// mostWork bounds the passes over a large resource, in bytes.
	mostWork = 64 << 20
	// mostValidatedAll is the length of the longest resource for which Envoy's validators report more than the first
	// error, in bytes: their errors take much more memory than the resource.
	mostValidatedAll = 1 << 20
)

// Findings returns everything that [Type.Taste] would report if each family continued after its first reason, up to
// some limits. It returns no findings exactly if Taste reports nothing.
func (t Type) Findings(value []byte) (found []Finding) {
	verdict := t.Taste(value)
	if verdict == nil {
		return nil
	}
	defer func() {
		if recover() != nil || len(found) == 0 {
			found = whole(verdict)
		}
	}()
	if t.known == nil {
		return nil
	}
	tasting := t.begin(value)
	if tooDeep, err := decode(tasting.message, value); tooDeep || err != nil || len(value) > mostTasted {
		return nil
	}
	tasting.findings = &found
	tasting.envoy(tasting.message, t.anys)
	if t.grpc == nil {
		return found
	}
	for n := range min(mostFindings, max(1, mostWork/(len(value)+1))) {
		tasting.passed = n
		tasting.refill()
		v := t.grpc(tasting, tasting.message)
		if v == nil {
			break
		}
		found = join(found, Finding{Rule: v.id, By: GRPC, Path: v.where(), Text: "gRPC requires that " + v.want, undecodable: v.undecodable})
	}
	return found
}

// join adds a finding of gRPC's. A part that neither family can decode is one finding.
func join(found []Finding, f Finding) []Finding {
	for i := range found {
		if f.undecodable != nil && found[i].undecodable == f.undecodable {
			found[i].By = All
			return found
		}
		if found[i].Rule == f.Rule && found[i].Path == f.Path && found[i].Text == f.Text {
			return found
		}
	}
	return append(found, f)
}

// whole returns findings for a verdict, about the whole resource.
func whole(v *Verdict) (found []Finding) {
	if v.Unreadable != "" {
		return []Finding{{Rule: decodable, By: All, Text: v.Unreadable}}
	}
	if v.Envoy == errTooDeep {
		return []Finding{{Rule: depth, By: Envoy, Text: v.Envoy}}
	}
	if v.Envoy != "" {
		found = append(found, Finding{Rule: constraint, By: Envoy, Text: v.Envoy})
	}
	if v.GRPC != "" {
		found = append(found, Finding{Rule: decodable, By: GRPC, Text: v.GRPC})
	}
	return found
}

// add adds a finding of Envoy's. It returns nil, so that the search continues, until the limit is reached.
func (t *tasting) add(f Finding) *finding {
	if len(*t.findings) >= mostFindings {
		return &finding{text: f.Text}
	}
	*t.findings = append(*t.findings, f)
	return nil
}

// validateAll adds all errors of a message's validator.
func (t *tasting) validateAll(m proto.Message) *finding {
	var err error
	if v, ok := m.(interface{ ValidateAll() error }); ok && len(t.value) <= mostValidatedAll {
		err = v.ValidateAll()
	} else if v, ok := m.(interface{ Validate() error }); ok {
		err = v.Validate()
	}
	if err == nil {
		return nil
	}
	return t.addInvalid(m.ProtoReflect().Descriptor(), err, string(t.path))
}

// addInvalid adds a validator's errors for the message at a path.
func (t *tasting) addInvalid(message protoreflect.MessageDescriptor, err error, path string) *finding {
	switch e := err.(type) { //nolint:errorlint // validators do not wrap: they have a cause
	case interface{ AllErrors() []error }:
		for _, one := range e.AllErrors() {
			if f := t.addInvalid(message, one, path); f != nil {
				return f
			}
		}
		return nil
	case invalid:
		field, inner := fieldOf(message, t.field(e.Field()))
		if path != "" {
			field = path + "." + field
		}
		cause := e.Cause()
		switch cause.(type) { //nolint:errorlint // as above
		case interface{ AllErrors() []error }, invalid:
			return t.addInvalid(inner, cause, field)
		}
		rule := constraint
		if e.Reason() == "value is required" {
			rule = required
		}
		return t.add(Finding{Rule: rule, By: Envoy, Path: field, Text: e.Reason()})
	}
	return t.add(Finding{Rule: constraint, By: Envoy, Path: path, Text: "it is invalid"})
}

// fieldOf returns a field's name and message type. inGo is the field's name in Go, as validators report it. For a
// oneof, fieldOf returns the Go name.
func fieldOf(message protoreflect.MessageDescriptor, inGo string) (name string, inner protoreflect.MessageDescriptor) {
	base, index, hasIndex := strings.Cut(inGo, "[")
	if hasIndex {
		index = "[" + index
	}
	if message == nil {
		return inGo, nil
	}
	hasName := func(name protoreflect.Name) bool {
		return strings.EqualFold(strings.ReplaceAll(string(name), "_", ""), strings.ReplaceAll(base, "_", ""))
	}
	for i := range message.Fields().Len() {
		if field := message.Fields().Get(i); hasName(field.Name()) {
			return string(field.Name()) + index, descriptors.MessageOf(field)
		}
	}
	for i := range message.Oneofs().Len() {
		if oneof := message.Oneofs().Get(i); hasName(oneof.Name()) {
			return string(oneof.Name()), nil
		}
	}
	return inGo, nil
}

// enter adds a message of a field to the path, and returns the argument for leave.
func (t *tasting) enter(field protoreflect.FieldDescriptor, e element) (end int) {
	if t.findings == nil {
		return 0
	}
	if end = len(t.path); end > 0 {
		t.path = append(t.path, '.')
	}
	t.path = append(t.path, field.Name()...)
	switch {
	case field.IsList():
		t.path = strconv.AppendInt(append(t.path, '['), int64(e.index), 10)
		t.path = append(t.path, ']')
	case field.IsMap():
		t.path = append(append(append(t.path, '['), t.key(e.key.String())...), ']')
	}
	return end
}

func (t *tasting) leave(end int) { t.path = t.path[:end] }

// Rule is a requirement that clients have for resources.
type Rule struct {
	// ID is the name of the rule, in kebab-case.
	ID string
	// By names the clients that reject a resource that breaks the rule.
	By Family
	// Source is the document that has the requirement.
	Source string
	// Want is the requirement.
	Want string
	// Of is the message that the rule is about.
	Of string
}

// These rules are in no table.
const (
	decodable    = "decodable"
	anyDecodable = "any-decodable"
	depth        = "envoy-depth"
	required     = "envoy-required"
	constraint   = "envoy-constraint"

	wantDecodable = "an Any is a message of its type"
	validators    = "protoc-gen-validate, in Envoy's API"
)

// Rules returns all rules, each once.
func Rules() []Rule {
	all := []Rule{
		{decodable, All, "protobuf", "a resource is a message of its type", "any resource"},
		{anyDecodable, All, "protobuf", wantDecodable, "any message"},
		{depth, Envoy, "protobuf, in C++ and Java", "messages are nested at most 100 deep", "any resource"},
		{required, Envoy, validators, "fields that are required are set", "any message of Envoy's API"},
		{constraint, Envoy, validators, "a field has a value that its constraints allow", "any message of Envoy's API"},
	}
	seen := map[string]bool{}
	for _, r := range grpcRules() {
		if !seen[r.ID] {
			seen[r.ID] = true
			all = append(all, r)
		}
	}
	return all
}

// grpcRules returns the rules of all tables.
func grpcRules() (all []Rule) {
	for _, table := range [][]Rule{
		described("Cluster", clusterRules), described("OutlierDetection", outlierRules),
		described("LoadBalancingPolicy", noSupportedPolicy), described("LoadBalancingPolicy", policyDepthRules), described("LoadBalancingPolicy", policyRules),
		described("ClusterLoadAssignment", endpointsRules), described("LocalityLbEndpoints", localityRules), described("DropOverload", dropRules),
		described("Listener", listenerRules), described("Listener of a server", serverRules), described("FilterChain", chainRules),
		described("HttpConnectionManager", hcmRules), described("HttpConnectionManager of a server", serverHCMRules), described("HttpFilter", filterRules), described("HttpConnectionManager", filtersRules),
		described("RouteConfiguration", routesNameRules), described("RouteConfiguration", routesRules), described("Route", routeRules),
		described("HeaderMatcher", headerRules), described("RouteAction", actionRules), described("RouteAction", pluginRules),
		described("RetryPolicy", retryRules), described("typed_per_filter_config", overrideRules),
		described("TransportSocket", socketRules), described("TransportSocket of a Cluster", upstreamSocketRules), described("TransportSocket of a Listener", downstreamSocketRules),
		described("CommonTlsContext", commonTLSRules), described("CommonTlsContext of a Cluster", clientTLSRules), described("CommonTlsContext of a Listener", serverTLSRules),
		described("DownstreamTlsContext", downstreamTLSRules),
	} {
		all = append(all, table...)
	}
	return all
}

func described[M any](message string, rs rules[M]) (all []Rule) {
	for _, r := range rs {
		all = append(all, Rule{ID: r.id, By: GRPC, Source: "gRFC " + r.grfc, Want: r.want, Of: message})
	}
	return all
}
