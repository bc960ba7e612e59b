package secrets

// This file determines whether an encoded resource holds a secret. It examines only the fields that can lead to one,
// and decodes nothing, because the cache calls it for each resource that changes.

import (
	"bytes"
	"maps"
	"strings"
	"sync"
	"sync/atomic"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/xds-relay/xds-relay/internal/descriptors"
	"github.com/xds-relay/xds-relay/internal/wire"
)

// Holds reports whether a resource holds a secret. value is its encoded message, which the relay has decoded before.
// An Any in it that cannot be read counts as a secret. A type that is not known counts as none, because
// Envoy's API and descriptor sets define what is secret; a printed resource shows nothing of such a type ([Masked]).
func Holds(typeURL string, value []byte) bool {
	p := planOf(typeURL)
	if p == nil || !p.direct && bytes.IndexByte(value, '/') < 0 {
		return false // every Any has a type URL, which has a slash
	}
	return p.holds(value, depth{})
}

// plan is the way to search messages of one type for secrets.
type plan struct {
	kind kind
	// steps are the fields that may lead to a secret, by number.
	steps []step
	// all has the steps while the plan is being compiled, and is nil afterwards.
	all map[protowire.Number]step
	// reaches: such a message may hold a secret. direct: it may do so without an Any.
	reaches, direct bool
}

type kind uint8

const (
	ofMessage kind = iota
	ofAny
	ofTypedStruct
	ofSecret
)

// step is a field: it is secret itself, may lead to a secret, or does neither.
type step struct {
	secret     bool
	dataSource bool // a secret DataSource, of which only inline data is secret
	inner      *plan
}

// dataSourceInline are the fields of a DataSource that contain data.
var dataSourceInline = map[protowire.Number]bool{2: true, 3: true}

// depth is the nesting of a message.
type depth struct {
	nesting int
	inAny   bool
}

func (d depth) next() depth { return depth{d.nesting + 1, d.inAny} }

func (p *plan) holds(message []byte, nesting depth) bool {
	if nesting.nesting > maxNesting {
		return true
	}
	switch p.kind {
	case ofSecret:
		return true
	case ofAny:
		return anyHolds(message, nesting)
	case ofTypedStruct:
		return typedStructHolds(message)
	case ofMessage:
	}
	for len(message) > 0 {
		num, typ, value, n := field(message)
		if n < 0 {
			return nesting.inAny
		}
		message = message[n:]
		if int(num) >= len(p.steps) {
			continue
		}
		switch s := &p.steps[num]; {
		case s.secret:
			if !s.dataSource || typ != protowire.BytesType || inlineDataIn(value) {
				return true
			}
		case s.inner != nil && typ == protowire.BytesType && s.inner.holds(value, nesting.next()):
			return true
		}
	}
	return false
}

// field returns the first field of a message, and its length, which is negative if the field cannot be read. It is a
// fast version of wire.Fields for the most frequent case: a short field number, and less than 128 bytes.
func field(message []byte) (num protowire.Number, typ protowire.Type, value []byte, n int) {
	if len(message) > 1 && message[0] < 0x80 && message[1] < 0x80 {
		switch num, typ = protowire.Number(message[0]>>3), protowire.Type(message[0]&7); typ {
		case protowire.BytesType:
			if n = 2 + int(message[1]); num > 0 && n <= len(message) {
				return num, typ, message[2:n], n
			}
		case protowire.VarintType:
			if num > 0 {
				return num, typ, nil, 2
			}
		}
	}
	num, typ, n = protowire.ConsumeTag(message)
	if n < 0 {
		return 0, 0, nil, n
	}
	var m int
	if typ == protowire.BytesType {
		value, m = protowire.ConsumeBytes(message[n:])
	} else {
		m = protowire.ConsumeFieldValue(num, typ, message[n:])
	}
	if m < 0 {
		return 0, 0, nil, m
	}
	return num, typ, value, n + m
}

func inlineDataIn(dataSource []byte) bool {
	f := wire.Walk(dataSource)
	for f.Next() {
		if dataSourceInline[f.Num] {
			return true
		}
	}
	return f.Err != nil
}

func anyHolds(message []byte, nesting depth) bool {
	var typeURL, value []byte
	for len(message) > 0 {
		num, typ, bytes, n := field(message)
		if n < 0 {
			return true
		}
		message = message[n:]
		switch {
		case typ != protowire.BytesType:
		case num == wire.AnyTypeURL:
			typeURL = bytes
		case num == wire.AnyValue:
			value = bytes
		}
	}
	p := knownPlan(typeURL)
	if p == nil {
		p = planOf(string(typeURL))
	}
	return p != nil && p.reaches && p.holds(value, depth{nesting.nesting + 1, true})
}

func typedStructHolds(message []byte) bool {
	var typeURL string
	var content structpb.Struct
	f := wire.Walk(message)
	for f.Next() {
		switch f.OnlyBytes(); f.Num {
		case 1: // type_url
			typeURL = string(f.Bytes)
		case 2: // value
			if (proto.UnmarshalOptions{Merge: true}).Unmarshal(f.Bytes, &content) != nil {
				return true
			}
		}
	}
	if f.Err != nil {
		return true
	}
	p := planOf(typeURL)
	if p == nil || !p.reaches {
		return false
	}
	found := false
	structWalk{found: func() { found = true }}.message(&content, descriptorOf(typeURL), false, 0)
	return found
}

// plans caches the plans of types by type URL. The number of types that are known bounds its size, because each is
// kept in one spelling.
var plans descriptors.Cached[planCache]

type planCache struct {
	byURL atomic.Pointer[map[string]*plan]
	mu    sync.Mutex // guards additions
	all   map[protoreflect.FullName]*plan
}

// planOf returns nil for a type that is not known.
func planOf(typeURL string) *plan {
	plans := plans.Get()
	if known := plans.byURL.Load(); known != nil {
		if p := (*known)[typeURL]; p != nil {
			return p
		}
	}
	message := descriptorOf(typeURL)
	if message == nil {
		return nil
	}
	plans.mu.Lock()
	defer plans.mu.Unlock()
	if plans.all == nil {
		plans.all = map[protoreflect.FullName]*plan{}
	}
	p := plans.compile(message)
	if strings.HasPrefix(typeURL, usualPrefix) { // control planes can invent other prefixes
		known := map[string]*plan{}
		if before := plans.byURL.Load(); before != nil {
			known = maps.Clone(*before)
		}
		known[typeURL] = p
		plans.byURL.Store(&known)
	}
	return p
}

// knownPlan returns a plan from the cache, nil if it is not there.
func knownPlan(typeURL []byte) *plan {
	if known := plans.Get().byURL.Load(); known != nil {
		return (*known)[string(typeURL)]
	}
	return nil
}

const usualPrefix = "type.googleapis.com/"

// descriptorOf returns nil for a type that is not known.
func descriptorOf(typeURL string) protoreflect.MessageDescriptor {
	t, err := descriptors.Types{}.FindMessageByURL(typeURL)
	if err != nil {
		return nil
	}
	return t.Descriptor()
}

// compile returns the plan of a message. The caller holds mu.
func (plans *planCache) compile(message protoreflect.MessageDescriptor) *plan {
	if p := plans.all[message.FullName()]; p != nil {
		return p
	}
	added := map[protoreflect.FullName]*plan{}
	p := plans.add(message, added)
	for changed := true; changed; { // messages contain each other in cycles
		changed = false
		for _, p := range added {
			for _, s := range p.all {
				reaches := s.secret || s.inner.reaches
				direct := s.secret || s.inner.direct
				if reaches && !p.reaches || direct && !p.direct {
					p.reaches, p.direct, changed = p.reaches || reaches, p.direct || direct, true
				}
			}
		}
	}
	for name, p := range added {
		for number, s := range p.all {
			if s.secret || s.inner.reaches {
				if n := int(number) + 1; n > len(p.steps) {
					p.steps = append(p.steps, make([]step, n-len(p.steps))...)
				}
				p.steps[number] = s
			}
		}
		p.all = nil
		plans.all[name] = p
	}
	return p
}

// add adds the plans of a message, and of the messages in its fields, to added.
func (plans *planCache) add(message protoreflect.MessageDescriptor, added map[protoreflect.FullName]*plan) *plan {
	name := message.FullName()
	if p := plans.all[name]; p != nil {
		return p
	}
	if p := added[name]; p != nil {
		return p
	}
	p := &plan{}
	added[name] = p
	switch {
	case name == anyName:
		p.kind, p.reaches = ofAny, true
		return p
	case isTypedStruct(name):
		p.kind, p.reaches = ofTypedStruct, true
		return p
	case isSecret(name):
		p.kind, p.reaches, p.direct = ofSecret, true, true
		return p
	}
	p.all = map[protowire.Number]step{}
	for i := range message.Fields().Len() {
		field := message.Fields().Get(i)
		inner := field.Message()
		switch {
		case sensitive(field):
			p.all[field.Number()] = step{secret: true, dataSource: inner != nil && isDataSource(inner.FullName())}
		case inner != nil:
			p.all[field.Number()] = step{inner: plans.add(inner, added)}
		}
	}
	return p
}
