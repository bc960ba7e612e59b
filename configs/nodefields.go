package configs

// This file decides which fields of a client's Node the relay sends upstream for its partition. The Node
// of the first client represents all clients of the partition. So the relay sends only what they have in
// common: the fields that the partition expression reads, and those that the operator lists.

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"
)

// NodeFields are the fields of a Node that the relay sends upstream. The zero value has none.
type NodeFields struct {
	whole bool
	paths []nodePath // none is below another
}

// nodePath is the path of a field of a Node, or of a part of one: names of fields, and keys of maps and
// of google.protobuf.Struct.
type nodePath []string

// everyNode are the fields that the relay sends upstream for every partition.
var everyNode = []nodePath{{"id"}, {"cluster"}}

// newNodeFields returns the fields at some paths. The empty path is the whole Node.
func newNodeFields(paths ...nodePath) NodeFields {
	paths = slices.SortedFunc(slices.Values(paths), func(a, b nodePath) int { return slices.Compare(a, b) })
	if len(paths) > 0 && len(paths[0]) == 0 {
		return NodeFields{whole: true}
	}
	var f NodeFields
	for _, p := range paths { // a path sorts after those above it
		if n := len(f.paths); n == 0 || !p.below(f.paths[n-1]) {
			f.paths = append(f.paths, p)
		}
	}
	return f
}

func (p nodePath) below(o nodePath) bool { return len(p) >= len(o) && slices.Equal(p[:len(o)], o) }

// String returns the path as it is written in node_fields.
func (p nodePath) String() string {
	var b strings.Builder
	for i, key := range p {
		switch {
		case !plain.MatchString(key):
			fmt.Fprintf(&b, "[%q]", key)
		case i > 0:
			b.WriteString("." + key)
		default:
			b.WriteString(key)
		}
	}
	return b.String()
}

// Whole reports whether the relay sends the whole Node upstream.
func (f NodeFields) Whole() bool { return f.whole }

// Paths returns the paths of the fields as they are written in node_fields, sorted. It returns none for
// the whole Node.
func (f NodeFields) Paths() []string {
	paths := make([]string, len(f.paths))
	for i, p := range f.paths {
		paths[i] = p.String()
	}
	return paths
}

// Of returns a Node with these fields of node, which may be nil. The two Nodes share the values of these
// fields, so the caller must not change these values; it may set other fields.
func (f NodeFields) Of(node *corev3.Node) *corev3.Node {
	if f.whole {
		return proto.CloneOf(node)
	}
	some := &corev3.Node{}
	if node == nil {
		return some
	}
	for _, p := range f.paths {
		share(some.ProtoReflect(), node.ProtoReflect(), p)
	}
	return some
}

// share copies the value at path from one message to another.
func share(to, from protoreflect.Message, path nodePath) {
	if s, ok := from.Interface().(*structpb.Struct); ok {
		shareKey(to.Interface().(*structpb.Struct), s, path)
		return
	}
	field := from.Descriptor().Fields().ByName(protoreflect.Name(path[0]))
	switch rest := path[1:]; {
	case field == nil || !from.Has(field):
	case len(rest) == 0:
		to.Set(field, from.Get(field))
	case field.IsMap():
		key := protoreflect.ValueOfString(rest[0]).MapKey()
		value := from.Get(field).Map().Get(key)
		switch entries := to.Mutable(field).Map(); {
		case !value.IsValid():
		case len(rest) == 1:
			entries.Set(key, value)
		default:
			share(entries.Mutable(key).Message(), value.Message(), rest[1:])
		}
	default:
		share(to.Mutable(field).Message(), from.Get(field).Message(), rest)
	}
}

// shareKey is share for the keys of a Struct.
func shareKey(to, from *structpb.Struct, path nodePath) {
	value, ok := from.GetFields()[path[0]]
	if !ok {
		return
	}
	if to.Fields == nil {
		to.Fields = map[string]*structpb.Value{}
	}
	if len(path) == 1 {
		to.Fields[path[0]] = value
		return
	}
	below := value.GetStructValue()
	if below == nil {
		return
	}
	there := to.Fields[path[0]].GetStructValue()
	if there == nil {
		there = &structpb.Struct{}
		to.Fields[path[0]] = structpb.NewStructValue(there)
	}
	shareKey(there, below, path[1:])
}

// wholeNode is the entry of node_fields that stands for the whole Node.
const wholeNode = "*"

// parseNodePath parses an entry of node_fields.
func parseNodePath(entry string) (nodePath, error) {
	if entry == wholeNode {
		return nodePath{}, nil
	}
	if field, ok := strings.CutPrefix(entry, "node."); ok {
		return nil, fmt.Errorf("%q begins with node (did you mean %q?)", entry, field)
	}
	path, ok := splitNodePath(entry)
	if !ok {
		return nil, fmt.Errorf(`%q is not a field of a Node (want a path such as locality.zone, metadata.ROLE or metadata["a.b"])`, entry)
	}
	if err := checkNodePath(path); err != nil {
		return nil, err
	}
	return path, nil
}

// splitNodePath splits a path into its keys, which are separated by dots, or are in brackets and quotes.
func splitNodePath(text string) (path nodePath, ok bool) {
	for first := true; text != ""; first = false {
		if quoted, found := strings.CutPrefix(text, "["); found && !first {
			literal, err := strconv.QuotedPrefix(quoted)
			if err != nil {
				return nil, false
			}
			key, err := strconv.Unquote(literal)
			rest, closed := strings.CutPrefix(quoted[len(literal):], "]")
			if err != nil || !closed {
				return nil, false
			}
			path, text = append(path, key), rest
			continue
		}
		if !first {
			if text, ok = strings.CutPrefix(text, "."); !ok {
				return nil, false
			}
		}
		end := strings.IndexAny(text, ".[")
		if end < 0 {
			end = len(text)
		}
		if key := text[:end]; plain.MatchString(key) {
			path, text = append(path, key), text[end:]
		} else {
			return nil, false
		}
	}
	return path, len(path) > 0
}

// checkNodePath returns an error if no Node can have a value at path.
func checkNodePath(path nodePath) error {
	at := (&corev3.Node{}).ProtoReflect().Descriptor()
	for i := 0; i < len(path); i++ {
		if at.FullName() == "google.protobuf.Struct" {
			return nil // has any keys
		}
		field := at.Fields().ByName(protoreflect.Name(path[i]))
		if field == nil {
			return unknownField(path[:i], path[i], at)
		}
		below := path[i+1:]
		if field.IsMap() && len(below) > 0 {
			field, below, i = field.MapValue(), below[1:], i+1
		}
		if len(below) == 0 {
			return nil
		}
		if field.IsList() || field.Message() == nil {
			return fmt.Errorf("%q is below %q, which goes as a whole (want %q)", path, path[:i+1], path[:i+1])
		}
		at = field.Message()
	}
	return nil
}

func unknownField(parent nodePath, name string, in protoreflect.MessageDescriptor) error {
	var names []string
	for i := range in.Fields().Len() {
		names = append(names, string(in.Fields().Get(i).Name()))
	}
	if word := closest(name, names); word != "" {
		return fmt.Errorf("%q is not a field of a Node (did you mean %q?)", slices.Concat(parent, nodePath{name}), slices.Concat(parent, nodePath{word}))
	}
	return fmt.Errorf("%q is not a field of a Node (want %s)", slices.Concat(parent, nodePath{name}), oneOf(names))
}

// compileNodeFields prepares Upstream. reads is what the partition expression reads.
func (r *Rule) compileNodeFields(reads nodeReads) (errs Errors) {
	paths := slices.Concat(everyNode, reads.paths)
	if reads.perNode {
		paths = append(paths, nodePath{})
	}
	seen := map[string]int{}
	for i, entry := range r.NodeFields {
		at := fmt.Sprintf("node_fields[%d]", i)
		path, err := parseNodePath(entry)
		first, twice := seen[path.String()]
		switch {
		case entry == "": // there is an error for that
			continue
		case err != nil:
		case twice:
			err = fmt.Errorf("%q is already node_fields[%d] (want each once)", entry, first)
		case entry == wholeNode && len(r.NodeFields) > 1:
			err = errors.New(`"*" is the whole Node, and does not go with others (want it alone, or only the others)`)
		}
		if err != nil {
			errs = append(errs, Error{Path: at, Err: err})
			continue
		}
		seen[path.String()] = i
		paths = append(paths, path)
	}
	r.upstream = newNodeFields(paths...)
	return errs
}
