package upstream

import (
	"fmt"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/propagation"
	"github.com/xds-relay/xds-relay/taster"
	"github.com/xds-relay/xds-relay/wire"
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
	receipt   *propagation.Receipt
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
	// key is what it is kept under, once somebody has asked.
	key string
	// taste says whether the value was looked at, and verdict what clients would reject of it,
	// nil for nothing. See taste.go.
	taste   taste
	verdict *taster.Verdict
}

// resourceError is one element of a response's resource_errors.
type resourceError struct {
	name name
	err  cache.Error
}

var errNameUTF8 = fmt.Errorf("name: %w", wire.ErrUTF8)

// parseSotW parses a DiscoveryResponse. An error is of the response as a whole;
// errors of single resources are in them.
func parseSotW(b []byte) (*response, error) {
	return parseResponse(b, parseAnyResource, func(r *response, f *wire.Fields) (err error) {
		if f.Num == wire.SotWErrors {
			r.errors, err = appendError(r.errors, f.Bytes)
		}
		return err
	})
}

// parseDelta parses a DeltaDiscoveryResponse.
func parseDelta(b []byte) (*response, error) {
	return parseResponse(b, parseResource, func(r *response, f *wire.Fields) (err error) {
		var n name
		switch f.Num {
		case wire.DeltaRemoved:
			if n.name, err = f.Text(); err == nil {
				r.removed = append(r.removed, n)
			}
		case wire.DeltaRemovedNames:
			if n, err = parseName(f.Bytes); err == nil {
				r.removed = append(r.removed, n)
			}
		case wire.DeltaErrors:
			r.errors, err = appendError(r.errors, f.Bytes)
		}
		return err
	})
}

func parseResponse(b []byte, element func(b []byte, like string) resource, other func(*response, *wire.Fields) error) (*response, error) {
	r := &response{size: len(b)}
	like := "" // the type of the last resource, which most others have, too: one string for all
	f := wire.Walk(b)
	for f.Next() {
		var err error
		switch f.OnlyBytes(); f.Num {
		case wire.ResponseVersion:
			r.version, err = f.Text()
		case wire.ResponseResources:
			if n := len(r.resources); n > 0 && n == cap(r.resources) {
				r.resources = slices.Grow(r.resources, 1+f.Ahead(wire.ResponseResources))
			}
			r.resources = append(r.resources, element(f.Bytes, like))
			like = r.resources[len(r.resources)-1].typeURL
		case wire.ResponseTypeURL:
			r.typeURL, err = f.Text()
		case wire.ResponseNonce:
			r.nonce, err = f.Text()
		default:
			err = other(r, &f)
		}
		if err != nil {
			return nil, fmt.Errorf("field %d: %w", f.Num, err)
		}
	}
	return r, f.Err
}

// parseResource parses a Resource. like is a type URL that it may have.
func parseResource(b []byte, like string) resource {
	r := resource{raw: b}
	var body, name, control, ttl []byte // the messages in it
	f := wire.Walk(b)
	var err error
	for err == nil && f.Next() {
		switch f.OnlyBytes(); f.Num {
		case wire.ResourceVersion:
			r.version, err = f.Text()
			continue
		case wire.ResourceName:
			r.name, err = f.Text()
			continue
		case wire.ResourceAny:
			body, r.present = wire.Merge(body, f.Bytes), true
			continue
		case wire.ResourceAliases:
			var alias string
			if alias, err = f.Text(); err == nil {
				r.aliases = append(r.aliases, alias)
			}
		case wire.ResourceTTL:
			ttl = wire.Merge(ttl, f.Bytes)
			continue
		case wire.ResourceCacheControl:
			control = wire.Merge(control, f.Bytes)
		case wire.ResourceNameMessage:
			name = wire.Merge(name, f.Bytes)
			continue
		}
		r.extra = append(r.extra, f.Raw...) // its own: there may be many
	}
	if err == nil {
		err = f.Err
	}
	if err == nil && name != nil {
		err = r.takeName(name)
	}
	r.unnamed = r.name == ""
	if err == nil {
		r.ttl, err = parseDuration(ttl)
	}
	if err == nil {
		r.doNotCache, err = parseFlag(control, wire.CacheControlDoNotCache)
	}
	if err != nil {
		// What precedes the place cannot be trusted either.
		return resource{raw: b, err: fmt.Errorf("undecodable Resource: %w", err)}
	}
	if r.present {
		r.parseAny(body, like)
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

// parseAnyResource parses a resource of a SotW response. like is a type URL that it may have.
func parseAnyResource(b []byte, like string) resource {
	r := resource{raw: b, present: true}
	if r.parseAny(b, like); r.err != nil {
		return r
	}
	if r.typeURL == xdstype.Wrapper {
		if r = parseResource(r.value, like); r.name != "" || !r.present || r.err != nil {
			r.raw = b
			return r
		}
	}
	r.raw = b
	if !xdstype.HasInnerName(r.typeURL) {
		r.unnamed = true
		return r
	}
	name, err := wire.InnerName(r.value)
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
func (r *resource) parseAny(b []byte, like string) {
	f := wire.Walk(b)
	var err error
	for err == nil && f.Next() {
		switch f.OnlyBytes(); f.Num {
		case wire.AnyTypeURL:
			if r.typeURL = like; string(f.Bytes) != like {
				r.typeURL, err = f.Text()
			}
		case wire.AnyValue:
			r.value = f.Bytes
		}
	}
	if err == nil {
		err = f.Err
	}
	if err != nil {
		r.err = fmt.Errorf("undecodable Any: %w", err)
	}
}

// parseName returns what is in a ResourceName.
func parseName(b []byte) (n name, err error) {
	var constraints []byte
	f := wire.Walk(b)
	for err == nil && f.Next() {
		switch f.OnlyBytes(); f.Num {
		case wire.NameName:
			n.name, err = f.Text()
		case wire.NameConstraints:
			constraints = wire.Merge(constraints, f.Bytes)
		}
	}
	if err == nil {
		err = f.Err
	}
	n.constraints = string(constraints)
	return n, err
}

// parseDuration returns what is in a Duration, 0 if that is not above 0.
func parseDuration(b []byte) (time.Duration, error) {
	var seconds, nanos int64
	f := wire.Walk(b)
	for f.Next() {
		switch {
		case f.Type != protowire.VarintType:
		case f.Num == wire.DurationSeconds:
			seconds = int64(f.Varint)
		case f.Num == wire.DurationNanos:
			nanos = int64(int32(f.Varint))
		}
	}
	const most = math.MaxInt64/int64(time.Second) - 1
	if seconds < 0 || nanos < 0 || nanos >= int64(time.Second) {
		return 0, f.Err // none that a Duration may be
	}
	return time.Duration(min(seconds, most))*time.Second + time.Duration(nanos), f.Err
}

// parseFlag returns a bool field of a message.
func parseFlag(b []byte, num protowire.Number) (set bool, err error) {
	f := wire.Walk(b)
	for f.Next() {
		if f.Num == num && f.Type == protowire.VarintType {
			set = f.Varint != 0
		}
	}
	return set, f.Err
}

func appendError(to []resourceError, b []byte) ([]resourceError, error) {
	var name, detail []byte
	f := wire.Walk(b)
	for f.Next() {
		switch f.OnlyBytes(); f.Num {
		case wire.ErrorName:
			name = wire.Merge(name, f.Bytes)
		case wire.ErrorDetail:
			detail = wire.Merge(detail, f.Bytes)
		}
	}
	if f.Err != nil {
		return nil, f.Err
	}
	var e resourceError
	var err error
	if e.name, err = parseName(name); err != nil {
		return nil, err
	}
	f = wire.Walk(detail)
	for f.Next() {
		switch {
		case f.Num == wire.StatusCode && f.Type == protowire.VarintType:
			e.err.Code = codes.Code(uint32(f.Varint))
		case f.Num == wire.StatusMessage && f.Type == protowire.BytesType:
			if e.err.Message, err = f.Text(); err != nil {
				return nil, err
			}
		}
	}
	return append(to, e), f.Err
}
