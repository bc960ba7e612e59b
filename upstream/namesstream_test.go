package upstream

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/cockroachdb/datadriven"
	"google.golang.org/grpc/codes"

	"github.com/xds-relay/xds-relay/cache"
)

// TestNamesStreamTranscripts plays testdata/namesstream_*.txt: one type of one client with
// both its streams, without I/O. The directives are those of TestTranscripts, and
//
//	response on=first|names ...
//	lost STREAM | unreachable STREAM REASON | open STREAM [form=delta|sotw]
//
// Streams that are needed anew are opened anew. What is sent to the control plane
// is printed with the stream, what the cache gets without.
func TestNamesStreamTranscripts(t *testing.T) {
	datadriven.Walk(t, "testdata", func(t *testing.T, path string) {
		if !isOfNamesStream(path) {
			return
		}
		synctest.Test(t, func(t *testing.T) {
			p := &twoStreamsPlayer{}
			datadriven.RunTest(t, path, p.play)
		})
	})
}

func isOfNamesStream(path string) bool { return strings.Contains(path, "namesstream_") }

// twoStreamsPlayer drives two Streams that have no goroutine.
type twoStreamsPlayer struct {
	player
	sides []*Stream
}

var sideNames = []string{"first", "names"}

func newSides(scope cache.Scope, f *form, sink Sink) []*Stream {
	var sides []*Stream
	for range sideNames {
		sides = append(sides, &Stream{
			scope: scope, sink: sink, form: f, forms: []*form{f}, feeds: map[string]*feed{},
			wake: make(chan struct{}, 1), live: true,
		})
	}
	sides[0].namesStream = sides[1]
	return sides
}

// Apply implements Sink.
func (p *twoStreamsPlayer) Apply(u cache.Update) { p.print(u) }

func (p *twoStreamsPlayer) play(t *testing.T, d *datadriven.TestData) string {
	t.Helper()
	p.out.Reset()
	quiet := d.HasArg("quietly")
	d.CmdArgs = slices.DeleteFunc(d.CmdArgs, func(a datadriven.CmdArg) bool { return a.Key == "quietly" })
	take := func(n note) {
		for _, name := range namesIn(d) {
			n.key = cache.Key{Scope: p.sides[0].scope, TypeURL: typeURLs[p.typ], Name: name}
			p.sides[0].inbox.notes = append(p.sides[0].inbox.notes, n)
		}
		if !quiet {
			p.sides[0].takeNotes()
		}
	}
	side := func() *Stream {
		which := d.CmdArgs[0].Key
		d.MaybeScanArgs(t, "on", &which)
		return p.sides[slices.Index(sideNames, which)]
	}
	switch d.Cmd {
	case "client":
		p.player = player{limit: 1 << 20}
		d.ScanArgs(t, "type", &p.typ)
		p.form = spoken(t, d)
		params := ""
		d.MaybeScanArgs(t, "params", &params)
		scope := cache.Scope{Authority: "a", Params: strings.ReplaceAll(params, ":", "=")}
		p.sides = newSides(scope, p.form, p)
	case "subscribe":
		take(note{})
	case "again":
		take(note{again: true})
	case "unsubscribe":
		take(note{stop: true})
	case "response":
		s := side()
		f := s.feeds[typeURLs[p.typ]]
		p.form = s.form
		r, err := s.form.parse(p.response(t, d))
		if err != nil || f == nil || !f.begun() {
			t.Fatalf("%s: nothing was requested there: %v", d.Pos, err)
		}
		s.answered(&call{})
		u, _ := f.session.response(time.Now(), r)
		s.apply(f.topics, u)
	case "after":
		wait, err := time.ParseDuration(d.CmdArgs[0].Key)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(wait)
	case "lost", "unreachable":
		s := side()
		loseSide(s)
		if d.Cmd == "unreachable" {
			s.down = &cache.Error{Code: codes.Unavailable, Message: d.CmdArgs[1].Key}
			s.retryAt = time.Now().Add(time.Minute)
			for _, f := range s.sorted() {
				u := f.topics.newUpdate()
				f.topics.failed(s.down, &u)
				s.apply(f.topics, u)
			}
		}
	case "open":
		s := side()
		if d.HasArg("form") {
			s.change(spoken(t, d))
		}
		openSide(s)
	default:
		t.Fatalf("%s: what is %q?", d.Pos, d.Cmd)
	}
	if !quiet {
		for i, s := range p.sides {
			p.turn(sideNames[i], s)
		}
	}
	return p.out.String()
}

func spoken(t *testing.T, d *datadriven.TestData) *form {
	t.Helper()
	var name string
	d.ScanArgs(t, "form", &name)
	return map[string]*form{"delta": deltaForm, "sotw": sotwForm}[name]
}

func loseSide(s *Stream) {
	s.live = false
	for _, f := range s.feeds {
		f.session, f.stale = nil, false
		if f.topics.lost(); f.wanted() == 0 {
			s.remove(f)
		}
	}
}

func openSide(s *Stream) {
	s.live, s.down = true, nil
	for _, f := range s.feeds {
		f.session = s.form.session(f.topics)
	}
}

// turn is what a Stream does after something has happened.
func (p *twoStreamsPlayer) turn(name string, s *Stream) {
	f := s.feeds[typeURLs[p.typ]]
	if f == nil {
		return
	}
	s.apply(f.topics, f.topics.expire(time.Now()))
	if f.session == nil && !f.stale {
		return
	}
	if f.stale || f.topics.needStream(f.begun()) {
		fmt.Fprintf(&p.out, "%s: a new stream\n", name)
		loseSide(s)
		openSide(s)
		if f = s.feeds[typeURLs[p.typ]]; f == nil {
			return
		}
	}
	s.apply(f.topics, f.session.conclude(time.Now(), defaultResponseTimeout, silenceAfter(f.topics.core().answeredOnStream())))
	for _, m := range f.session.requests(time.Now(), p.limit) {
		fmt.Fprintf(&p.out, "%s: ", name)
		p.send(m)
	}
}
