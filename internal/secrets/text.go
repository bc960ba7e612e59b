package secrets

// This file cleans texts that may quote a resource: texts of clients and control planes, and errors of protobuf.

import (
	"fmt"
	"regexp"
	"strings"
	"sync"

	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/xds-relay/xds-relay/internal/descriptors"
)

var (
	// privateKey is a private key in PEM, or its beginning.
	privateKey = regexp.MustCompile(`(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|$)`)
	// validationFailed matches the error in which Envoy prints the message that it rejects.
	validationFailed = regexp.MustCompile(`(?s)(Proto constraint validation failed \(.*?\)): .+$`)
)

// Words returns a text from a client or control plane in a form that may be shown: without private keys, and without
// the message that Envoy prints when a validation fails. It does not recognize other quotations: a text about a
// resource that holds a secret must not be shown at all.
func Words(text string) string {
	text = validationFailed.ReplaceAllString(text, "$1: "+redacted)
	return privateKey.ReplaceAllString(text, redacted)
}

// faults match the parts of protobuf's errors that describe faults in JSON or in the text format, without the values
// that they quote. The group is the name of a field.
var faults = []*regexp.Regexp{
	regexp.MustCompile(`^unknown field "([^"]*)"`),
	regexp.MustCompile(`^unknown field: (\S*)`),
	regexp.MustCompile(`^duplicate field "([^"]*)"`),
	regexp.MustCompile(`^non-repeated field "([^"]*)" is repeated`),
	regexp.MustCompile(`^unable to resolve "[A-Za-z0-9_./-]*"`),
	regexp.MustCompile(`^invalid value for [a-z0-9]+ field [A-Za-z0-9_.]+`),
	regexp.MustCompile(`^invalid value for [a-z0-9]+ (?:type|key)`),
	regexp.MustCompile(`^duplicate map key`),
	regexp.MustCompile(`^(?:missing|duplicate) "(?:@type|value)" field`),
	regexp.MustCompile(`^@type field (?:value is not a string|contains empty value)(?:: [\[{])?`),
	regexp.MustCompile(`^missing field separator`),
	regexp.MustCompile(`^unexpected EOF`),
	regexp.MustCompile(`^exceeded max(?:imum)? recursion depth`),
	regexp.MustCompile(`^invalid escape code`),
	regexp.MustCompile(`^invalid UTF-8`),
	regexp.MustCompile(`^contains invalid UTF-8`),
	regexp.MustCompile(`^field [A-Za-z0-9_.]+ contains invalid UTF-8`),
}

var (
	// protobuf prints either a normal or a non-breaking space, to prevent comparisons of its texts.
	protoPlace = regexp.MustCompile(`^proto:[ \x{a0}](?:syntax error )?(?:\(line \d+:\d+\): )?(?:google\.protobuf\.Any: )?`)
	enumFault  = regexp.MustCompile(`^invalid value for enum field [A-Za-z0-9_.]+: "([^"]*)"$`)
	oneofSet   = regexp.MustCompile(`oneof [A-Za-z0-9_.]+ is already set`)
)

// FieldName returns the name of a field that a text has, to be shown. A name that is like none in Envoy's API may be a
// secret in a wrong place, and is replaced.
func FieldName(name string) string {
	if name == "" || fieldNames().isLike(name) {
		return name
	}
	return "(a field whose name is not shown because no name in Envoy's API is similar)"
}

// Fault returns the description from a protobuf error about text in JSON or in the text format. It quotes nothing of
// the text except names of types and fields. It is empty for an error that cannot be shown.
func Fault(err error) string {
	text := err.Error()
	text = text[len(protoPlace.FindString(text)):]
	if m := enumFault.FindStringSubmatch(text); m != nil && enumNames().isLike(m[1]) {
		return m[0]
	}
	for _, f := range faults {
		m := f.FindStringSubmatch(text)
		switch {
		case m == nil:
		case len(m) > 1 && m[1] != "@type" && !fieldNames().isLike(m[1]):
			kind, _, _ := strings.Cut(m[0], " ")
			return fmt.Sprintf("%s field, whose name is not shown because no name in Envoy's API is similar", kind)
		default:
			return m[0]
		}
	}
	if strings.HasPrefix(text, "error parsing ") {
		return oneofSet.FindString(text)
	}
	return ""
}

// names is a set of the names of fields or enum values in Envoy's API.
type names struct {
	all      map[string]struct{}
	byLength map[int][]string
}

func (n *names) add(name string) {
	if n.all == nil {
		n.all, n.byLength = map[string]struct{}{}, map[int][]string{}
	}
	if _, known := n.all[name]; !known {
		n.all[name] = struct{}{}
		n.byLength[len(name)] = append(n.byLength[len(name)], name)
	}
}

// isLike reports whether a name is in the set, or differs from one in at most one letter. A secret in the place of a
// name is neither.
func (n *names) isLike(name string) bool {
	if _, ok := n.all[name]; ok {
		return true
	}
	for length := len(name) - 1; length <= len(name)+1; length++ {
		for _, other := range n.byLength[length] {
			if isNear(name, other) {
				return true
			}
		}
	}
	return false
}

// isNear reports whether b is a with one letter missing, added or replaced, or with two adjacent letters swapped.
func isNear(a, b string) bool {
	if len(a) > len(b) {
		a, b = b, a
	}
	same := 0
	for same < len(a) && a[same] == b[same] {
		same++
	}
	rest, other := a[same:], b[same:]
	switch {
	case len(a) < len(b):
		return rest == other[1:]
	case len(rest) == 0 || rest[1:] == other[1:]:
		return true
	}
	return len(rest) > 1 && rest[0] == other[1] && rest[1] == other[0] && rest[2:] == other[2:]
}

// fieldNames are the names of all fields in this binary.
func fieldNames() *names {
	return fieldNameCache.Get().collect(func(n *names, field protoreflect.FieldDescriptor) {
		n.add(field.JSONName())
		n.add(field.TextName())
	})
}

// enumNames are the names of all values of enum fields in this binary.
func enumNames() *names {
	return enumNameCache.Get().collect(func(n *names, field protoreflect.FieldDescriptor) {
		if enum := field.Enum(); enum != nil {
			for i := range enum.Values().Len() {
				n.add(string(enum.Values().Get(i).Name()))
			}
		}
	})
}

var fieldNameCache, enumNameCache descriptors.Cached[nameCache]

// nameCache has names that are collected once.
type nameCache struct {
	once  sync.Once
	names names
}

// collect returns the names that add adds for all fields.
func (c *nameCache) collect(add func(*names, protoreflect.FieldDescriptor)) *names {
	c.once.Do(func() { eachField(func(field protoreflect.FieldDescriptor) { add(&c.names, field) }) })
	return &c.names
}

// eachField calls f for each field of each message in this binary.
func eachField(f func(protoreflect.FieldDescriptor)) {
	var visit func(protoreflect.MessageDescriptors)
	visit = func(messages protoreflect.MessageDescriptors) {
		for i := range messages.Len() {
			fields := messages.Get(i).Fields()
			for j := range fields.Len() {
				f(fields.Get(j))
			}
			visit(messages.Get(i).Messages())
		}
	}
	descriptors.RangeFiles(func(file protoreflect.FileDescriptor) bool {
		visit(file.Messages())
		return true
	})
}
