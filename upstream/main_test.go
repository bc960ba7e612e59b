package upstream

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/xds-relay/xds-relay/cache"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newTopics returns the names of a type, or its sets.
func newTopics(scope cache.Scope, typeURL string, areSets bool) *topics {
	t := &topics{}
	if areSets {
		t.addSets(newSets(scope, typeURL))
	} else {
		t.addNames(newNames(scope, typeURL))
	}
	return t
}

// withKind returns topics that have what a name or a set needs, as a Stream makes them. They
// are new if there are none.
func withKind(t *topics, scope cache.Scope, typeURL, name string) *topics {
	switch {
	case t == nil:
		return newTopics(scope, typeURL, isSet(name))
	case t.kind(name) != nil:
	case isSet(name):
		t.addSets(newSets(scope, typeURL))
	default:
		t.addNames(newNames(scope, typeURL))
	}
	return t
}

// answeredOnStream says that there was a response on the present stream.
func (c *core) answeredOnStream() bool { return c.responses > c.before }

// t0 is some time.
var t0 = time.Unix(1_700_000_000, 0)
