package client

// The state of a client. It outlives streams, so after a reconnect only differences are events.

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	codepb "google.golang.org/genproto/googleapis/rpc/code"
	statuspb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/internal/descriptors"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// state is what the client knows of its query. It is not safe for concurrent use.
type state struct {
	query Query
	names names

	held        map[string]*discoveryv3.Resource // by canonical name: a server may change its spelling
	missing     map[string]error                 // requested names that do not exist, with the reason or nil
	failed      map[string]error                 // requested names with an error or a bad resource
	answered    map[string]bool                  // requested names with any answer
	responded   bool                             // there was a response
	unrequested bool                             // there was an Unrequested event; the state makes only one
}

func newState(q Query) *state {
	return &state{
		query:    q,
		names:    newNames(q.Names),
		held:     make(map[string]*discoveryv3.Resource),
		missing:  make(map[string]error),
		failed:   make(map[string]error),
		answered: make(map[string]bool),
	}
}

// unanswered returns the names without an answer.
func (s *state) unanswered() []string {
	var list []string
	for _, name := range s.names.list {
		if !s.answered[name] && name != wildcard {
			list = append(list, name)
		}
	}
	return list
}

// answer marks the requested names and globs to which a name from the server belongs as answered. It
// returns the requested spellings of the name, and whether any subscription covers it.
func (s *state) answer(name string, aliases ...string) (requested []string, wanted bool) {
	for _, n := range append([]string{name}, aliases...) {
		requested = append(requested, s.names.spellings(n)...)
	}
	covering := s.names.covering(name)
	for _, n := range requested {
		s.answered[n] = true
	}
	for _, n := range covering {
		s.answered[n] = true
	}
	return requested, s.names.all || len(requested)+len(covering) > 0
}

// nameless reports whether a resource may have no name: its type has no names, or the type is unknown
// here and the resource is the only one in the answer to a wildcard.
func (s *state) nameless(count int) bool {
	if xdstype.Of(s.query.TypeURL).Naming == xdstype.NoName {
		return true
	}
	return s.names.all && count == 1 && unknown(s.query.TypeURL)
}

// unknown reports whether this binary does not know a type.
func unknown(typeURL string) bool {
	_, err := protoregistry.GlobalTypes.FindMessageByURL(typeURL)
	return err != nil && xdstype.Of(typeURL) == xdstype.Other
}

// put stores a resource that the server sent, which may be nameless. An error is the reason
// for a NACK.
func (s *state) put(r *discoveryv3.Resource, nameless bool) ([]Event, error) {
	name := r.GetName()
	requested, wanted := s.answer(name, r.GetAliases()...)
	err := s.check(r)
	switch {
	case name == "" && !nameless:
		err = errors.New("it has no name")
	case !wanted && s.unrequested:
		return nil, nil
	case !wanted:
		s.unrequested = true
		return []Event{{Kind: Unrequested, Name: name}}, nil
	}
	if err != nil {
		for _, n := range requested {
			s.failed[n] = err
		}
		return []Event{{Kind: Rejected, Name: name, Err: err}}, fmt.Errorf("resource %q: %w", name, err)
	}
	for _, n := range requested {
		delete(s.missing, n)
		delete(s.failed, n)
	}
	old := s.held[canonical(name)]
	s.held[canonical(name)] = r
	switch {
	case old == nil:
		return []Event{{Kind: Added, Name: name, Resource: r}}, nil
	case sameContent(old, r):
		return nil, nil
	}
	return []Event{{Kind: Changed, Name: name, Resource: r}}, nil
}

// check returns the error in a resource's content. An unknown type is not an error.
func (s *state) check(r *discoveryv3.Resource) error {
	content := r.GetResource()
	switch content.GetTypeUrl() {
	case s.query.TypeURL, xdstype.Locator:
	default:
		return fmt.Errorf("it is of type %q (want %q)", content.GetTypeUrl(), s.query.TypeURL)
	}
	_, err := decode(content)
	if err != nil && !errors.Is(err, protoregistry.NotFound) {
		return fmt.Errorf("it cannot be decoded as %s: %w", content.GetTypeUrl(), err)
	}
	return nil
}

// remove records that a name does not exist. why is the server's reason, or nil.
func (s *state) remove(name string, why error) []Event {
	requested, _ := s.answer(name)
	known := true
	for _, n := range requested {
		before, reported := s.missing[n]
		known = known && reported
		s.missing[n] = cmp.Or(why, before)
		delete(s.failed, n)
	}
	if old := s.held[canonical(name)]; old != nil {
		delete(s.held, canonical(name))
		return []Event{{Kind: Removed, Name: name, Resource: old}}
	}
	if known {
		return nil
	}
	return []Event{{Kind: Missing, Name: name, Err: why}}
}

// fail records the server's errors for single resources. The client keeps its resources.
func (s *state) fail(errs []*discoveryv3.ResourceError) []Event {
	var events []Event
	for _, e := range errs {
		name, detail := e.GetResourceName().GetName(), e.GetErrorDetail()
		err := statusError(detail)
		if detail.GetCode() == int32(codes.NotFound) {
			if detail.GetMessage() == "" {
				err = nil // the server gives no reason
			}
			events = append(events, s.remove(name, err)...)
			continue
		}
		requested, _ := s.answer(name)
		for _, n := range requested {
			s.failed[n] = err
		}
		events = append(events, Event{Kind: Failed, Name: name, Err: err})
	}
	return events
}

// unavailable records the end of the stream as the error of each name without an answer.
func (s *state) unavailable(why *status.Status) []NameError {
	names := s.unanswered()
	if len(s.names.list) == 0 {
		names = []string{wildcard}
	}
	failed := make([]NameError, len(names))
	for i, name := range names {
		failed[i] = NameError{name, statusError(why.Proto())}
	}
	return failed
}

// resources returns the resources, in the order of the query and by name.
func (s *state) resources() []*discoveryv3.Resource {
	position := make(map[string]int, len(s.names.list))
	for i, name := range s.names.list {
		position[canonical(name)] = i
	}
	place := func(r *discoveryv3.Resource) int {
		for _, n := range append([]string{r.GetName()}, r.GetAliases()...) {
			if i, ok := position[canonical(n)]; ok {
				return i
			}
		}
		return len(s.names.list)
	}
	list := make([]*discoveryv3.Resource, 0, len(s.held))
	for _, r := range s.held {
		list = append(list, r)
	}
	slices.SortFunc(list, func(a, b *discoveryv3.Resource) int {
		return cmp.Or(cmp.Compare(place(a), place(b)), cmp.Compare(a.GetName(), b.GetName()))
	})
	return list
}

// sameContent compares the content of resources, not their versions: a SotW server gives all
// of them a new version when one changes. The bytes may differ for equal content, because
// encoders order maps at random.
func sameContent(a, b *discoveryv3.Resource) bool {
	if a.GetResource().GetTypeUrl() != b.GetResource().GetTypeUrl() {
		return false
	}
	if bytes.Equal(a.GetResource().GetValue(), b.GetResource().GetValue()) {
		return true
	}
	x, errX := decode(a.GetResource())
	y, errY := decode(b.GetResource())
	return errX == nil && errY == nil && proto.Equal(x, y)
}

// decode decodes a resource. The error is protoregistry.NotFound if its type is not known.
func decode(content *anypb.Any) (proto.Message, error) {
	return anypb.UnmarshalNew(content, proto.UnmarshalOptions{Resolver: descriptors.Types{}})
}

func statusError(s *statuspb.Status) error {
	code := codepb.Code(s.GetCode()).String() // NOT_FOUND, where grpc/codes says NotFound
	if s.GetMessage() == "" {
		return errors.New(code)
	}
	return fmt.Errorf("%s: %s", code, s.GetMessage())
}

// nack returns the error_detail of a NACK, or nil for an ACK.
func nack(errs []error) *statuspb.Status {
	if len(errs) == 0 {
		return nil
	}
	return &statuspb.Status{Code: int32(codes.InvalidArgument), Message: errors.Join(errs...).Error()}
}
