package session

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/upstream/session/sessiontest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newTopics returns the names of a type, or its sets.
func newTopics(scope cache.Scope, typeURL string, areSets bool) *Topics {
	t := &Topics{}
	if areSets {
		t.AddSets(NewSets(Config{Scope: scope, TypeURL: typeURL}))
	} else {
		t.AddNames(NewNames(Config{Scope: scope, TypeURL: typeURL}))
	}
	return t
}

// withKind returns topics with Names or Sets, as a name or a set needs, as a Stream makes them. It makes
// new topics if there are none.
func withKind(t *Topics, scope cache.Scope, typeURL, name string) *Topics {
	switch {
	case t == nil:
		return newTopics(scope, typeURL, IsSet(name))
	case t.Kind(name) != nil:
	case IsSet(name):
		t.AddSets(NewSets(Config{Scope: scope, TypeURL: typeURL}))
	default:
		t.AddNames(NewNames(Config{Scope: scope, TypeURL: typeURL}))
	}
	return t
}

// t0 is some time.
var t0 = time.Unix(1_700_000_000, 0)

// testScope is a scope of the default authority.
var testScope = cache.Scope{Authority: "auth", Partition: "part", OldStyle: true}

// maxRequestBytes is the length of the longest request, in tests that are not about it.
const maxRequestBytes = 4 << 20

// Two names, and the glob of their directory.
const (
	member1     = "xdstp://auth/t/dir/1"
	member2     = "xdstp://auth/t/dir/2"
	membersGlob = "xdstp://auth/t/dir/*"
)

// Also needed by the tests of the streams around the sessions.
var (
	typeURLs   = sessiontest.TypeURLs
	appendText = sessiontest.AppendText
)
