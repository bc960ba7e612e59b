package upstream

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/xds-relay/xds-relay/cache"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// newTopics returns the names of a type, or its sets.
func newTopics(scope cache.Scope, typeURL string, areSets bool) topics {
	if areSets {
		return newSets(scope, typeURL)
	}
	return newNames(scope, typeURL)
}

// answeredOnStream says that there was a response on the present stream.
func (c *core) answeredOnStream() bool { return c.responses > c.before }

// t0 is some time.
var t0 = time.Unix(1_700_000_000, 0)
