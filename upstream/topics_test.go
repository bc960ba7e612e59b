package upstream

import (
	"testing"

	"github.com/xds-relay/xds-relay/cache"
)

// Names and globs that share a stream have one version, also if the names had a stream in SotW
// before, whose versions mean something else.
func TestNamesAndGlobsThatShareAStreamHaveOneVersion(t *testing.T) {
	of := newTopics(testScope, typeURLs["cds"], false)
	u := of.newUpdate()
	of.start(member1, nil, &u)
	of.opened(true)
	inSotW := of.names.origin
	of.lost()
	of.addSets(newSets(testScope, typeURLs["cds"]))
	of.start(membersGlob, nil, &u)
	for range 2 {
		of.opened(false)
		if of.names.origin != of.sets.origin || of.names.origin == inSotW {
			t.Fatal("names and globs have a version each, or that of SotW")
		}
		of.lost()
	}
}

// When the names have moved, the control plane may go on to send them on the stream that they
// had with a glob. That is no answer to the glob.
func TestNamesThatMovedAreNoAnswerToAGlob(t *testing.T) {
	of := newTopics(testScope, typeURLs["cds"], false)
	of.addSets(newSets(testScope, typeURLs["cds"]))
	session := deltaForm.session(of)
	u := of.newUpdate()
	for _, name := range []string{member1, membersGlob} {
		of.start(name, nil, &u)
	}
	session.requests(t0, defaultMaxRequestBytes)
	of.removeNames()
	got, _ := session.response(t0, &response{typeURL: typeURLs["cds"], resources: []resource{{
		name: member1, version: "1", present: true, typeURL: typeURLs["cds"], value: appendText(nil, 1, member1),
	}}})
	if len(got.Sets)+len(got.Changes) > 0 {
		t.Errorf("the response is taken for %+v", got)
	}
	if got := of.expire(t0.Add(settleTime)); len(got.Sets) != 1 || got.Sets[0].Name != membersGlob {
		t.Errorf("when nothing else has come, the cache gets %+v, want the glob", got)
	}
}

// A name that was refused by the control plane as a member is so by its name, until it sends
// something else.
func TestNameTakesTheErrorOfAMember(t *testing.T) {
	of := newTopics(testScope, typeURLs["cds"], true)
	session := deltaForm.session(of)
	u := of.newUpdate()
	of.start(membersGlob, nil, &u)
	session.requests(t0, defaultMaxRequestBytes)
	denied := cache.Error{Code: 7, Message: "not yours"}
	session.response(t0, &response{
		typeURL: typeURLs["cds"], errors: []resourceError{{name: name{name: member1}, err: denied}},
		resources: []resource{{name: member2, version: "1", present: true, typeURL: typeURLs["cds"], value: appendText(nil, 1, member2)}},
	})
	of.addNames(newNames(testScope, typeURLs["cds"]))
	u = of.newUpdate()
	of.start(member1, nil, &u)
	session.requests(t0, defaultMaxRequestBytes)
	if len(u.Changes) != 1 || u.Changes[0].Err == nil || u.Changes[0].Err.Message != denied.Message {
		t.Errorf("the cache gets %+v, want the error", u.Changes)
	}
	if late := session.conclude(t0.Add(defaultResponseTimeout), defaultResponseTimeout, selective); len(late.Changes) > 0 {
		t.Errorf("after 15 s the error is another: %+v", late.Changes)
	}
}
