package session

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	"github.com/xds-relay/xds-relay/cache"
)

// sotwAlone is a SotW session of EDS with a limit.
func sotwAlone(modest func(cache.Key, int64) bool) (*Names, *sotwNames) {
	subs := NewNames(Config{Scope: testScope, TypeURL: typeURLs["eds"]})
	subs.modest = modest
	return subs, newSotWNames(subs)
}

func TestLastPartOfARequestIsForModestClients(t *testing.T) {
	const limit, middling = 64 << 10, 2 << 10
	modest := func(k cache.Key, most int64) bool {
		return strings.HasPrefix(k.Name, "modest") && most >= limit*3/4/modestShare ||
			strings.HasPrefix(k.Name, "middling") && most >= middling
	}
	subs, s := sotwAlone(modest)
	u := subs.NewUpdate()
	for i := range 2000 {
		subs.start(fmt.Sprintf("greedy-%06d-%040d", i, i), nil, &u)
	}
	s.Requests(t0, limit)
	if room := s.budget.room; s.budget.used > room*3/4 || s.budget.used < room*3/4-100 {
		t.Errorf("a greedy client has %d bytes of %d, want three quarters", s.budget.used, room)
	}
	left := func() int { return s.budget.room - s.budget.used }
	for i := 0; left() > 0; i++ {
		name := fmt.Sprintf("middling-%0100d", i)
		subs.start(name, nil, &u)
		s.Requests(t0, limit)
		if !subs.subs[name].sent {
			break
		}
	}
	if n := left(); n > middling*modestPart || n < middling*modestPart-200 {
		t.Errorf("clients that ask for %d bytes leave %d to those that ask for less, want %d", middling, n, middling*modestPart)
	}
	for i := range 100 {
		subs.start(fmt.Sprint("modest-", i), nil, &u)
		s.Requests(t0, limit)
		if sub := subs.subs[fmt.Sprint("modest-", i)]; !sub.sent {
			t.Fatalf("modest name %d is refused", i)
		}
	}
	refused := 0
	for _, sub := range subs.subs {
		if sub.refused {
			refused++
			if sub.sent || sub.failure.Code != codes.ResourceExhausted {
				t.Fatalf("%s is refused and %+v", sub.name, sub)
			}
		}
	}
	if refused == 0 || len(s.budget.refused) != refused {
		t.Errorf("%d names are refused, and %d wait", refused, len(s.budget.refused))
	}
}

// Whatever is wanted and given up, no request is longer than its limit, and all names that
// fit are requested in the end.
func TestNoRequestIsLongerThanItsLimit(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		scope := testScope
		scope.Params = rapid.SampledFrom([]string{"", "env=prod"}).Draw(t, "params")
		subs := NewNames(Config{Scope: scope, TypeURL: typeURLs["eds"]})
		var s Session
		if rapid.Bool().Draw(t, "delta") {
			s = newDelta(&Topics{Names: subs})
		} else {
			s = newSotWNames(subs)
		}
		limit := rapid.IntRange(80, 600).Draw(t, "limit")
		now := t0
		send := func() {
			for _, m := range s.Requests(now, limit) {
				if n := proto.Size(m); n > limit {
					t.Fatalf("a request of %d bytes, and the limit is %d: %v", n, limit, m)
				}
			}
			subs.takeRefusals()
		}
		nonce := 0
		for range rapid.IntRange(1, 60).Draw(t, "steps") {
			name := strings.Repeat(rapid.SampledFrom([]string{"a", "b", "c", "d", "e", "f"}).Draw(t, "letter"), rapid.SampledFrom([]int{1, 20, 50, 150}).Draw(t, "length"))
			u := subs.NewUpdate()
			switch rapid.IntRange(0, 3).Draw(t, "step") {
			case 0, 1:
				subs.start(name, nil, &u)
			case 2:
				subs.stop(name)
			default:
				if s.Begun() {
					nonce++
					s.Response(now, &Response{TypeURL: subs.typeURL, Nonce: fmt.Sprint(nonce), Version: "v"})
				}
			}
			now = now.Add(rapid.SampledFrom([]time.Duration{0, time.Second, 3 * time.Second}).Draw(t, "time"))
			if rapid.Bool().Draw(t, "send") {
				send()
			}
		}
		send()
		now = now.Add(longestReview)
		send()
		sotw, ok := s.(*sotwNames)
		if !ok {
			return
		}
		used := 0
		for sub := range subs.all() {
			switch {
			case sub.sent:
				used += subs.sizeOf(sub)
			case sub.wanted && sotw.budget.used+subs.sizeOf(sub) <= sotw.budget.room:
				t.Errorf("%s is not asked for, though there is room", sub.name)
			}
		}
		if used != sotw.budget.used {
			t.Errorf("%d bytes are asked for, and %d counted", used, sotw.budget.used)
		}
	})
}
