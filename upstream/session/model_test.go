package session

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/upstream/session/sessiontest"
)

// After any interleaving of subscriptions, changes, lost streams and messages
// under way, the cache has the control plane's state. On the way there it
// never gets the removal of a resource that always existed.

// modelNames are all names that may exist.
var modelNames = []string{"always", "a", "b", "c"}

// modelClient is a session on a stream that opens when it sends.
type modelClient struct {
	form    Form
	subs    *Topics
	session Session // nil without a stream
	typeURL string
}

// newModel makes a model with sets, or with names if there are no sets.
func newModel(t *testing.T, typ string, form Form, names []string, sets ...string) *sessiontest.Model {
	m := sessiontest.NewModel(t, t0, typ, form == Delta, names, sets...)
	m.Client = &modelClient{form: form, subs: newTopics(cache.Scope{}, typeURLs[typ], len(sets) > 0), typeURL: typeURLs[typ]}
	return m
}

// Start implements sessiontest.Client.
func (c *modelClient) Start(name string) cache.Update {
	withKind(c.subs, cache.Scope{}, c.typeURL, name)
	u := c.subs.NewUpdate()
	c.subs.Start(name, nil, &u)
	return u
}

// Stop implements sessiontest.Client.
func (c *modelClient) Stop(name string) { c.subs.Stop(name) }

// Opened implements sessiontest.Client.
func (c *modelClient) Opened() { c.session = c.form.Begin(c.subs) }

// Lost implements sessiontest.Client.
func (c *modelClient) Lost() {
	c.session = nil
	c.subs.Lost()
}

// NeedsStream implements sessiontest.Client.
func (c *modelClient) NeedsStream() bool {
	return c.session != nil && c.subs.NeedStream(c.session.Begun())
}

// Requests implements sessiontest.Client.
func (c *modelClient) Requests(now time.Time, update func(cache.Update)) []proto.Message {
	update(c.subs.Expire(now))
	c.subs.Hear(now) // the control plane answers another type
	update(c.session.Conclude(now, DefaultResponseTimeout, silenceAfter(c.subs.Answered())))
	return c.session.Requests(now, 1<<20)
}

// Response implements sessiontest.Client.
func (c *modelClient) Response(now time.Time, b []byte) (u cache.Update, nack string, err error) {
	r, err := c.form.Parse(b)
	if err != nil || c.session == nil || !c.session.Begun() {
		return u, "", err
	}
	u, nack = c.session.Response(now, r)
	r.Clear() // nothing may refer to it any more
	return u, nack, nil
}

// Answered implements sessiontest.Client.
func (c *modelClient) Answered() bool { return c.subs.Answered() }

func TestCacheHasWhatTheControlPlaneHas(t *testing.T) {
	for _, typ := range []string{"cds", "eds"} {
		for _, form := range []Form{Delta, SotW} {
			t.Run(fmt.Sprint(typ, "/", form), func(t *testing.T) {
				rapid.Check(t, func(rt *rapid.T) {
					m := newModel(t, typ, form, modelNames)
					if rapid.Bool().Draw(rt, "wildcard") {
						m = newModel(t, typ, form, modelNames, cache.Wildcard)
					}
					m.Run(rt)
				})
			})
		}
	}
}

// modelMembers are names in directories, and modelGlobs those of the directories.
var (
	modelMembers = []string{
		"xdstp://a/t/d/always", "xdstp://a/t/d/a", "xdstp://a/t/d/b",
		"xdstp://a/t/e/a", "xdstp://a/t/e/b", "xdstp://a/t/d/a?k=v",
	}
	modelGlobs = []string{"xdstp://a/t/d/*", "xdstp://a/t/e/*", "xdstp://a/t/d/*?k=v"}
)

// The same for globs and names, which share a stream in delta.
func TestCacheHasTheGlobsAndNamesThatTheControlPlaneHas(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		m := newModel(t, "cds", Delta, modelMembers, modelGlobs...)
		m.Mixed = true
		m.Pause = time.Millisecond // in settleTime it has answered
		m.Lazy = rapid.Bool().Draw(rt, "lazy")
		m.Run(rt)
	})
}

// The same for globs, which are requested themselves in delta, and fed from the wildcard otherwise.
func TestCacheHasTheGlobsThatTheControlPlaneHas(t *testing.T) {
	names, setNames := modelMembers, append(slices.Clone(modelGlobs), cache.Wildcard)
	for name, form := range map[string]Form{"delta": Delta, "sotw": SotW, "from the wildcard": Delta} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(rt *rapid.T) {
				m := newModel(t, "cds", form, names, setNames...)
				m.Client.(*modelClient).subs.Sets.noGlobs = name == "from the wildcard"
				m.Pause = time.Millisecond // in settleTime it has answered
				m.Lazy = rapid.Bool().Draw(rt, "lazy")
				m.Run(rt)
			})
		})
	}
}
