package session

import (
	"fmt"
	"math"
	"slices"
	"time"
	"unicode/utf8"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/propagation"
	"github.com/xds-relay/xds-relay/internal/taster"
	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// A shallow parser of responses: it parses only the fields that the relay needs, and
// skips fields that it does not know. Bytes that it returns are parts of the message.

// Response is a DiscoveryResponse or a DeltaDiscoveryResponse. Its resources refer to the bytes from which
// it was parsed.
type Response struct {
	Version   string // version_info; of delta system_version_info
	TypeURL   string
	Nonce     string
	Resources []Resource
	Removed   []Name          // delta: removed_resources and removed_resource_names
	Errors    []ResourceError // resource_errors
	Complete  []string        // of a relay, in delta: the sets whose first answer is complete
	Size      int             // of the message, in bytes
	// Ignored says what was ignored first of an answer in JSON, because the relay does not know it. The sessions do not
	// use it.
	Ignored string
	// Receipt records when the response came. The sessions do not use it.
	Receipt *propagation.Receipt
	// updates is what accept makes of the resources. It is kept for its memory.
	updates []resourceUpdate
}

// mostRoom is for how many resources a response keeps memory when it is cleared.
const mostRoom = 1 << 16

// Clear empties the response, but keeps the memory of its lists for the next [Form.ParseInto], unless they
// are very large. Nothing may refer to its resources any more.
func (r *Response) Clear() {
	*r = Response{Resources: emptied(r.Resources), updates: emptied(r.updates)}
}

// emptied returns the list without its elements. It returns nil if the list has memory for very many.
func emptied[E any](list []E) []E {
	if cap(list) > mostRoom {
		return nil
	}
	var none E
	for i := range list {
		yield(i, yieldEvery)
		list[i] = none
	}
	return list[:0]
}

// Name is a resource's name, or a ResourceName.
type Name struct {
	// Name is the name itself.
	Name string
	// constraints are the encoded dynamic_parameter_constraints, empty for none.
	constraints string
}

// Resource is one element of a response's resources. Callers make one themselves only for an element
// that they cannot decode, with Raw, Name and Err.
type Resource struct {
	Raw  []byte // the element as it came
	Name string // empty if it has none, or none that can be trusted
	// unnamed says that nothing in it can be a name, neither in the Resource nor, in SotW, in the value.
	unnamed bool
	Version string
	aliases []string
	// constraints are as in Name.
	constraints string
	TTL         time.Duration // 0 for none
	doNotCache  bool
	extra       []byte // the fields that are passed on as they are
	// Present says that there is a resource: typeURL and value.
	Present bool
	typeURL string
	value   []byte
	// redirect is the URL of the ResourceLocator in value, once the locator was found to be a valid redirect
	// in place of a resource of another type.
	redirect string
	// Err says why the element is no resource.
	Err error
	// stored is the cache's resource, once it was made.
	stored *cache.Resource
	// key is its key, once it was computed.
	key string
	// taste says whether the value was checked, and verdict what clients would reject in it,
	// nil for nothing. See taste.go.
	taste   taste
	verdict *taster.Verdict
}

// taste says whether a resource was checked as clients would check it.
type taste uint8

const (
	untasted taste = iota
	// held: the stream holds the same content, which was checked when it came.
	held
	// tasted: it was checked in this response.
	tasted
)

// ResourceError is one element of a response's resource_errors.
type ResourceError struct {
	Name Name
	Err  cache.Error
}

var errNameUTF8 = fmt.Errorf("name: %w", wire.ErrUTF8)

// parseSotW parses a DiscoveryResponse. An error concerns the response as a whole;
// errors of single resources are in the resources.
func parseSotW(into *Response, b []byte) error {
	return parseResponse(into, b, ParseAny, func(r *Response, f *wire.Fields) (err error) {
		if f.Num == wire.SotWErrors {
			err = r.AddError(f.Bytes)
		}
		return err
	})
}

// parseDelta parses a DeltaDiscoveryResponse.
func parseDelta(into *Response, b []byte) error {
	return parseResponse(into, b, parseResource, func(r *Response, f *wire.Fields) (err error) {
		var n Name
		switch f.Num {
		case wire.DeltaRemoved:
			if n.Name, err = f.Text(); err == nil {
				r.Removed = append(r.Removed, n)
			}
		case wire.DeltaRemovedNames:
			if n, err = parseName(f.Bytes); err == nil {
				r.Removed = append(r.Removed, n)
			}
		case wire.DeltaErrors:
			err = r.AddError(f.Bytes)
		case wire.DeltaComplete:
			if n.Name, err = f.Text(); err == nil {
				r.Complete = append(r.Complete, n.Name)
			}
		}
		return err
	})
}

func parseResponse(r *Response, b []byte, element func(b []byte, like string) Resource, other func(*Response, *wire.Fields) error) error {
	r.Clear()
	r.Size = len(b)
	like := "" // the type of the last resource, which most others share: one string for all
	f := wire.Walk(b)
	for f.Next() {
		var err error
		switch f.OnlyBytes(); f.Num {
		case wire.ResponseVersion:
			r.Version, err = f.Text()
		case wire.ResponseResources:
			if n := len(r.Resources); n > 0 && n == cap(r.Resources) {
				r.Resources = slices.Grow(r.Resources, 1+f.Ahead(wire.ResponseResources))
			}
			r.Resources = append(r.Resources, element(f.Bytes, like))
			like = r.Resources[len(r.Resources)-1].typeURL
			yield(len(r.Resources), yieldEvery)
		case wire.ResponseTypeURL:
			r.TypeURL, err = f.Text()
		case wire.ResponseNonce:
			r.Nonce, err = f.Text()
		default:
			err = other(r, &f)
		}
		if err != nil {
			return fmt.Errorf("field %d: %w", f.Num, err)
		}
	}
	return f.Err
}

// parseResource parses a Resource. like is a type URL that it may have.
func parseResource(b []byte, like string) Resource {
	r := Resource{Raw: b}
	var body, name, control, ttl []byte // the messages in it
	f := wire.Walk(b)
	var err error
	for err == nil && f.Next() {
		switch f.OnlyBytes(); f.Num {
		case wire.ResourceVersion:
			r.Version, err = f.Text()
			continue
		case wire.ResourceName:
			r.Name, err = f.Text()
			continue
		case wire.ResourceAny:
			body, r.Present = wire.Merge(body, f.Bytes), true
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
		r.extra = append(r.extra, f.Raw...) // copied: there may be several fields
	}
	if err == nil {
		err = f.Err
	}
	if err == nil && name != nil {
		err = r.takeName(name)
	}
	r.unnamed = r.Name == ""
	if err == nil {
		r.TTL, err = parseDuration(ttl)
	}
	if err == nil {
		r.doNotCache, err = parseFlag(control, wire.CacheControlDoNotCache)
	}
	if err != nil {
		// The fields before the error cannot be trusted either.
		return Resource{Raw: b, Err: fmt.Errorf("undecodable Resource: %w", err)}
	}
	if r.Present {
		r.parseAny(body, like)
	}
	return r
}

// takeName applies the field resource_name.
func (r *Resource) takeName(b []byte) error {
	n, err := parseName(b)
	if r.Name == "" {
		r.Name = n.Name
	}
	r.constraints = n.constraints
	return err
}

// ParseAny parses a resource of a SotW response. like is a type URL that it may have.
func ParseAny(b []byte, like string) Resource {
	r := Resource{Raw: b, Present: true}
	if r.parseAny(b, like); r.Err != nil {
		return r
	}
	if r.typeURL == xdstype.Wrapper {
		if r = parseResource(r.value, like); r.Name != "" || !r.Present || r.Err != nil {
			r.Raw = b
			return r
		}
	}
	r.Raw = b
	if !xdstype.HasInnerName(r.typeURL) {
		r.unnamed = true
		return r
	}
	name, err := wire.InnerName(r.value)
	r.unnamed = err == nil && !xdstype.IsName([]byte(name))
	switch {
	case err != nil:
		r.Err = fmt.Errorf("undecodable value: %w", err)
	case !utf8.ValidString(name):
		r.Err = errNameUTF8
	default:
		r.Name = name
	}
	return r
}

// parseAny parses the resource itself.
func (r *Resource) parseAny(b []byte, like string) {
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
		r.Err = fmt.Errorf("undecodable Any: %w", err)
	}
}

// parseName parses a ResourceName.
func parseName(b []byte) (n Name, err error) {
	var constraints []byte
	f := wire.Walk(b)
	for err == nil && f.Next() {
		switch f.OnlyBytes(); f.Num {
		case wire.NameName:
			n.Name, err = f.Text()
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

// parseDuration parses a Duration. It returns 0 for a negative or invalid one.
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
		return 0, f.Err // not a valid Duration
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

// AddError adds an encoded element of resource_errors.
func (r *Response) AddError(b []byte) error {
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
		return f.Err
	}
	var e ResourceError
	var err error
	if e.Name, err = parseName(name); err != nil {
		return err
	}
	f = wire.Walk(detail)
	for f.Next() {
		switch {
		case f.Num == wire.StatusCode && f.Type == protowire.VarintType:
			e.Err.Code = codes.Code(uint32(f.Varint))
		case f.Num == wire.StatusMessage && f.Type == protowire.BytesType:
			if e.Err.Message, err = f.Text(); err != nil {
				return err
			}
		}
	}
	r.Errors = append(r.Errors, e)
	return f.Err
}
