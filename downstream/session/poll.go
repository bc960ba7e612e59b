package session

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/cespare/xxhash/v2"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/wire"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Poll is a SotW session of one request. Its responses are the full state of what was requested, whatever the type.
type Poll struct {
	*SotW
	// missingMeansGone: the client takes what is missing in a response as removed.
	missingMeansGone bool
	// has is the version that the client holds, rejected the version that it rejects. The nonce equals the version, so
	// both are known from the request alone.
	has, rejected string
	over          bool // see GiveUp
	// denied is why the client may have nothing of what it requests, once that is known.
	denied *cache.Error
}

// NewPoll returns the session of a request that is answered once.
func NewPoll(typeURL string, c *Client) *Poll {
	// A heartbeat is no answer, so a TTL would expire at the client.
	without := *c
	without.Form &^= cache.WithTTL
	without.isEnvoy = false // it takes TTLs
	without.polls = true
	f := &Poll{SotW: NewSotW(typeURL, &without)}
	f.missingMeansGone, f.fullType = f.fullType, true
	return f
}

// Request processes the request, and returns the NACK if it is one.
func (f *Poll) Request(req *discoveryv3.DiscoveryRequest) (rejection *NACK) {
	f.has = req.GetVersionInfo()
	if detail := req.GetErrorDetail(); detail != nil {
		// The session does not remember the response that it rejects.
		r := sentResponse{nonce: req.GetResponseNonce()}
		if cache.HasHeldSecrets(f.typeURL) {
			r.traits |= heldSecret
		}
		for _, name := range req.GetResourceNames() {
			r.names.Add(name)
		}
		f.rejected, rejection = r.nonce, f.reject(&r, detail)
	}
	f.SotW.Request(req)
	return rejection
}

// Additions returns the answer, nil if there is none yet.
func (f *Poll) Additions(RemovalRule) *Response {
	unknown := f.unknown()
	if !f.answerable(unknown) {
		return nil
	}
	if f.denied = f.allDenied(); f.denied != nil {
		return nil
	}
	for a := range unknown {
		f.unsubscribe(a.key())
	}
	f.forgetSent()
	r := f.SotW.Additions(RemoveAll)
	if r == nil {
		return nil
	}
	f.sendErrors(r, unknown)
	r.Version = f.version(r)
	if r.Version == f.has || f.rejected != "" && r.Version == f.rejected {
		return nil
	}
	return r
}

// unknown returns the names whose state is not known, and why. An unreachable origin may become reachable.
func (f *Poll) unknown() map[resourceRef]*cache.Error {
	var names map[resourceRef]*cache.Error
	for sub := range f.named.all() {
		if f.Rights != nil && sub.denial() != nil {
			continue // its state is known
		}
		st := sub.state()
		switch {
		case st.Status == cache.Requested, withheld(sub, &st, f.has != ""):
			st.Err = notKnownYet
		case st.Status == cache.Failed && st.Err.Transient() && (f.missingMeansGone || f.perceived(sub, st).Status == cache.Failed):
		case st.Status == cache.Failed && st.Err.Invalid && f.missingMeansGone && f.has != "":
		default:
			continue
		}
		put(&names, sub.ref(), st.Err)
	}
	return names
}

var notKnownYet = &cache.Error{Code: codes.Unavailable, Message: "not known yet"}

// answerable reports whether there is an answer, with so many names whose state is not known.
func (f *Poll) answerable(unknown map[resourceRef]*cache.Error) bool {
	for set := range f.sets() {
		// An unreachable origin may become reachable.
		if _, err := set.status(); !f.setKnown(set) || err != nil && err.Transient() {
			return false
		}
	}
	switch {
	case len(unknown) == 0:
		return true
	case !f.over && !onlyRefused(unknown), !f.hasSets() && len(unknown) == f.named.len():
		return false
	}
	// A client that may hold unknown names must not lose them.
	return !f.missingMeansGone || f.has == "" && f.gives()
}

// onlyRefused reports that there is nothing to wait for: the relay refuses all of those names.
func onlyRefused(unknown map[resourceRef]*cache.Error) bool {
	for _, err := range unknown {
		if !err.Refused {
			return false
		}
	}
	return true
}

// gives reports that a response would have a resource, or the state of a set.
func (f *Poll) gives() bool {
	for sub := range f.named.all() {
		if sub.state().Status == cache.Present {
			return true
		}
	}
	return f.hasSets()
}

// forgetSent makes the next response a full state again, with all errors.
func (f *Poll) forgetSent() {
	for sub := range f.named.all() {
		f.knows(sub, sentNothing, 0)
		sub.MoveToPending()
	}
	for set := range f.sets() {
		set.restart()
	}
}

// sendErrors adds the errors that a full state leaves out.
func (f *Poll) sendErrors(r *Response, unknown map[resourceRef]*cache.Error) {
	for a, err := range unknown {
		r.addError(wire.SotWErrors, a.name, err)
	}
}

// version is the version of everything that the client is sent. For a wildcard alone it is the origin's. Otherwise it
// stands for these sets, names and errors, and not for others with the same content: the client may request others than
// before, and states only its version.
func (f *Poll) version(r *Response) string {
	if f.named.len() == 0 && len(r.private) == 0 {
		return cmp.Or(f.content, r.Version)
	}
	sum := f.sum
	if f.hasSets() {
		sum += xxhash.Sum64String(f.content)
	}
	var errs discoveryv3.DiscoveryResponse
	if err := proto.Unmarshal(r.private, &errs); err != nil {
		return r.Version // not reached: the response was put together here
	}
	for _, e := range errs.GetResourceErrors() {
		// Not the text: each attempt to reach an origin may end with a different one.
		sum += xxhash.Sum64String(codes.Code(e.GetErrorDetail().GetCode()).String() + " " + e.GetResourceName().GetName())
	}
	return strconv.FormatUint(sum, 16)
}

// Sent gives the response its nonce, by which the client's next request identifies what it rejects.
func (f *Poll) Sent(r *Response) {
	r.Nonce = r.Version
	f.SotW.Sent(r)
}

// GiveUp ends the wait for what is not known yet.
func (f *Poll) GiveUp() { f.over = true }

// GaveUp reports that the wait has ended.
func (f *Poll) GaveUp() bool { return f.over }

// RefusedWildcard returns why the wildcard that the client requests is refused. It is nil if the wildcard is not
// refused, or the client requests none.
func (f *Poll) RefusedWildcard() *cache.Error {
	if f.wild == nil || f.wild.set != nil {
		return nil
	}
	return f.wild.err
}

// Denial returns why the client may have nothing of what it requests. It is nil if the client may have some of it, or
// that is not known yet.
func (f *Poll) Denial() *cache.Error { return f.denied }

// allDenied is Denial of names, by what is known now.
func (f *Poll) allDenied() (why *cache.Error) {
	if f.Rights == nil || f.hasSets() {
		return nil
	}
	for sub := range f.named.all() {
		if why = sub.denial(); why == nil {
			return nil
		}
	}
	return why
}

// WhyUnanswered returns why there is no answer. It is empty if the client keeps what it has: HTTP has a status for that
// (304), which unchanged says. gRPC has none, and a response without resources would be an empty state.
func (f *Poll) WhyUnanswered(unchanged bool) string {
	if (f.has != "" || f.rejected != "") && (unchanged || f.answerable(f.unknown())) {
		return ""
	}
	const most = 10
	kind, why := xdstype.Message(f.typeURL), notKnownYet.Message
	if f.wild != nil {
		if _, err := f.wild.status(); err != nil {
			why = err.Message
		}
		return fmt.Sprintf("%s, all of them: %s", kind, why)
	}
	var names []string
	for _, set := range f.byGlob {
		if status, err := set.status(); status != cache.Present {
			names = append(names, set.spelled.all()...)
			if err != nil {
				why = err.Message
			}
		}
	}
	for a, err := range f.unknown() {
		names, why = append(names, a.name), err.Message
	}
	slices.Sort(names)
	more := ""
	if len(names) > most {
		names, more = names[:most], ", ..."
	}
	return fmt.Sprintf("%s %s%s: %s", kind, strings.Join(names, ", "), more, why)
}
