package session

import (
	"testing"

	"github.com/xds-relay/xds-relay/cache"
)

// Names and globs that share a stream have one version, even if the names had a stream in SotW
// before, whose versions have another meaning.
func TestNamesAndGlobsThatShareAStreamHaveOneVersion(t *testing.T) {
	of := newTopics(testScope, typeURLs["cds"], false)
	u := of.NewUpdate()
	of.Start(member1, nil, &u)
	of.opened(true)
	inSotW := of.Names.origin
	of.Lost()
	of.AddSets(NewSets(Config{Scope: testScope, TypeURL: typeURLs["cds"]}))
	of.Start(membersGlob, nil, &u)
	for range 2 {
		of.opened(false)
		if of.Names.origin != of.Sets.origin || of.Names.origin == inSotW {
			t.Fatal("names and globs have a version each, or that of SotW")
		}
		of.Lost()
	}
}

// After names have moved, the control plane may go on sending their resources on the stream that they
// shared with a glob. That is no answer to the glob.
func TestNamesThatMovedAreNoAnswerToAGlob(t *testing.T) {
	of := newTopics(testScope, typeURLs["cds"], false)
	of.AddSets(NewSets(Config{Scope: testScope, TypeURL: typeURLs["cds"]}))
	session := Delta.Begin(of)
	u := of.NewUpdate()
	for _, name := range []string{member1, membersGlob} {
		of.Start(name, nil, &u)
	}
	session.Requests(t0, maxRequestBytes)
	of.RemoveNames()
	got, _ := session.Response(t0, &Response{TypeURL: typeURLs["cds"], Resources: []Resource{{
		Name: member1, Version: "1", Present: true, typeURL: typeURLs["cds"], value: appendText(nil, 1, member1),
	}}})
	if len(got.Sets)+len(got.Changes) > 0 {
		t.Errorf("the response is taken for %+v", got)
	}
	if got := of.Expire(t0.Add(settleTime)); len(got.Sets) != 1 || got.Sets[0].Name != membersGlob {
		t.Errorf("when nothing else has come, the cache gets %+v, want the glob", got)
	}
}

// If the control plane has sent an error for a member, the member's name has that error, until the control
// plane sends something else.
func TestNameTakesTheErrorOfAMember(t *testing.T) {
	of := newTopics(testScope, typeURLs["cds"], true)
	session := Delta.Begin(of)
	u := of.NewUpdate()
	of.Start(membersGlob, nil, &u)
	session.Requests(t0, maxRequestBytes)
	denied := cache.Error{Code: 7, Message: "not yours"}
	session.Response(t0, &Response{
		TypeURL: typeURLs["cds"], Errors: []ResourceError{{Name: Name{Name: member1}, Err: denied}},
		Resources: []Resource{{Name: member2, Version: "1", Present: true, typeURL: typeURLs["cds"], value: appendText(nil, 1, member2)}},
	})
	of.AddNames(NewNames(Config{Scope: testScope, TypeURL: typeURLs["cds"]}))
	u = of.NewUpdate()
	of.Start(member1, nil, &u)
	session.Requests(t0, maxRequestBytes)
	if len(u.Changes) != 1 || u.Changes[0].Err == nil || u.Changes[0].Err.Message != denied.Message {
		t.Errorf("the cache gets %+v, want the error", u.Changes)
	}
	if late := session.Conclude(t0.Add(DefaultResponseTimeout), DefaultResponseTimeout, Selective); len(late.Changes) > 0 {
		t.Errorf("after 15 s the error is another: %+v", late.Changes)
	}
}
