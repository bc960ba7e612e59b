package session

import (
	"math/bits"
	"reflect"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"

	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/xds-relay/xds-relay/cache"
)

// Others run in the middle of the work on a large response: after each part of it, and not after 10 ms as the
// scheduler has it.
func TestOthersRunDuringALargeResponse(t *testing.T) {
	const members = 20 * yieldEvery
	message := &discoveryv3.DeltaDiscoveryResponse{TypeUrl: typeURLs["cds"], Nonce: "1"}
	for i := range members {
		r := member(i, "1")
		message.Resources = append(message.Resources, &discoveryv3.Resource{Name: r.Name, Version: r.Version, Resource: &anypb.Any{TypeUrl: r.typeURL, Value: r.value}})
	}
	encoded, err := proto.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	var parsed *Response
	var update cache.Update
	subs := NewSets(Config{Scope: cache.Scope{Authority: "a"}, TypeURL: typeURLs["cds"]})
	session := newDelta(&Topics{Sets: subs})
	u := subs.NewUpdate()
	subs.start("xdstp://a/t/foo/*", nil, &u)
	session.Requests(t0, maxRequestBytes)
	topics := cache.New(quietSource{}, cache.Options{})
	defer topics.Close()
	topics.WatchSet(cache.Key{Scope: cache.Scope{Authority: "a"}, TypeURL: typeURLs["cds"], Name: "xdstp://a/t/foo/*"}, &quietSetWatcher{})

	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	var turns atomic.Int64
	var over atomic.Bool
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for !over.Load() {
			turns.Add(1)
			runtime.Gosched()
		}
	}()
	during := func(what string, work func()) {
		t.Helper()
		before := turns.Load()
		work()
		if n := turns.Load() - before; n < members/yieldEvery-2 {
			t.Errorf("%s: others had %d turns, want about %d", what, n, members/yieldEvery)
		}
	}
	during("parse", func() { parsed, err = Delta.Parse(encoded) })
	if err != nil {
		t.Fatal(err)
	}
	parsed.Size = 1 // so that it was not cut, and is taken at once
	during("take", func() { update, _ = session.Response(t0, parsed) })
	if len(update.Sets) != 1 || len(update.Sets[0].Changes) != members {
		t.Fatalf("the update has %d sets", len(update.Sets))
	}
	during("store", func() { topics.Apply(update) })
	over.Store(true)
	<-ended
}

// A few resources can be as large as many, so a part is bounded in bytes, too. What is small has one part only.
func TestPartsAreBounded(t *testing.T) {
	const every = 10
	for _, test := range []struct {
		name  string
		sizes []int
		want  []int // the places of the resources that begin another part
	}{
		{"nothing", nil, nil},
		{"as many as a part has", slices.Repeat([]int{1}, every), nil},
		{"one more", slices.Repeat([]int{1}, every+1), []int{every}},
		{"three parts", slices.Repeat([]int{0}, 3*every), []int{every, 2 * every}},
		{"as many bytes as a part has", []int{yieldEveryBytes / 2, yieldEveryBytes / 2}, nil},
		{"one byte more", []int{yieldEveryBytes / 2, yieldEveryBytes / 2, 1}, []int{2}},
		{"each too large for a part", []int{2 * yieldEveryBytes, 2 * yieldEveryBytes, 1, 1}, []int{1, 2}},
	} {
		t.Run(test.name, func(t *testing.T) {
			work := parts{every: every}
			var got []int
			for i, size := range test.sizes {
				if work.next(size) {
					got = append(got, i)
				}
			}
			if !slices.Equal(got, test.want) {
				t.Errorf("parts begin at %v, want %v", got, test.want)
			}
		})
	}
}

// quietSource implements cache.Source.
type quietSource struct{}

func (quietSource) Start(cache.Key)   {}
func (quietSource) Refresh(cache.Key) {}
func (quietSource) Stop(cache.Key)    {}

// quietSetWatcher implements cache.SetWatcher.
type quietSetWatcher struct{ cache.SetWatch }

func (*quietSetWatcher) Changed() cache.Waker { return nil }

// The table of a set whose first answer comes in many parts is built anew each time that it has doubled, and once
// more at the end: each time, the name of every member is read.
func TestTableOfASetInPartsIsSeldomBuiltAnew(t *testing.T) {
	const parts, members = 50, 400
	subs := NewSets(Config{Scope: cache.Scope{Authority: "a"}, TypeURL: typeURLs["cds"]})
	session := newDelta(&Topics{Sets: subs})
	u := subs.NewUpdate()
	subs.start("xdstp://a/t/foo/*", nil, &u)
	session.Requests(t0, maxRequestBytes)
	set := subs.globs["xdstp://a/t/foo/*"]
	room := func() int { return reflect.ValueOf(set.members).Elem().FieldByName("own").FieldByName("slots").Len() }
	tables := map[int]struct{}{}
	for part := range parts {
		r := &Response{TypeURL: typeURLs["cds"], Nonce: "1", Size: aboveAll} // more of it may be to come
		for i := range members {
			r.Resources = append(r.Resources, member(part*members+i, "1"))
		}
		if _, nack := session.Response(t0, r); nack != "" {
			t.Fatal(nack)
		}
		tables[room()] = struct{}{}
	}
	if most := 1 + bits.Len(parts); len(tables) > most {
		t.Errorf("%d tables in turn for %d parts, want at most %d", len(tables), parts, most)
	}
	u = subs.expire(t0.Add(settleTime))
	if len(u.Sets) != 1 || len(u.Sets[0].Changes) != parts*members {
		t.Fatalf("the update has %d sets", len(u.Sets))
	}
	if slots, most := room(), parts*members*5/4; slots > most {
		t.Errorf("the table has %d slots in the end, want at most %d", slots, most)
	}
}
