package upstream

import (
	"errors"
	"fmt"
	"math"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/xdstype"
)

// A shallow parser of responses: it goes as deep as the relay has to look, and
// skips what it does not know. Bytes that it returns are parts of the message.

// response is a DiscoveryResponse or a DeltaDiscoveryResponse.
type response struct {
	version   string // version_info; of delta system_version_info
	typeURL   string
	nonce     string
	resources []resource
	removed   []name
	errors    []resourceError
	size      int // of the message, in bytes
}

// name is a resource's name, or a ResourceName.
type name struct {
	name string
	// constraints are the encoded dynamic_parameter_constraints, empty for none.
	constraints string
}

// resource is one element of a response's resources.
type resource struct {
	raw  []byte // the element as it came
	name string // empty if it has none, or none that can be trusted
	// unnamed says that it has nothing that can be a name: outside, or in SotW inside.
	unnamed bool
	version string
	aliases []string
	// constraints are as in name.
	constraints string
	ttl         time.Duration // 0 for none
	doNotCache  bool
	extra       []byte // the fields that are passed on as they are
	// present says that there is a resource, that is typeURL and value.
	present bool
	typeURL string
	value   []byte
	// redirect is the URL of which value is the ResourceLocator, once it was checked
	// that it is one in the place of another type's resource.
	redirect string
	// err says why the element is no resource.
	err error
	// stored is what was made of it, once somebody has wanted it.
	stored *cache.Resource
}

// resourceError is one element of a response's resource_errors.
type resourceError struct {
	name name
	err  cache.Error
}

// Field numbers of envoy/service/discovery/v3/discovery.proto, google.protobuf.Any
// and google.rpc.Status.
const (
	responseVersion   = 1
	responseResources = 2
	responseTypeURL   = 4
	responseNonce     = 5

	sotwErrors   = 7
	deltaRemoved = 6
	// deltaRemovedNames is removed_resource_names, of ResourceName messages.
	deltaRemovedNames = 8
	deltaErrors       = 9

	resourceVersion = 1
	resourceAny     = 2
	resourceName    = 3
	resourceAliases = 4
	resourceTTL     = 6
	resourceCache   = 7 // cache_control
	// resourceNameMessage is resource_name, a ResourceName message.
	resourceNameMessage = 8

	cacheDoNot = 1

	nameName        = 1
	nameConstraints = 2

	durationSeconds = 1
	durationNanos   = 2

	anyTypeURL = 1
	anyValue   = 2

	errorName   = 1
	errorDetail = 2

	statusCode    = 1
	statusMessage = 2
)

var (
	errUTF8     = errors.New("not UTF-8")
	errNameUTF8 = fmt.Errorf("name: %w", errUTF8)
)

// parseSotW parses a DiscoveryResponse. An error is of the response as a whole;
// errors of single resources are in them.
func parseSotW(b []byte) (*response, error) {
	return parseResponse(b, parseAnyResource, func(r *response, f *field) (err error) {
		if f.num == sotwErrors {
			r.errors, err = appendError(r.errors, f.bytes)
		}
		return err
	})
}

// parseDelta parses a DeltaDiscoveryResponse.
func parseDelta(b []byte) (*response, error) {
	return parseResponse(b, parseResource, func(r *response, f *field) (err error) {
		var n name
		switch f.num {
		case deltaRemoved:
			if n.name, err = f.string(); err == nil {
				r.removed = append(r.removed, n)
			}
		case deltaRemovedNames:
			if n, err = parseName(f.bytes); err == nil {
				r.removed = append(r.removed, n)
			}
		case deltaErrors:
			r.errors, err = appendError(r.errors, f.bytes)
		}
		return err
	})
}

func parseResponse(b []byte, element func([]byte) resource, other func(*response, *field) error) (*response, error) {
	r := &response{size: len(b)}
	f := field{rest: b}
	for f.next() {
		var err error
		switch f.onlyBytes(); f.num {
		case responseVersion:
			r.version, err = f.string()
		case responseResources:
			r.resources = append(r.resources, element(f.bytes))
		case responseTypeURL:
			r.typeURL, err = f.string()
		case responseNonce:
			r.nonce, err = f.string()
		default:
			err = other(r, &f)
		}
		if err != nil {
			return nil, fmt.Errorf("field %d: %w", f.num, err)
		}
	}
	return r, f.err
}

// parseResource parses a Resource.
func parseResource(b []byte) resource {
	r := resource{raw: b}
	var body, name, control, ttl []byte // the messages in it
	f := field{rest: b}
	var err error
	for err == nil && f.next() {
		switch f.onlyBytes(); f.num {
		case resourceVersion:
			r.version, err = f.string()
			continue
		case resourceName:
			r.name, err = f.string()
			continue
		case resourceAny:
			body, r.present = merge(body, f.bytes), true
			continue
		case resourceAliases:
			var alias string
			if alias, err = f.string(); err == nil {
				r.aliases = append(r.aliases, alias)
			}
		case resourceTTL:
			ttl = merge(ttl, f.bytes)
			continue
		case resourceCache:
			control = merge(control, f.bytes)
		case resourceNameMessage:
			name = merge(name, f.bytes)
			continue
		}
		r.extra = append(r.extra, f.raw...) // its own: there may be many
	}
	if err == nil {
		err = f.err
	}
	if err == nil && name != nil {
		err = r.takeName(name)
	}
	r.unnamed = r.name == ""
	if err == nil {
		r.ttl, err = parseDuration(ttl)
	}
	if err == nil {
		r.doNotCache, err = parseFlag(control, cacheDoNot)
	}
	if err != nil {
		// What precedes the place cannot be trusted either.
		return resource{raw: b, err: fmt.Errorf("undecodable Resource: %w", err)}
	}
	if r.present {
		r.parseAny(body)
	}
	return r
}

// takeName takes a resource_name.
func (r *resource) takeName(b []byte) error {
	n, err := parseName(b)
	if r.name == "" {
		r.name = n.name
	}
	r.constraints = n.constraints
	return err
}

// parseAnyResource parses a resource of a SotW response.
func parseAnyResource(b []byte) resource {
	r := resource{raw: b, present: true}
	if r.parseAny(b); r.err != nil {
		return r
	}
	if r.typeURL == xdstype.Wrapper {
		if r = parseResource(r.value); r.name != "" || !r.present || r.err != nil {
			r.raw = b
			return r
		}
	}
	r.raw = b
	if !xdstype.HasInnerName(r.typeURL) {
		r.unnamed = true
		return r
	}
	name, err := cache.InnerName(r.value)
	r.unnamed = err == nil && !xdstype.IsName([]byte(name))
	switch {
	case err != nil:
		r.err = fmt.Errorf("undecodable value: %w", err)
	case !utf8.ValidString(name):
		r.err = errNameUTF8
	default:
		r.name = name
	}
	return r
}

// parseAny parses the resource itself.
func (r *resource) parseAny(b []byte) {
	f := field{rest: b}
	var err error
	for err == nil && f.next() {
		switch f.onlyBytes(); f.num {
		case anyTypeURL:
			r.typeURL, err = f.string()
		case anyValue:
			r.value = f.bytes
		}
	}
	if err == nil {
		err = f.err
	}
	if err != nil {
		r.err = fmt.Errorf("undecodable Any: %w", err)
	}
}

// parseName returns what is in a ResourceName.
func parseName(b []byte) (n name, err error) {
	var constraints []byte
	f := field{rest: b}
	for err == nil && f.next() {
		switch f.onlyBytes(); f.num {
		case nameName:
			n.name, err = f.string()
		case nameConstraints:
			constraints = merge(constraints, f.bytes)
		}
	}
	if err == nil {
		err = f.err
	}
	n.constraints = string(constraints)
	return n, err
}

// parseDuration returns what is in a Duration, 0 if that is not above 0.
func parseDuration(b []byte) (time.Duration, error) {
	var seconds, nanos int64
	f := field{rest: b}
	for f.next() {
		switch {
		case f.typ != protowire.VarintType:
		case f.num == durationSeconds:
			seconds = int64(f.varint)
		case f.num == durationNanos:
			nanos = int64(int32(f.varint))
		}
	}
	const most = math.MaxInt64/int64(time.Second) - 1
	if seconds < 0 || nanos < 0 || nanos >= int64(time.Second) {
		return 0, f.err // none that a Duration may be
	}
	return time.Duration(min(seconds, most))*time.Second + time.Duration(nanos), f.err
}

// parseFlag returns a bool field of a message.
func parseFlag(b []byte, num protowire.Number) (set bool, err error) {
	f := field{rest: b}
	for f.next() {
		if f.num == num && f.typ == protowire.VarintType {
			set = f.varint != 0
		}
	}
	return set, f.err
}

func appendError(to []resourceError, b []byte) ([]resourceError, error) {
	var name, detail []byte
	f := field{rest: b}
	for f.next() {
		switch f.onlyBytes(); f.num {
		case errorName:
			name = merge(name, f.bytes)
		case errorDetail:
			detail = merge(detail, f.bytes)
		}
	}
	if f.err != nil {
		return nil, f.err
	}
	var e resourceError
	var err error
	if e.name, err = parseName(name); err != nil {
		return nil, err
	}
	f = field{rest: detail}
	for f.next() {
		switch {
		case f.num == statusCode && f.typ == protowire.VarintType:
			e.err.Code = codes.Code(uint32(f.varint))
		case f.num == statusMessage && f.typ == protowire.BytesType:
			if e.err.Message, err = f.string(); err != nil {
				return nil, err
			}
		}
	}
	return append(to, e), f.err
}

// merge adds a part of a message to the parts before: a message that comes in
// several is their concatenation. The bytes of the response are not written to.
func merge(parts, part []byte) []byte {
	if parts == nil {
		return part
	}
	return append(parts[:len(parts):len(parts)], part...)
}

// field walks over the fields of a message.
type field struct {
	rest []byte
	err  error // why next returned false, if not for the end

	num    protowire.Number
	typ    protowire.Type
	raw    []byte // tag and value
	bytes  []byte // the value, of BytesType
	varint uint64 // the value, of VarintType
}

// next moves to the next field.
func (f *field) next() bool {
	if len(f.rest) == 0 || f.err != nil {
		return false
	}
	num, typ, n := protowire.ConsumeTag(f.rest)
	if n >= 0 && num > protowire.MaxValidNumber {
		f.err = errors.New("invalid field number")
		return false
	}
	f.num, f.typ, f.bytes, f.varint = num, typ, nil, 0
	m := n
	if n >= 0 {
		switch value := f.rest[n:]; typ {
		case protowire.BytesType:
			f.bytes, m = protowire.ConsumeBytes(value)
		case protowire.VarintType:
			f.varint, m = protowire.ConsumeVarint(value)
		default:
			m = protowire.ConsumeFieldValue(num, typ, value)
		}
	}
	if m < 0 {
		f.err = protowire.ParseError(m)
		return false
	}
	f.raw, f.rest = f.rest[:n+m], f.rest[n+m:]
	return true
}

// onlyBytes makes a field of a wire type without length an unknown one, as
// protobuf has it.
func (f *field) onlyBytes() {
	if f.typ != protowire.BytesType {
		f.num = 0
	}
}

// string returns a copy of the value of a string field.
func (f *field) string() (string, error) {
	if !utf8.Valid(f.bytes) {
		return "", errUTF8
	}
	return string(f.bytes), nil
}
