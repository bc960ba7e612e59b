package upstream

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/xds-relay/xds-relay/cache"
	"github.com/xds-relay/xds-relay/upstream/session"
	"github.com/xds-relay/xds-relay/upstream/session/sessiontest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// wildcard returns topics of which a wildcard is wanted, and their session.
func wildcard(form session.Form, scope cache.Scope, typeURL string) (*session.Topics, session.Session) {
	of := &session.Topics{}
	of.AddSets(session.NewSets(session.Config{Scope: scope, TypeURL: typeURL}))
	u := of.NewUpdate()
	of.Start(cache.Wildcard, nil, &u)
	s := form.Begin(of)
	s.Requests(t0, defaultMaxRequestBytes)
	return of, s
}

// silenceAfter returns the kind of silence of a control plane that has answered on the stream, or
// has not.
func silenceAfter(answered bool) session.Silence {
	if answered {
		return session.Selective
	}
	return session.Mute
}

// t0 is some time.
var t0 = time.Unix(1_700_000_000, 0)

// modelNames are all names that may exist.
var modelNames = []string{"always", "a", "b", "c"}

// Also needed by the tests of the sessions.
var (
	typeURLs    = sessiontest.TypeURLs
	appendText  = sessiontest.AppendText
	clusterFor  = sessiontest.ClusterFor
	locators    = sessiontest.Locators
	text        = sessiontest.Text
	value       = sessiontest.Value
	variantName = sessiontest.VariantName
	wrapAny     = sessiontest.WrapAny
)
