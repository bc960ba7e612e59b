package collections

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/internal/delivery/deliverytest"
	"github.com/xds-relay/xds-relay/internal/xdstype"
	"github.com/xds-relay/xds-relay/urn"
)

// Authorities without streams: their answer for a leaf topic is written to the cache as soon as
// the topic is requested. To be used in a bubble of testing/synctest.

// Names in tests are short: a/x is the cluster x of the authority a, a:x a list
// collection of clusters there. Of two directives, alt comes last, to the end.
// a/x#alt=b/y#alt=c/z has two alternatives, the second one that of the first.

func long(short string) string {
	name, directives, _ := strings.Cut(short, "#")
	at := strings.IndexAny(name, "/:")
	typ := xdstype.Message(clusterType)
	if name[at] == ':' {
		typ = xdstype.Message(collectionType)
	}
	url := "xdstp://" + name[:at] + "/" + typ + "/" + name[at+1:]
	sep := "#"
	if rest, ok := strings.CutPrefix(directives, "entry="); ok {
		entry, more, _ := strings.Cut(rest, ",")
		url, sep, directives = url+"#entry="+entry, ",", more
	}
	if alt, ok := strings.CutPrefix(directives, "alt="); ok {
		url += sep + "alt=" + strings.NewReplacer("%", "%25", "#", "%23", ",", "%2C").Replace(long(alt))
	}
	u, err := urn.ParseURL(url)
	if err != nil {
		panic(err)
	}
	return u.String()
}

// short is the inverse of long. Text that is not a name stays unchanged.
func short(name string) string {
	u, err := urn.ParseURL(name)
	if err != nil {
		return name
	}
	s := strings.NewReplacer("xdstp://", "", "/"+xdstype.Message(collectionType)+"/", ":", "/"+xdstype.Message(clusterType)+"/", "/").Replace(u.Key().Name)
	sep := "#"
	if entry, ok := u.Entry(); ok {
		s, sep = s+"#entry="+entry, ","
	}
	if alt, ok := u.Alt(); ok {
		s += sep + "alt=" + short(alt.String())
	}
	return s
}

// keyOf is the key of a leaf topic.
func keyOf(name string) cache.Key {
	key, err := urn.KeyOf(name)
	if err != nil {
		panic(err)
	}
	return cache.Key{Scope: cache.Scope{Authority: key.Authority}, TypeURL: xdstype.Prefix + key.Type, Name: key.Name}
}

// derivedKey is the key of the derived topic of a name.
func derivedKey(name string) cache.Key {
	u, err := urn.ParseURL(name)
	if err != nil {
		panic(err)
	}
	typ := u.Key().Type
	if _, ok := u.Entry(); ok {
		typ = strings.TrimSuffix(typ, "Collection")
	}
	return cache.Key{Scope: cache.Scope{Authority: u.Key().Authority, Derived: cache.Resolved}, TypeURL: xdstype.Prefix + typ, Name: name}
}

// clusterNamed returns an encoded cluster with a name and a content.
func clusterNamed(t testing.TB, name, content string) []byte {
	return mustMarshal(t, &clusterv3.Cluster{Name: name, AltStatName: content})
}

// contentOf is what clusterNamed put in, and the name.
func contentOf(r *cache.Resource) (name, content string) {
	if r.Redirect() != "" {
		u, err := parseLocator(r.Value())
		if err != nil || u.String() != r.Redirect() || r.TypeURL() != xdstype.Locator {
			return "", fmt.Sprintf("a redirect to %s that says %s, %v", r.Redirect(), u, err)
		}
		return r.Name(), "redirect to " + short(u.String())
	}
	var m clusterv3.Cluster
	if err := proto.Unmarshal(r.Value(), &m); err != nil {
		return "", "not a cluster: " + err.Error()
	}
	return m.GetName(), m.GetAltStatName()
}

// origins are the authorities, and the cache with its resolver.
type origins struct {
	*testing.T
	cache    *cache.Cache
	resolver *Resolver

	mu        sync.Mutex
	says      map[string]cache.Change // by name; none is no answer
	requested map[cache.Key]bool
	news      []string             // what has been requested (+) and given up (-) since
	unread    []cache.Key          // to be sent what there is of them
	downs     map[string]time.Time // authorities that cannot be reached
	others    map[string]time.Time // when authorities last answered for names that nobody wants here
	policies  map[string]Policy
	renewed   map[string]int // how often each was requested again
	stepped   bool           // see newStepped
}

// known are the authorities that are configured.
var known = []string{"a", "b", "c", "d"}

func newOrigins(t *testing.T, opts Options) *origins {
	o := &origins{
		T: t, says: map[string]cache.Change{}, requested: map[cache.Key]bool{},
		downs: map[string]time.Time{}, others: map[string]time.Time{}, policies: map[string]Policy{}, renewed: map[string]int{},
	}
	o.cache = cache.New(o, cache.Options{IdleEntries: 1000, Linger: time.Nanosecond})
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	o.resolver = NewResolver(o.cache, deliverytest.Direct(o.cache), o, opts)
	return o
}

// newStepped is newOrigins with a resolver that works only in settle and wait: it sees everything
// that happens between two of these calls at once.
func newStepped(t *testing.T, opts Options) *origins {
	o := newOrigins(t, opts)
	o.resolver.Close()
	if opts.Log == nil {
		opts.Log = slog.New(slog.DiscardHandler)
	}
	o.resolver, o.stepped = newResolver(o.cache, deliverytest.Direct(o.cache), o, opts), true
	return o
}

// rounds makes a stepped resolver do all of its work, and returns the time until it has to
// work again.
func (o *origins) rounds() (next time.Duration, timed bool) {
	for {
		next, timed = o.resolver.runOnce(time.Now())
		if o.resolver.inbox.Empty() && !o.resolver.reach.Load() && (!timed || next > 0) {
			return next, timed
		}
	}
}

// wait lets time pass.
func (o *origins) wait(d time.Duration) {
	for end := time.Now().Add(d); o.stepped; {
		next, timed := o.rounds()
		left := time.Until(end)
		if !timed || next >= left {
			time.Sleep(left)
			return
		}
		time.Sleep(next)
	}
	time.Sleep(d)
}

// leave ends all subscriptions: then nothing is requested, and nothing remembered.
func (o *origins) leave(all map[string]*wanted) {
	for _, w := range all {
		o.cache.Unwatch(w)
	}
	o.settle()
	r := o.resolver
	if left := len(r.derived) + len(r.leaves) + len(r.dirtyLookups) + len(r.changed) + len(r.choosing) + r.timers.Len() + len(r.loops); left > 0 {
		o.Errorf("of what nobody wants any more, the resolver remembers %d nodes, %d leaves, %d and %d follows, %d choices, %d times and %d loops",
			len(r.derived), len(r.leaves), len(r.dirtyLookups), len(r.changed), len(r.choosing), r.timers.Len(), len(r.loops))
	}
	if len(o.requested) > 0 {
		o.Errorf("nobody wants anything, and requested are %v", o.requested)
	}
}

func (o *origins) close() {
	o.cache.Close()
	if o.stepped {
		o.resolver.closeAll()
		return
	}
	o.resolver.Close()
}

// Start implements cache.Source.
func (o *origins) Start(k cache.Key) {
	if k.Scope.Derived != "" {
		o.resolver.Start(k)
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.requested[k] {
		o.Errorf("%v is requested twice", k)
	}
	o.requested[k] = true
	o.news = append(o.news, "+ "+short(k.Name))
	o.unread = append(o.unread, k)
}

// Refresh implements cache.Source.
func (o *origins) Refresh(k cache.Key) {
	if k.Scope.Derived != "" {
		o.resolver.Refresh(k)
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.renewed[k.Name]++
	o.news = append(o.news, "again "+short(k.Name))
}

// Stop implements cache.Source.
func (o *origins) Stop(k cache.Key) {
	if k.Scope.Derived != "" {
		o.resolver.Stop(k)
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	delete(o.requested, k)
	o.news = append(o.news, "- "+short(k.Name))
}

// Key implements Names.
func (o *origins) Key(typeURL, name string) (cache.Key, error) {
	k := keyOf(name)
	if !slices.Contains(known, k.Scope.Authority) {
		return k, &cache.Error{Code: codes.Unavailable, Message: fmt.Sprintf("authority %q is not configured", k.Scope.Authority)}
	}
	k.TypeURL = typeURL
	return k, nil
}

func (o *origins) setPolicy(authority string, p Policy) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.policies[authority] = p
}

// Policy implements Names.
func (o *origins) Policy(authority string) Policy {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.policies[authority]
}

// Unreachable implements Names.
func (o *origins) Unreachable(s cache.Scope) (time.Time, bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	since, down := o.downs[s.Authority]
	return since, down
}

// PassesOver implements Names.
func (o *origins) PassesOver(k cache.Key, since time.Time) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	at, ok := o.others[k.Scope.Authority]
	return ok && !at.Before(since)
}

// say sets an authority's answer for a name.
func (o *origins) say(c cache.Change) {
	o.mu.Lock()
	o.says[c.Name] = c
	o.unread = append(o.unread, keyOf(c.Name))
	o.mu.Unlock()
}

// reach makes an authority reachable or unreachable. Topics that never had an answer fail.
func (o *origins) reach(authority string, down bool) {
	o.mu.Lock()
	if down {
		o.downs[authority] = time.Now()
	} else {
		delete(o.downs, authority)
	}
	for k := range o.requested {
		if k.Scope.Authority == authority {
			o.unread = append(o.unread, k)
		}
	}
	slices.SortFunc(o.unread, func(a, b cache.Key) int { return strings.Compare(a.Name, b.Name) })
	o.mu.Unlock()
	o.resolver.ReachabilityChanged()
}

// settle waits until the resolver has no more work.
func (o *origins) settle() {
	for {
		time.Sleep(time.Microsecond) // so that what is due by now is done
		synctest.Wait()
		if o.stepped {
			o.rounds()
			time.Sleep(time.Microsecond) // so that what nobody watches any more is given up
			synctest.Wait()
		}
		o.mu.Lock()
		unread := o.unread
		o.unread = nil
		o.mu.Unlock()
		if len(unread) == 0 {
			return
		}
		for _, k := range unread {
			o.mu.Lock()
			c, ok := o.says[k.Name]
			_, down := o.downs[k.Scope.Authority]
			requested := o.requested[k]
			o.mu.Unlock()
			switch {
			case !requested, !ok && !down, k.IsSet():
				continue
			case down:
				c = cache.Change{Name: k.Name, Err: &cache.Error{Code: codes.Unavailable, Message: k.Scope.Authority + " is down"}}
				if o.answered(k) {
					continue
				}
			}
			o.cache.Apply(cache.Update{Scope: k.Scope, TypeURL: k.TypeURL, Changes: []cache.Change{c}})
		}
	}
}

// answered reports whether a watched leaf topic has an answer.
func (o *origins) answered(k cache.Key) bool {
	w := &wanted{}
	e, _ := o.cache.Watch(k, w)
	defer o.cache.Unwatch(w)
	is := e.State()
	return is.Status == cache.Present || is.Status == cache.Absent
}

// wanted is a client's subscription.
type wanted struct {
	cache.Watch
	entry *cache.Entry
	last  string
	quiet bool
	// refused is what the client has refused. woken: it was notified since.
	refused cache.Refused
	woken   bool
}

// Changed implements cache.Watcher.
func (w *wanted) Changed() cache.Waker {
	w.woken = true
	return nil
}

// want begins a subscription to a derived topic.
func (o *origins) want(name string) *wanted {
	w := &wanted{}
	w.entry, _ = o.cache.Watch(derivedKey(name), w)
	return w
}

// says returns the state of a derived topic, in one line.
func (w *wanted) says() string {
	is := w.entry.State()
	s := is.Status.String()
	if r := is.Resource; r != nil {
		name, content := contentOf(r)
		s = fmt.Sprintf("%s %q", r.Version(), content)
		if r.TTL() > 0 {
			s += fmt.Sprintf(" ttl, beats %d", is.Heartbeats)
		}
		if xdstype.Message(r.TypeURL()) != xdstype.Message(w.entry.Key().TypeURL) {
			s += " of type " + xdstype.Message(r.TypeURL())
		}
		if want := w.entry.Key().Name; r.Name() != want || name != want && name != "" {
			s += fmt.Sprintf(" NAMED %q, INSIDE %q", r.Name(), name)
		}
	}
	if is.Err != nil {
		s += " " + shortAll(is.Err.Error())
	}
	return s
}

// shortAll shortens the names in a text.
func shortAll(text string) string {
	words := strings.Fields(text)
	for i, w := range words {
		name := strings.TrimRight(w, ",;:")
		words[i] = short(strings.TrimPrefix(name, altMark)) + w[len(name):]
		if strings.HasPrefix(name, altMark) {
			words[i] = "(alt) " + words[i]
		}
	}
	return strings.Join(words, " ")
}
