package graph

import (
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/internal/descriptors"
	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/urn"
)

// This file walks through a resource to find its references.

const (
	// deepest is how deep messages may be nested, as in C++ and Java.
	deepest = 100
	// anyDepth is how deep the walk enters nested Anys.
	anyDepth = 16
	// mostReferences bounds the references that are found in a resource, and mostPaths the total length of their
	// paths, in bytes: a resource can have a long path with many references below it.
	mostReferences = 200_000
	mostPaths      = 8 << 20
	// longestKey bounds the part of a map key that is in a path, in bytes.
	longestKey = 64
)

// walk is the state of a walk through one resource.
type walk struct {
	path  []byte // of the current message
	anys  int    // how many Anys contain the current message
	found []Reference
	paths int  // length of all paths in found
	more  bool // there are more references
}

// message adds the references in a message and in everything below it.
func (w *walk) message(m protoreflect.Message, p *plan) {
	if p.own != nil {
		p.own(w, m)
	}
	for _, step := range p.steps {
		if !m.Has(step.field) {
			continue
		}
		switch {
		case step.target != nil:
			w.names(m, step)
		case step.field.IsMap():
			w.mapField(m, step)
		case step.field.IsList():
			list := m.Get(step.field).List()
			for i := range list.Len() {
				end := w.enter(step.field.Name(), "["+strconv.Itoa(i)+"]")
				w.step(list.Get(i).Message(), step)
				w.leave(end)
			}
		default:
			end := w.enter(step.field.Name(), "")
			w.step(m.Get(step.field).Message(), step)
			w.leave(end)
		}
	}
}

// mapField walks through the messages of a map, in the order of its keys.
func (w *walk) mapField(m protoreflect.Message, step step) {
	values := m.Get(step.field).Map()
	keys := make([]protoreflect.MapKey, 0, values.Len())
	values.Range(func(k protoreflect.MapKey, _ protoreflect.Value) bool {
		keys = append(keys, k)
		return true
	})
	slices.SortFunc(keys, func(a, b protoreflect.MapKey) int { return strings.Compare(a.String(), b.String()) })
	for _, k := range keys {
		end := w.enter(step.field.Name(), "["+strconv.Quote(clipped(k.String()))+"]")
		w.step(values.Get(k).Message(), step)
		w.leave(end)
	}
}

// clipped returns the beginning of a key.
func clipped(key string) string {
	if len(key) <= longestKey {
		return key
	}
	return strings.ToValidUTF8(key[:longestKey], "") + "…"
}

// step walks through one message of a field.
func (w *walk) step(m protoreflect.Message, step step) {
	if step.plan != nil {
		w.message(m, step.plan)
		return
	}
	if a, ok := descriptors.Any(m); ok {
		w.inAny(a)
	}
}

// inAny walks through the content of an Any, if the binary knows its type.
func (w *walk) inAny(a *anypb.Any) {
	if w.anys >= anyDepth {
		return
	}
	if a.GetTypeUrl() == lookupPlugin {
		w.lookup(a.GetValue())
		return
	}
	message, err := descriptors.Types{}.FindMessageByURL(a.GetTypeUrl())
	if err != nil {
		return
	}
	p := planOf(message.Descriptor())
	if p == nil {
		return
	}
	m := message.New()
	if decode(a.GetValue(), m.Interface()) != nil {
		return // the client rejects such a resource
	}
	w.anys++
	w.message(m, p)
	w.anys--
}

func decode(value []byte, m proto.Message) error {
	return proto.UnmarshalOptions{AllowPartial: true, DiscardUnknown: true, RecursionLimit: deepest}.Unmarshal(value, m)
}

// enter adds a field to the path, and returns the argument for leave.
func (w *walk) enter(field protoreflect.Name, index string) (end int) {
	end = len(w.path)
	if end > 0 {
		w.path = append(w.path, '.')
	}
	w.path = append(append(w.path, field...), index...)
	return end
}

func (w *walk) leave(end int) { w.path = w.path[:end] }

// add adds a reference at a field of the current message.
func (w *walk) add(r Reference, field protoreflect.Name, index string) {
	if r.To.Name == "" {
		return // not set; the client may reject the resource
	}
	if w.more = w.more || len(w.found) == mostReferences; w.more {
		return
	}
	end := w.enter(field, index)
	if w.paths += len(w.path); w.paths <= mostPaths {
		r.Path = string(w.path)
	}
	w.leave(end)
	if urn.IsXdstp(r.To.Name) {
		if key, err := urn.KeyOf(r.To.Name); err == nil && key.Glob {
			r.Many = true
		}
	}
	w.found = append(w.found, r)
}

// names adds the references of a field that contains names.
func (w *walk) names(m protoreflect.Message, step step) {
	t := step.target
	r := Reference{To: ID{TypeURL: t.typeURL}, Source: sourceIn(m, t.source), Optional: t.optional, Many: t.many}
	if step.field.IsList() {
		list := m.Get(step.field).List()
		for i := range list.Len() {
			r.To.Name = list.Get(i).String()
			w.add(r, step.field.Name(), "["+strconv.Itoa(i)+"]")
		}
		return
	}
	if r.To.Name = m.Get(step.field).String(); t.typeURL == cluster.typeURL && t.many && r.To.Name != "" {
		r.To.Name = everything
	}
	w.add(r, step.field.Name(), "")
}

// everything is the wildcard.
const everything = "*"

// sourceIn returns the Source for the config source in a field of a message.
func sourceIn(m protoreflect.Message, field protoreflect.Name) Source {
	if field == "" {
		return Stream
	}
	source, ok := get(m, field).(protoreflect.Message)
	if !ok {
		return Stream
	}
	for _, elsewhere := range []protoreflect.Name{"path", "path_config_source", "api_config_source"} {
		if get(source, elsewhere) != nil {
			return Elsewhere
		}
	}
	return Stream
}

// get returns the value of a field, nil if it is not set.
func get(m protoreflect.Message, field protoreflect.Name) any {
	f := m.Descriptor().Fields().ByName(field)
	if f == nil || !m.Has(f) {
		return nil
	}
	return m.Get(f).Interface()
}

func textOf(m protoreflect.Message, field protoreflect.Name) string {
	s, _ := get(m, field).(string)
	return s
}

// lookup adds the default_target of a RouteLookupClusterSpecifier. route_lookup_config is its field 1, and
// default_target is field 9 of route_lookup_config.
func (w *walk) lookup(specifier []byte) {
	config, err := wire.Last(specifier, 1)
	if err != nil {
		return
	}
	if target, err := wire.Last(config, 9); err == nil {
		w.add(Reference{To: ID{cluster.typeURL, string(target)}}, "route_lookup_config.default_target", "")
	}
}

// plan lists the fields of a message type that can contain references.
type plan struct {
	own   func(*walk, protoreflect.Message) // nil if no reference depends on several fields
	steps []step
}

// step is a field that is a reference, or contains messages with references.
type step struct {
	field  protoreflect.FieldDescriptor
	target *target // not nil if the field is a reference
	plan   *plan   // the plan of the field's messages; nil for an Any
}

var plans descriptors.PerMessage[plan]

// planOf returns the plan of a message type, nil if it cannot contain references.
func planOf(message protoreflect.MessageDescriptor) *plan { return plans.Get(message, makePlan) }

// makePlan adds the plan of a message type to known.
func makePlan(message protoreflect.MessageDescriptor, known map[protoreflect.MessageDescriptor]*plan) *plan {
	if p, ok := known[message]; ok {
		return p
	}
	if !leadsAnywhere(message, map[protoreflect.FullName]bool{}) {
		known[message] = nil
		return nil
	}
	p := &plan{own: messageFields[message.FullName()]}
	known[message] = p // message types may be recursive
	for i := range message.Fields().Len() {
		field := message.Fields().Get(i)
		if t, ok := nameFields[field.FullName()]; ok {
			p.steps = append(p.steps, step{field: field, target: &t})
			continue
		}
		inner := descriptors.MessageOf(field)
		if inner == nil || inner.FullName() == opaque {
			continue
		}
		if inner.FullName() == anyName {
			p.steps = append(p.steps, step{field: field})
		} else if in := makePlan(inner, known); in != nil {
			p.steps = append(p.steps, step{field: field, plan: in})
		}
	}
	return p
}

// leadsAnywhere reports whether a message of the type can contain references.
func leadsAnywhere(message protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool) bool {
	switch name := message.FullName(); {
	case seen[name] || name == opaque:
		return false
	case messageFields[name] != nil || name == anyName:
		return true
	default:
		seen[name] = true
	}
	for i := range message.Fields().Len() {
		field := message.Fields().Get(i)
		if _, ok := nameFields[field.FullName()]; ok {
			return true
		}
		if inner := descriptors.MessageOf(field); inner != nil && leadsAnywhere(inner, seen) {
			return true
		}
	}
	return false
}
