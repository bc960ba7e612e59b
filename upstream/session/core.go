package session

import (
	"time"

	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/taster"
	"github.com/xds-relay/xds-relay/internal/xdstype"
)

// Subscriptions are the subscriptions to one type, and what is known of them, over whichever protocol
// and stream it came: [Names], or [Sets] (the wildcard and globs).
type Subscriptions interface {
	common() *core
	// NewUpdate returns an update without changes.
	NewUpdate() cache.Update
	// get returns the subscription to a name or a set, nil if there is none.
	get(name string) *subscription
	// start subscribes to a name. It adds what is known already to the update: what is
	// held, or the error. down is the error if the control plane cannot be reached.
	start(name string, down *cache.Error, u *cache.Update)
	// again requests a subscribed name once more.
	again(name string, down *cache.Error, u *cache.Update)
	// stop unsubscribes from a name.
	stop(name string)
	// forget drops a subscription that was given up.
	forget(sub *subscription)
	// fail adds to the update that a subscription failed.
	fail(sub *subscription, err *cache.Error, u *cache.Update)
	// failed adds err to the update for each subscription that has no answer yet.
	failed(err *cache.Error, u *cache.Update)
	// opened begins a new stream, on which everything must be requested again.
	opened(sotw bool)
	// Lost ends the stream. What is known remains.
	Lost()
	// needStream reports whether the control plane can answer only on a new stream. begun
	// says that the type was requested on the present one.
	needStream(begun bool) bool
	// late reports whether a subscription has to wait for the next stream, because the first
	// request of this one was sent.
	late(sub *subscription) bool
	// waitAgain restarts the response timeout of unanswered subscriptions.
	waitAgain(now time.Time)
	// expire applies the changes that are due by time alone, and nextDue returns when the next one is.
	expire(now time.Time) cache.Update
	nextDue() (time.Time, bool)
	// seed takes over the resources of another server with the same versions.
	seed(now time.Time, held func(cache.Key, func(string, *cache.Resource)))
	// recall notes the resources that the relay had before it was started. See recall.go.
	recall(stored func(cache.Key, func(string, *cache.Resource)))
	// resend returns everything that is held or has failed.
	resend() cache.Update
	// Ends returns when the TTLs of an update's resources expire.
	Ends(u *cache.Update) map[string]time.Time
	// all iterates over the subscriptions.
	all() func(yield func(*subscription) bool)
}

// subscription is the interest in a name, the wildcard or a glob.
type subscription struct {
	name string
	// started says that the cache wants it, wanted that it must be requested from the control
	// plane. They differ for a glob that is fed from the wildcard, and for that wildcard. A
	// subscription that is not wanted any more is kept until the relay has unsubscribed.
	started, wanted bool

	// Of the present stream:
	sent   bool // requested
	first  bool // in the first request of its type
	waitID int  // of the last waiting that has it
	// unread and removed are for names whose glob has the resource on the stream, see crossing.go.
	unread, removed bool
	// refused says that it is not requested, because a request has no room for it.
	refused bool
	// failure is why there is no answer, if the cache has that error.
	failure *cache.Error
	// again says that it must be requested once more.
	again bool

	// answered says that there is an answer. It outlasts the stream.
	answered bool

	// The rest is for names only.

	// asked is names.responses when it was requested.
	asked uint64
	// left, in SotW, says that it was given up recently. If it is wanted again,
	// a response without it may have been sent in between.
	left bool
	// repeated says that it was requested once more, and has not been answered since.
	repeated bool
	answer   cache.Change
	seen     uint64 // the last response that had it
	// via is the name of the resource that lists this name as an alias, if answer came by
	// that resource.
	via string
	// resumed says that a client holds it from an earlier stream. listed says that the relay has
	// listed it to the control plane although it does not hold it. See resumed.go.
	resumed, listed bool
	// parked, in SotW, says that it is left out of requests. See strict.go. unreferred says that it is the
	// endpoints to which no Cluster refers any more. See endpoints.go.
	parked, unreferred bool
	// unheard says that it had no answer in time, while the control plane sent nothing at all.
	unheard bool
	// quiet says that it is in core.quiet, and leftOut that it was parked when the last series of trials ended.
	quiet, leftOut bool
	// told says that the first request of the stream has listed it with its version, and nothing came for it since.
	// See forgetful.go.
	told bool
	// recalled is the resource that the relay had before it was started, until the control plane
	// has sent something about it; nil if there is none. See recall.go.
	recalled *cache.Resource
	// expired says that the control plane did not remove it, but its TTL expired.
	expired bool
	// behind says that the cache has an answer that is newer than this one: see Topics.Return.
	behind bool
	// reported says that the control plane has sent answer.Err in resource_errors. It sends an error
	// once, and the error holds until it sends the resource.
	reported bool
}

// isAbsent reports that the control plane has said that there is no resource.
func (sub *subscription) isAbsent() bool {
	return sub.answered && sub.answer.Resource == nil && sub.answer.Err == nil
}

// crosses reports that it is not known yet what a removal means for a name. See crossing.go.
func (sub *subscription) crosses() bool { return sub.unread || sub.removed }

// core is what names and sets have in common. Names and sets that share a stream (see [Topics]) have
// one origin, and count the same responses.
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
	// shown, in SotW, is the version_info of what is held, to be shown on the next stream. It is empty
	// if the last response was not accepted, or if not everything came with that version.
	shown string
	// hidden: the last response had a bad resource whose name is not known.
	hidden   bool
	expiries cache.Expiries[string] // of held resources that have a TTL
	variants variants
	// responses counts the responses, for subscription.seen.
	responses uint64
	// refusals are the errors of refused subscriptions that the cache has not received yet.
	refusals cache.Update
	// quiet are those that had no answer in time or were left out, and may have been answered since. Quiet has returned
	// the first of them, as many as quietShown. See quiet.go.
	quiet      []*subscription
	quietShown int
	forgotten  int // see TakeForgotten

	// Of the present stream:
	live, sotw bool
	before     uint64 // responses that came before the stream
	first      firstResponses
	answering  cache.Answer    // of the response that is being applied
	changed    []*subscription // wanted or given up since the last request
	waiting    []waiting       // in the order of their time
	waits      int             // how many there have been
}

// waiting are subscriptions that were requested at the same time.
type waiting struct {
	id    int
	since time.Time
	subs  []*subscription
}

// Config has the settings of the names and sets of one type.
type Config struct {
	Scope   cache.Scope
	TypeURL string
	// Server is the control plane, for cache.OriginVersion: another one has other versions.
	Server any
	// Speaks, if not nil, reports whether the relay accepts what the control plane sends about another
	// authority, because both authorities have the same origin.
	Speaks func(authority string) bool
	// Check decides what becomes of resources that clients would reject.
	Check taster.Mode
	// Modest, if not nil, reports whether a modest client requests a name. The names of the type that
	// such a client requests have at most `most` bytes together.
	Modest func(k cache.Key, most int64) bool
	// NoGlobs says that globs are not requested from the control plane, but fed from the
	// wildcard. In SotW they always are.
	NoGlobs bool
	// Answers says which requests the control plane answers in SotW.
	Answers Answers
	// Habits are those of the control plane. Nil means that nothing is known of it.
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

// refresh requests a subscription once more, if it was requested.
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
	// asked is when the type was first requested. until is when a pause begins if nothing comes,
	// zero if there was one. latest is when the first responses end in any case.
	asked, until, latest time.Time
}

// longestFirst bounds how long first answers last if there is no pause.
const longestFirst = 10 * time.Second

// took records a response, and whether it is a first or a later answer.
func (c *core) took(now time.Time) {
	c.responses++
	f := &c.first
	switch {
	case c.responses == c.before+1 && !c.sotw && !f.asked.IsZero() && now.Sub(f.asked) > longestGrace:
		// Nothing had changed: the control plane's silence was its first answer.
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

// lost resets the state that a subscription has on one stream.
func (sub *subscription) lost() {
	if sub.left && sub.seen <= sub.asked {
		sub.answered = false // the answer was not certain: it is requested as if new
	}
	sub.sent, sub.first, sub.left, sub.again, sub.repeated = false, false, false, false, false
	sub.unread, sub.removed = false, false
	sub.recalled, sub.told, sub.parked, sub.unreferred, sub.unheard, sub.leftOut = nil, false, false, false, false, false
}

// ask notes that subscriptions were sent in a request, and has them wait for an answer. A
// subscription that has an answer from an earlier stream does not wait, because the control plane need
// not answer if nothing has changed. It does wait if it crosses.
func (c *core) ask(subs []*subscription, first bool, now time.Time) {
	if first {
		c.first.asked = now
	}
	for _, sub := range subs {
		sub.sent, sub.first, sub.failure = true, first, nil
	}
	c.wait(subs, now)
}

// waitsFor reports whether a subscription waits for an answer.
func (c *core) waitsFor(sub *subscription) bool {
	return !sub.answered || sub.left && xdstype.Of(c.typeURL).FullState || sub.crosses() || sub.behind && !c.sotw
}

// wait has subscriptions wait for an answer from now on.
func (c *core) wait(subs []*subscription, now time.Time) {
	c.waits++
	w := waiting{id: c.waits, since: now}
	for _, sub := range subs {
		if c.waitsFor(sub) {
			sub.waitID = w.id
			w.subs = append(w.subs, sub)
		}
	}
	if len(w.subs) > 0 {
		c.waiting = append(c.waiting, w)
	}
}

// overdue returns the subscriptions that have been waiting since then or longer. They wait no more.
func (c *core) overdue(then time.Time) []*subscription {
	var subs []*subscription
	for len(c.waiting) > 0 && !c.waiting[0].since.After(then) {
		w := &c.waiting[0]
		for _, sub := range w.subs {
			if sub.waitID == w.id && sub.wanted && sub.sent && c.waitsFor(sub) && sub.failure == nil {
				subs = append(subs, sub)
			}
		}
		c.waiting[0] = waiting{} // otherwise the slice's memory would keep it
		c.waiting = c.waiting[1:]
	}
	c.hush(subs)
	return subs
}

// oldest returns since when the first waiting subscription has been waiting.
func (c *core) oldest() (time.Time, bool) {
	if len(c.waiting) == 0 {
		return time.Time{}, false
	}
	return c.waiting[0].since, true
}

// renewTTL restarts the TTL of a resource in a response.
func (c *core) renewTTL(now time.Time, v *resourceUpdate, held *cache.Resource) {
	switch {
	case held == nil || held.TTL() == 0:
		c.expiries.End(v.key)
	case v.resource != nil || v.variant != nil:
		c.expiries.Set(v.key, now.Add(held.TTL()))
	}
}

// changeOf returns the change of a name by a response, and the resource that is held after it. last is
// the resource that was held before. It is not for heartbeats.
func (c *core) changeOf(v *resourceUpdate, last *cache.Resource) (change cache.Change, held *cache.Resource) {
	change = cache.Change{Name: v.key, Err: v.err, Gone: v.gone}
	switch {
	case v.variant != nil:
		change.Resource = v.variant
	case v.resource != nil:
		change.Resource = c.encode(v.resource)
	case v.err != nil && v.err.Code == codes.PermissionDenied && last != nil:
		// gRFC A88: a resource that the client may no longer have is removed, unlike one that
		// is unavailable for a while.
		change.Gone = true
	}
	change.Origin = c.versionIn(&change)
	if held = change.Resource; held == nil && change.Err != nil && !change.Gone {
		held = last // as in the cache
	}
	return change, held
}

// encode makes the resource that is stored.
func (c *core) encode(r *Resource) *cache.Resource {
	if r.stored != nil {
		return r.stored // it was made for another set or another name
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

// Which version of the control plane a resource has: version_info, or in delta
// system_version_info.
//
// A delta response has everything that differs from what the client holds. So its version is that of
// everything that is held, and there is one cache.OriginVersion, from the first answer on.
//
// In SotW a resource has the version of the last response that contained it: a control plane
// that cuts its answer, or answers each name by itself, does not mean that the other resources
// are the same. Most responses have everything that was requested. Then all resources keep sharing one
// cache.OriginVersion, which changes as one. Otherwise the resources of the response leave it for a new one.

func (c *core) newOrigin() { c.origin = cache.NewOriginVersion(c.server, "") }

// takeVersion applies a response's version, before the rest of the response. It sets c.now to the
// version of the response's resources. In SotW, these leave the present origin for a new one
// (left is true) if the response is not all good, or does not have all resources of the present
// origin.
func (c *core) takeVersion(v *accepted, version string, hasAll func(*accepted) bool) (left bool) {
	switch {
	case v.onlyBeats(), c.sotw && version == "":
		c.now = nil // the response has no new version
	case !c.sotw && (v.hidden || v.wildcard != nil):
		// A resource that is held differs from that of the control plane's version, and it is not
		// known which.
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

// versionOf returns the version of a resource that is not from the present response: in delta
// the present version, in SotW none.
func (c *core) versionOf() *cache.OriginVersion {
	if c.sotw {
		return nil
	}
	return c.origin
}

// versionIn returns the version of a change by the present response.
func (c *core) versionIn(change *cache.Change) *cache.OriginVersion {
	if change.Err != nil && !change.Gone {
		return c.notVersion()
	}
	return c.now
}

// notVersion returns the version for a held resource or set that differs from the control plane's
// present version: in delta an empty one, in SotW nil, which means the version that it had.
func (c *core) notVersion() *cache.OriginVersion {
	if c.sotw {
		return nil
	}
	return cache.NewOriginVersion(c.server, "")
}

// formed sets the form of the protocol. Another form begins with a new origin.
func (c *core) formed(sotw bool) {
	if c.sotw != sotw {
		c.newOrigin()
	}
	c.sotw = sotw
}

// adoptVersion adopts the version of a change that came over another stream to the same control plane.
// In delta it becomes the one version of everything, if that has none yet or the same.
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

// endsOf collects when the TTLs of changes expire. key returns the key of a name in expiries.
func (c *core) endsOf(changes []cache.Change, key func(name string) string, ends map[string]time.Time) {
	for i := range changes {
		if at, ok := c.expiries.At(key(changes[i].Name)); ok {
			ends[changes[i].Name] = at
		}
	}
}

// earlier returns the earlier of two times. Either may be zero, for none.
func earlier(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// Silence is what is known of a control plane that does not answer a request.
type Silence int

const (
	// Mute means that it has sent nothing on this stream, and may not work at all.
	Mute Silence = iota
	// Selective means that it has sent a response of some type.
	Selective
	// Polled means that it is polled, and has answered the poll for the present names.
	Polled
)

// DefaultResponseTimeout is how long a name waits for an answer, as xDS recommends. xDS: "Knowing When
// a Requested Resource Does Not Exist".
const DefaultResponseTimeout = 15 * time.Second

// noAnswer is the error of a subscription that the control plane does not answer.
func noAnswer(timeout time.Duration) *cache.Error {
	return &cache.Error{
		Code:    codes.DeadlineExceeded,
		Message: "the control plane has given no answer for " + timeout.String(),
	}
}
