package session

import (
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/taster"
	"github.com/xds-relay/xds-relay/xdstype"
)

// Subscriptions are what is wanted of one type, and what is known of it, whichever protocol
// and stream it came over: [Names], or [Sets] (the wildcard and globs).
type Subscriptions interface {
	common() *core
	// NewUpdate returns an update in which nothing has happened yet.
	NewUpdate() cache.Update
	// get returns the subscription to a name or a set, nil if there is none.
	get(name string) *subscription
	// start subscribes to a name. It adds to the update what is known already: what is
	// held, or why it cannot be had (down).
	start(name string, down *cache.Error, u *cache.Update)
	// again requests a subscribed name once more.
	again(name string, down *cache.Error, u *cache.Update)
	// stop unsubscribes from a name.
	stop(name string)
	// forget drops a subscription that was given up.
	forget(sub *subscription)
	// fail adds to the update that a subscription failed.
	fail(sub *subscription, err *cache.Error, u *cache.Update)
	// failed adds to the update why what has no answer yet cannot be had.
	failed(err *cache.Error, u *cache.Update)
	// opened begins a new stream: everything is to be requested again.
	opened(sotw bool)
	// Lost ends the stream. Nothing that is known is lost with it.
	Lost()
	// needStream reports whether the control plane can answer only on a new stream. begun
	// says that the type was requested on the present one.
	needStream(begun bool) bool
	// late reports whether a subscription has to wait for the next stream, as the first
	// request of this one was sent.
	late(sub *subscription) bool
	// waitAgain restarts the time that unanswered subscriptions wait for an answer.
	waitAgain(now time.Time)
	// expire applies what happens by time alone, and nextDue returns when that is.
	expire(now time.Time) cache.Update
	nextDue() (time.Time, bool)
	// seed takes over what another server with the same versions has said.
	seed(now time.Time, held func(cache.Key, func(string, *cache.Resource)))
	// recall notes what the relay had before it was started. See recall.go.
	recall(had func(cache.Key, func(string, *cache.Resource)))
	// resend returns everything that is held or has failed.
	resend() cache.Update
	// Ends returns when the TTLs of what an update has expire.
	Ends(u *cache.Update) map[string]time.Time
	// all yields the subscriptions.
	all() func(yield func(*subscription) bool)
}

// subscription is the interest in a name, the wildcard or a glob.
type subscription struct {
	name string
	// started says that the cache wants it, and wanted that the control plane is to be
	// asked for it: not for a glob that is fed from the wildcard, but for that. After it
	// was given up it is kept only until the control plane has been sent that.
	started, wanted bool

	// Of the present stream:
	sent  bool // requested
	first bool // in the first request of its type
	ask   int  // the last waiting in which it is
	// unread and removed are of names of which a glob on the stream has the resource, see crossing.go.
	unread, removed bool
	// refused says that it is not requested, because a request has no room for it.
	refused bool
	// failure is why there is no answer, if the cache knows that.
	failure *cache.Error
	// again says that it is to be requested once more.
	again bool

	// answered says that there is an answer. It does not end with the stream.
	answered bool

	// The rest is of names only.

	// fulls is names.fulls when it was requested.
	fulls uint64
	// left, in SotW, says that it was given up not long ago. If it is wanted again,
	// a response without it may be one that was sent in between.
	left bool
	// anew says that it was requested once more, and has not been answered since.
	anew   bool
	answer cache.Change
	seen   uint64 // the last response that had it
	// via is the name of the resource of which this is an alias, if answer came by
	// that.
	via string
	// resumed says that a client holds it from an earlier stream, and listed that the
	// control plane was sent so although it is not held here. See resumed.go.
	resumed, listed bool
	// recalled is what the relay had of it before it was started, as long as the control plane
	// has said nothing of it; nil if there is nothing. See recall.go.
	recalled *cache.Resource
	// expired says that the control plane did not remove it, but its TTL expired.
	expired bool
	// reported says that answer.Err is the control plane's own. It says so once,
	// and means it until it sends the resource (resource_errors).
	reported bool
}

// crosses says that it is not known yet what a removal means, or meant, for a name.
func (sub *subscription) crosses() bool { return sub.unread || sub.removed }

// core is what names and sets have in common. Those that share a stream (see [Topics]) have one
// origin, and count the same responses.
type core struct {
	scope   cache.Scope
	typeURL string
	params  cache.Params                // the scope's
	check   taster.Mode                 // what becomes of resources that clients would reject
	speaks  func(authority string) bool // see Config
	wanted  int                         // subscriptions that are started

	// server is the control plane, for cache.OriginVersion. origin is the present version,
	// and now is that of the response that is being applied.
	server      any
	origin, now *cache.OriginVersion
	// shown is the version_info under which what is held came, for SotW. Empty
	// if the last response was not accepted, or something came without one.
	shown string
	// hidden: the last response had something bad whose name is not known.
	hidden   bool
	expiries cache.Expiries[string] // of what is held and has a TTL
	variants variants
	// responses counts the responses, for subscription.seen.
	responses uint64
	// refusals are what was refused and the cache does not know yet.
	refusals cache.Update

	// Of the present stream:
	live, sotw bool
	before     uint64 // responses that came before the stream
	first      firstResponses
	answering  cache.Answer    // which answer the response is of that is being applied
	changed    []*subscription // wanted or given up since the last request
	waiting    []waiting       // in the order of their time
	asks       int             // how many there have been
}

// waiting are subscriptions that were requested at one time.
type waiting struct {
	ask   int
	since time.Time
	subs  []*subscription
}

// Config is what names and sets of one type are made with.
type Config struct {
	Scope   cache.Scope
	TypeURL string
	// Server is the control plane, for cache.OriginVersion: another one has other versions.
	Server any
	// Speaks, if not nil, says whether the control plane is believed in what it says of another
	// authority, because that is served from the same place.
	Speaks func(authority string) bool
	// Check says what becomes of resources that clients would reject.
	Check taster.Mode
	// Modest, if not nil, says whether a name is requested by a client whose names of the type
	// take at most so many bytes.
	Modest func(k cache.Key, most int64) bool
	// NoGlobs says that the control plane is not to be asked for globs: they are fed from the
	// wildcard. In SotW they always are.
	NoGlobs bool
	// Habits are those of the control plane, nil if nothing is known of it.
	Habits *Habits
}

func newCore(c Config) core {
	return core{
		scope: c.Scope, typeURL: c.TypeURL, params: cache.ParseParams(c.Scope.Params),
		speaks: c.Speaks, check: c.Check,
		server: c.Server, origin: cache.NewOriginVersion(c.Server, ""),
	}
}

func (c *core) common() *core { return c }

// follow has names or sets that are new share the stream of others.
func (c *core) follow(o *core) {
	c.origin, c.live = o.origin, o.live
	c.responses, c.before, c.first = o.responses, o.before, o.first
}

// NewUpdate returns an update in which nothing has happened yet.
func (c *core) NewUpdate() cache.Update {
	return cache.Update{Scope: c.scope, TypeURL: c.typeURL, Origin: c.origin}
}

func (c *core) speaker() speaker {
	return speaker{c.scope.Authority, c.scope.OldStyle, c.speaks}
}

func (c *core) touch(sub *subscription) {
	if c.live {
		c.changed = append(c.changed, sub)
	}
}

// refresh has a subscription requested once more, if it was.
func (c *core) refresh(sub *subscription) {
	if sub.sent && !sub.again {
		sub.again = true
		c.touch(sub)
	}
}

func (c *core) openedCore(sotw bool) {
	c.formed(sotw)
	c.live, c.before, c.changed, c.first = true, c.responses, nil, firstResponses{}
}

// firstResponses are the responses of a stream that count as its first answers: those that come before
// the first pause.
type firstResponses struct {
	// asked is when the type was requested first. until is when there is a pause if nothing comes,
	// zero if there was one. latest is when they end in any case.
	asked, until, latest time.Time
}

// longestFirst bounds for how long first answers go on without a pause.
const longestFirst = 10 * time.Second

// took takes note of a response, and of which answer it is.
func (c *core) took(now time.Time) {
	c.responses++
	f := &c.first
	switch {
	case c.responses == c.before+1 && !c.sotw && !f.asked.IsZero() && now.Sub(f.asked) > longestGrace:
		// That nothing has changed was its first answer.
		c.answering = cache.LaterAnswer
		return
	case c.responses == c.before+1:
		f.latest = now.Add(longestFirst)
	case now.After(f.until), now.After(f.latest):
		f.until = time.Time{}
		c.answering = cache.LaterAnswer
		return
	}
	f.until = now.Add(settleTime)
	c.answering = cache.FirstAnswer
}

func (c *core) lostCore() {
	c.live, c.changed, c.waiting = false, nil, nil
}

// lost ends what a subscription is on one stream.
func (sub *subscription) lost() {
	if sub.left {
		sub.answered = false // it was not certain, and is requested as if new
	}
	sub.sent, sub.first, sub.left, sub.again, sub.anew = false, false, false, false, false
	sub.unread, sub.removed = false, false
	sub.recalled = nil
}

// ask notes that subscriptions went out in a request. A subscription that has
// an answer from a stream before does not wait for one: if nothing has changed,
// there may be none; unless it is not known what a removal would mean.
func (c *core) ask(subs []*subscription, first bool, now time.Time) {
	if first {
		c.first.asked = now
	}
	for _, sub := range subs {
		sub.sent, sub.first, sub.failure = true, first, nil
	}
	c.wait(subs, now)
}

// wait has subscriptions wait for an answer from now on.
func (c *core) wait(subs []*subscription, now time.Time) {
	c.asks++
	w := waiting{ask: c.asks, since: now}
	for _, sub := range subs {
		if !sub.answered || sub.left && xdstype.Of(c.typeURL).FullState || sub.crosses() {
			sub.ask = w.ask
			w.subs = append(w.subs, sub)
		}
	}
	if len(w.subs) > 0 {
		c.waiting = append(c.waiting, w)
	}
}

// overdue returns those that have been waiting since then or longer, and
// forgets that they wait.
func (c *core) overdue(then time.Time) []*subscription {
	var subs []*subscription
	for len(c.waiting) > 0 && !c.waiting[0].since.After(then) {
		w := &c.waiting[0]
		for _, sub := range w.subs {
			if sub.ask == w.ask && sub.wanted && sub.sent && (!sub.answered || sub.left || sub.crosses()) && sub.failure == nil {
				subs = append(subs, sub)
			}
		}
		c.waiting[0] = waiting{} // else it lasts as long as the slice's memory
		c.waiting = c.waiting[1:]
	}
	return subs
}

// oldest returns since when the first of those that wait has been waiting.
func (c *core) oldest() (time.Time, bool) {
	if len(c.waiting) == 0 {
		return time.Time{}, false
	}
	return c.waiting[0].since, true
}

// renewTTL restarts the TTL of what a response has.
func (c *core) renewTTL(now time.Time, v *resourceUpdate, held *cache.Resource) {
	switch {
	case held == nil || held.TTL() == 0:
		c.expiries.End(v.key)
	case v.resource != nil || v.variant != nil:
		c.expiries.Set(v.key, now.Add(held.TTL()))
	}
}

// changeOf returns what a response says of a name of which last was held, other than that
// it lives, and what is held now.
func (c *core) changeOf(v *resourceUpdate, last *cache.Resource) (change cache.Change, held *cache.Resource) {
	change = cache.Change{Name: v.key, Err: v.err, Gone: v.gone}
	switch {
	case v.variant != nil:
		change.Resource = v.variant
	case v.resource != nil:
		change.Resource = c.encode(v.resource)
	case v.err != nil && v.err.Code == codes.PermissionDenied && last != nil:
		// gRFC A88: what one may not have any more is taken away, unlike what
		// cannot be had for a while.
		change.Gone = true
	}
	change.Origin = c.versionIn(&change)
	if held = change.Resource; held == nil && change.Err != nil && !change.Gone {
		held = last // here as in the cache
	}
	return change, held
}

// encode makes what is stored.
func (c *core) encode(r *Resource) *cache.Resource {
	if r.stored != nil {
		return r.stored // for another set, or another name
	}
	typeURL := c.typeURL // one string for all
	if r.redirect != "" {
		typeURL = xdstype.Locator
	}
	r.stored = cache.NewResource(cache.Spec{
		Name:    r.Name,
		Version: r.Version,
		TypeURL: typeURL,
		Value:   r.value,
		Extra:   r.extra,

		Redirect: r.redirect,

		TTL:         r.TTL,
		Constraints: r.constraints,
		DoNotCache:  r.doNotCache,
	})
	return r.stored
}

// Which version of the control plane's a resource has: version_info, or in delta
// system_version_info.
//
// In delta a response has what differs from what the client holds. So its version is that of
// everything that is held, and there is one cache.OriginVersion, from the first answer on.
//
// In SotW a resource has the version of the last response that it was in: a control plane
// that cuts its answer, or answers each name by itself, does not say of the others that they
// are the same. Most have in a response all that was asked for. Then, too, the version that
// all of it has changes as one; otherwise what is in the response leaves it for a new one.

func (c *core) newOrigin() { c.origin = cache.NewOriginVersion(c.server, "") }

// takeVersion takes a response's version, before the rest of it. c.now is what becomes the
// version of what is in the response. In SotW, what is in a response leaves the present
// version for a new one if not all of it is good, or the response does not have all that
// has the present version: left says that.
func (c *core) takeVersion(v *accepted, version string, hasAll func(*accepted) bool) (left bool) {
	switch {
	case v.onlyBeats(), c.sotw && version == "":
		c.now = nil // nothing was said anew
	case !c.sotw && (v.hidden || v.wildcard != nil):
		// Something that is held is not what the control plane calls so, and it is not
		// known what.
		c.now = cache.NewOriginVersion(c.server, version)
	default:
		if left = c.sotw && c.origin.Latest() != version && (v.nack != "" || v.hidden || v.wildcard != nil || !hasAll(v)); left {
			c.newOrigin()
		}
		c.origin.Set(version)
		c.now = c.origin
	}
	return left
}

// versionOf returns the version of something that is known without a response having it
// just now: in delta the present one, in SotW none.
func (c *core) versionOf() *cache.OriginVersion {
	if c.sotw {
		return nil
	}
	return c.origin
}

// versionIn returns the version of what the present response says of a name.
func (c *core) versionIn(change *cache.Change) *cache.OriginVersion {
	if change.Err != nil && !change.Gone {
		return c.notVersion()
	}
	return c.now
}

// notVersion returns the version of what is held and is not what the control plane calls so
// now: in delta none, in SotW what it was.
func (c *core) notVersion() *cache.OriginVersion {
	if c.sotw {
		return nil
	}
	return cache.NewOriginVersion(c.server, "")
}

// formed begins to take versions as one form of the protocol has them.
func (c *core) formed(sotw bool) {
	if c.sotw != sotw {
		c.newOrigin()
	}
	c.sotw = sotw
}

// adoptVersion takes what another stream to the same control plane has said of a name for
// what was said here. In delta it has the version of all, once there is one.
func (c *core) adoptVersion(change *cache.Change) {
	version := change.Origin.Latest()
	if version == "" || change.Resource == nil || c.sotw {
		return
	}
	if c.origin.Latest() == "" {
		c.origin.Set(version)
	}
	if c.live || c.origin.Latest() == version {
		change.Origin = c.origin
	}
}

// endsOf collects when the TTLs of changes expire. key returns what a name is kept under.
func (c *core) endsOf(changes []cache.Change, key func(name string) string, ends map[string]time.Time) {
	for i := range changes {
		if at, ok := c.expiries.At(key(changes[i].Name)); ok {
			ends[changes[i].Name] = at
		}
	}
}

// earlier returns the earlier of two times, of which either may be zero for none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Silence is what is known of a control plane that does not answer a request.
type Silence int

const (
	// Mute says that it has sent nothing on this stream, and may not work at all.
	Mute Silence = iota
	// Selective says that it has sent something, of whichever type.
	Selective
	// Polled says that it was polled, and has answered the poll for what is wanted now.
	Polled
)

// DefaultResponseTimeout is how long a name waits for an answer, as recommended. xDS: "Knowing When
// a Requested Resource Does Not Exist".
const DefaultResponseTimeout = 15 * time.Second

// noAnswer is the error of what the control plane does not answer.
func noAnswer(timeout time.Duration) *cache.Error {
	return &cache.Error{
		Code:    codes.DeadlineExceeded,
		Message: "the control plane has given no answer for " + timeout.String(),
	}
}
